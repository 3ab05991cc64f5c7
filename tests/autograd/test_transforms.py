"""torch.func's transforms, branches and checkpoints, in one graph each: values and gradients match eager on every backend."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
PROGRAMS: dict[str, Callable[..., Any]] = {}
LINEAR = torch.nn.Linear(4, 4)


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


def loss(x: Any, w: Any) -> Any:
    return (torch.tanh(x @ w) ** 2).sum()


@program
def gradients(x: Any, w: Any) -> Any:
    return grad(loss, argnums=(0, 1))(x, w), grad_and_value(lambda p: loss(p["x"], w), has_aux=False)({"x": x})


@program
def second_gradient(x: Any, w: Any) -> Any:
    return grad(lambda x: grad(lambda x: loss(x, w))(x).sin().sum())(x)


@program
def gradients_of_rows(x: Any, w: Any) -> Any:
    return vmap(grad(lambda r: loss(r[None], w)))(x), grad(lambda w: vmap(lambda r: loss(r[None], w))(x).sum())(w)


@program
def along_tangents(x: Any, w: Any) -> Any:
    return jvp(lambda x: torch.tanh(x @ w), (x,), (x.cos(),)), jvp(grad(lambda x: loss(x, w)), (x,), (x,))


@program
def pulled_back(x: Any, w: Any) -> Any:
    value, pull, aux = vjp(lambda d: ({"y": torch.tanh(d["x"] @ d["w"])}, d["x"] * 2), {"x": x, "w": w}, has_aux=True)
    return value, pull({"y": value["y"].cos()}), pull(value), aux


@program
def pulled_back_in_rows(x: Any, w: Any) -> Any:
    return vmap(lambda r: vjp(lambda r: torch.tanh(r @ w), r)[1](r.sin() @ w)[0])(x)


@program
def jacobians(x: Any, w: Any) -> Any:
    def fn(x: Any, w: Any) -> Any:
        return torch.tanh(x @ w).sum(0)

    both = jacrev(fn, argnums=(0, 1))(x, w)
    return (
        both,
        jacfwd(fn, argnums=1)(x, w),
        jacrev(fn, chunk_size=2)(x, w),
        jacfwd(lambda x: (fn(x, w), x), has_aux=True)(x),
    )


@program
def second_derivatives(x: Any, w: Any) -> Any:
    return hessian(lambda r: loss(r[None], w))(x[0] * 1), jacrev(jacrev(lambda r: loss(r[None], w)))(x[0])


@program
def of_parameters(x: Any, w: Any) -> Any:
    return grad(lambda p: (functional_call(LINEAR, p, (x,)) @ w).sum())(dict(LINEAR.named_parameters()))


@program
def drawn(x: Any, w: Any) -> Any:
    return grad(lambda x: torch.nn.functional.dropout(x * x, 0.5).sum())(x) @ w


@program
def views_and_copies(x: Any, w: Any) -> Any:
    return vmap(lambda a: a.view(2, 2).T.reshape(-1) * w.sum(), in_dims=1)(torch.cat([x, x[:1]]))


@program
def checkpointed(x: Any, w: Any) -> Any:
    return checkpoint(lambda x: torch.tanh(x @ w).sin(), x, use_reentrant=False) * 2


@program
def checkpointed_dropout(x: Any, w: Any) -> Any:
    y = checkpoint(lambda x: torch.nn.functional.dropout(torch.tanh(x @ w), 0.5).exp(), x, use_reentrant=False)
    return torch.nn.functional.dropout(y, 0.5)


@program
def checkpoints_nest(x: Any, w: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.tanh(checkpoint(torch.sin, x, use_reentrant=False) @ w)

    return checkpoint(inner, x, use_reentrant=False), checkpoint(lambda x: (x.T, x), x, use_reentrant=False)


@program
def either(x: Any, w: Any) -> Any:
    return torch.cond(x.sum() > 1000, lambda x: torch.tanh(x @ w), lambda x: torch.sin(x @ w), (x,)) * 2


@program
def either_without_a_gradient(x: Any, w: Any) -> Any:
    return torch.cond(x.sum() > 1000, lambda x: x * w.sum(), torch.zeros_like, (x,))


@program
def branches_nest(x: Any, w: Any) -> Any:
    def yes(x: Any) -> Any:
        y = torch.cond(x.sum() > 1000, torch.sin, torch.exp, (x,))
        return y, {"k": x * 2}

    return torch.cond(x.sum() > -1000, yes, lambda x: (x.cos(), {"k": x * 3}), (x,))


def outcome(fn: Callable[..., Any], requires_grad: bool) -> list[Any]:
    """Results, gradients, and the state of the random generator."""
    torch.manual_seed(0)
    x = (torch.arange(12.0).reshape(3, 4) / 7).requires_grad_(requires_grad)
    w = torch.arange(20.0).reshape(4, 5).sin().requires_grad_(requires_grad)
    LINEAR.zero_grad()
    torch.manual_seed(1)
    results = torch.utils._pytree.tree_leaves(fn(x, w))
    differentiable = [r for r in results if r.requires_grad and r is not x]
    if differentiable:
        sum((r * r).sum() for r in differentiable).backward()
    return [*results, x, w, LINEAR.weight.grad, torch.rand(2)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_as_eager(name: str, backend: str) -> None:
    compiled = pycompiler.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for requires_grad in (False, True):
        expected, found = outcome(PROGRAMS[name], requires_grad), outcome(compiled, requires_grad)
        assert_same(found, expected)


def test_checkpoints_keep_what_they_are_given() -> None:
    """Values in between are not saved from forward to backward: each block saves only its input."""

    def blocks(x: torch.Tensor, w: torch.Tensor, how: Callable[..., Any]) -> torch.Tensor:
        for _ in range(4):
            x = how(lambda x: torch.softmax(torch.nn.functional.gelu((x @ w).exp() @ w) @ w, 1) @ w, x)
        return x.sum()

    def plain(fn: Any, x: Any) -> Any:
        return fn(x)

    def saved(how: Callable[..., Any]) -> int:
        x, w = torch.ones(64, 8, requires_grad=True), torch.eye(8, requires_grad=True)
        compiled = pycompiler.compile(lambda x, w: blocks(x, w, how), backend="aot_eager", fullgraph=True)
        result = compiled(x, w)
        node = result.grad_fn
        assert node is not None
        return sum(t.numel() for t in node.saved_tensors)  # type: ignore[attr-defined]

    kept = saved(lambda fn, x: checkpoint(fn, x, use_reentrant=False))
    assert kept <= 4 * 64 * 8 + 64 + saved(plain) // 100
    assert kept < saved(plain) / 2


@pytest.mark.parametrize("backend", ("aot_eager", "native"))
def test_each_call_takes_its_branch(backend: str) -> None:
    """A change of the branch needs no new compile; a backward may outlive the function."""

    def program(x: Any, w: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x @ w).relu(), lambda x: x @ w * 3, (x,)).sum()

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    results = []
    for sign in (1.0, -1.0, 1.0, -1.0):
        x, w = torch.full((2, 3), sign, requires_grad=True), torch.ones(3, 4, requires_grad=True)
        result = compiled(x, w)
        assert result.item() == (24.0 if sign > 0 else -72.0)
        results.append((result, x, sign))
    assert compiled.counters()["compiles"] == 1
    del compiled
    gc.collect()
    for result, x, sign in results:
        result.backward()
        assert x.grad.tolist() == [[4.0 if sign > 0 else 12.0] * 3] * 2


@pytest.mark.parametrize("backend", ("aot_eager", "native"))
def test_a_branch_is_trained_in_one_compiled_graph(backend: str) -> None:
    """`fullgraph=True` refuses a graph that would run eagerly."""

    def program(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: (y.sin(), y * 2), lambda y: (y.cos(), y * 3), (x,))

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for sign in (1.0, -1.0):
        found = []
        for run in (program, compiled):
            x = torch.full((3,), sign, requires_grad=True)
            sum(t.sum() for t in run(x)).backward()
            found.append(x.grad)
        assert_same(*found)
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", ("aot_eager", "native"))
def test_sizes_are_numbers_where_a_gradient_takes_no_symbols(backend: str) -> None:
    def program(t: Any) -> Any:
        return torch.nn.functional.affine_grid(t, (t.shape[0], 1, 3, 3), align_corners=False)

    compiled = pycompiler.compile(program, backend=backend, dynamic=True, fullgraph=True)
    for rows in (3, 4, 3):
        found = []
        for run in (program, compiled):
            t = torch.linspace(0, 1, 6 * rows).view(rows, 2, 3).requires_grad_()
            run(t).square().sum().backward()
            found.append(t.grad)
        assert_same(*found)
    assert (compiled.counters()["compiles"], compiled.counters()["hits"]) == (2, 1)


def test_numbers_drawn_in_a_branch_are_left_to_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.nn.functional.dropout, torch.sin, (x,))

    with pytest.raises(pycompiler.exc.Unsupported, match=r"(?s)random numbers.*test_transforms.py:\d+ in program"):
        pycompiler.compile(program, backend="aot_eager", fullgraph=True)(torch.ones(8))
    compiled = pycompiler.compile(program, backend="aot_eager")
    x = torch.ones(8)
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x)
    torch.manual_seed(0)
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("backend", ("aot_eager", "native"))
def test_a_branch_in_a_checkpoint_and_a_checkpoint_in_a_branch(backend: str) -> None:
    """torch cannot differentiate these in eager."""

    def program(x: Any, choose: Callable[..., Any], again: Callable[..., Any]) -> Any:
        def both(x: Any) -> Any:
            return choose(x.sum() > 0, lambda: again(torch.exp, x * 2), lambda: x.cos())

        return again(both, x).sum()

    def branch(pred: Any, yes: Any, no: Any) -> Any:
        return torch.cond(pred, yes, no)

    def block(fn: Any, x: Any) -> Any:
        return checkpoint(fn, x, use_reentrant=False)

    compiled = pycompiler.compile(lambda x: program(x, branch, block), backend=backend, fullgraph=True)
    for sign in (1, -1):
        x, y = (torch.arange(4.0).mul(sign).sub(1).requires_grad_() for _ in range(2))
        compiled(x).backward()
        program(y, lambda pred, yes, no: yes() if pred else no(), lambda fn, x: fn(x)).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_checkpoints_of_any_size() -> None:
    """One compile serves all sizes; the results of a call that draws random numbers are saved."""
    block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3))

    def program(x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=False).tanh()

    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 2):
        found = []
        for fn in (program, compiled):
            torch.manual_seed(rows)
            x = torch.randn(rows, 4, requires_grad=True)
            fn(x).sum().backward()
            found.append(x.grad)
        assert_same(found[1], found[0])
    assert compiled.counters()["compiles"] == 1


def cut(x: Any) -> Any:
    z = x * 2
    z.detach_()
    return z * x


CUTS: dict[str, Callable[..., Any]] = {
    "frame": cut,
    "function": lambda x: torch.detach_(x * 2) * x,
    "loop": lambda x: ((x.sin() + x).detach_() + x).sin().detach_() * x,
    "grad": lambda x: grad(lambda y: cut(y).sum())(x) * x,
    "jvp": lambda x: jvp(cut, (x,), (torch.ones_like(x),))[1] * x,
    "checkpoint": lambda x: checkpoint(cut, x, use_reentrant=False),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CUTS)
def test_what_is_detached_in_place_stays_so(name: str, backend: str) -> None:
    """No operator and no version records the detach: gradients must still stop there."""
    wanted = torch.ones(3, requires_grad=True)
    CUTS[name](wanted).sum().backward()
    compiled = pycompiler.compile(CUTS[name], backend=backend)
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, wanted.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_with_the_same_random_numbers(backend: str) -> None:
    """torch resets the generator before each chunk."""

    def program(x: Any) -> Any:
        return vmap(lambda y: torch.rand(()) + y, randomness="same", chunk_size=1)(x)

    found = []
    for fn in (program, pycompiler.compile(program, backend=backend)):
        torch.manual_seed(0)
        found.append((fn(torch.zeros(3)).tolist(), torch.get_rng_state().tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_in_inference_mode(backend: str) -> None:
    compiled = pycompiler.compile(lambda x: vmap(lambda y: y * 2)(x) + 1, backend=backend)
    with torch.inference_mode():
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("transform", ["grad", "vjp"])
@pytest.mark.skipif(torch.__version__ < "2.15", reason="older torches give inference tensors")
def test_a_gradient_taken_in_inference_mode_is_no_inference_tensor(transform: str, backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            if transform == "grad":
                v = torch.func.grad(lambda z: z.sin().sum())(y)
            else:
                v = torch.func.vjp(torch.sin, y)[1](torch.ones(3))[0]
        v.clamp_(min=0.1)
        return x * v, v

    found = []
    for fn in (program, pycompiler.compile(program, backend=backend)):
        x = torch.ones(3, requires_grad=True)
        out, v = fn(x, torch.tensor([0.0, 1.0, 2.0]))
        out.sum().backward()
        found.append((v.is_inference(), x.grad.tolist()))  # type: ignore[union-attr]
    assert found[0] == found[1] and not found[0][0]


class Holder:
    def __init__(self) -> None:
        self.w = torch.full((3,), 2.0)


def _rebound_attribute(x: Any, o: Any) -> Any:
    y = checkpoint(lambda x: (x * o.w).sin(), x, use_reentrant=False)
    o.w = o.w * 2
    return y


def _rebound_cell(x: Any, o: Any) -> Any:
    w = o.w
    y = checkpoint(lambda x: (x * w).sin(), x, use_reentrant=False)
    w = o.w * 3
    return y


def _changed_list(x: Any, o: Any) -> Any:
    held = [[2.0]]
    y = checkpoint(lambda x: torch.tensor(held).sum() * x.sin(), x, use_reentrant=False)
    held[0][0] = 5.0
    return y


def _changed_namespace(x: Any, o: Any) -> Any:
    y = checkpoint(lambda x: (x * vars(o)["w"]).sin(), x, use_reentrant=False)
    o.w = o.w * 2
    return y


def _written_tensor(x: Any, o: Any) -> Any:
    w = o.w * 1
    y = checkpoint(lambda x: (x * w).sin(), x, use_reentrant=False)
    w[1:].mul_(3)
    return y


def _other_state(x: Any, o: Any) -> Any:
    seen: list[Any] = []
    for _ in range(2):
        x = checkpoint(lambda x: (x * o.w).sin(), x, use_reentrant=False)
        seen.append(x)
        o.other = len(seen)
    return seen[0] + x


LOOKS = {
    _rebound_attribute: 1, _rebound_cell: 1, _changed_list: 1, _changed_namespace: 1, _written_tensor: 1, _other_state: 0,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", LOOKS)
def test_the_backward_of_a_checkpoint_looks_again(program: Any, backend: str) -> None:
    """Eager runs the body once more, and sees the frame's changes up to then."""
    gradients = []
    for fn in (program, pycompiler.compile(program, backend=backend)):
        x, o = torch.ones(3, requires_grad=True), Holder()
        fn(x, o).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    report = pycompiler.explain(program)(torch.ones(3, requires_grad=True), Holder())
    assert bool(report.graph_break_count) == bool(LOOKS[program])


REFUSED: dict[str, Callable[..., Any]] = {
    "in_dims as a list": lambda x: vmap(torch.sin, in_dims=[0])(x),  # type: ignore[arg-type]
    "nothing to map": lambda x: vmap(torch.sin, in_dims=None)(x),  # type: ignore[arg-type]
    "determinism_check": lambda x: checkpoint(torch.sin, x, use_reentrant=False, determinism_check="bogus"),
    "branch on None": lambda x: torch.cond(None, torch.sin, torch.cos, (x,)),  # type: ignore[arg-type]
    "branch on a text": lambda x: torch.cond("a", torch.sin, torch.cos, (x,)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name: str) -> None:
    with pytest.raises((ValueError, RuntimeError)) as expected:
        REFUSED[name](torch.ones(3))
    with pytest.raises(expected.type) as found:
        pycompiler.compile(REFUSED[name], backend="eager")(torch.ones(3))
    assert str(found.value) == str(expected.value)


def test_a_jacobian_of_writes_in_place_is_lowered(caplog: Any) -> None:
    def writes(y: Any) -> Any:
        z = y.clone()
        z[0] = z[1] * 2
        return z

    x = torch.arange(3.0, dtype=torch.float64)
    with caplog.at_level("WARNING"):
        got = pycompiler.compile(lambda x: jacrev(writes)(x), fullgraph=True)(x)
    torch.testing.assert_close(got, jacrev(writes)(x))
    assert "runs through ATen" not in caplog.text


def _acos(x: Any) -> Any:
    y = vmap(torch.Tensor.acos_)(x)
    return y, y is x, x + 1


def _columns(x: Any) -> Any:
    return vmap(lambda s: s.add_(1) * 2, in_dims=1, out_dims=1)(x), x * 3


def _nested(x: Any) -> Any:
    return vmap(vmap(lambda s: s.mul_(2).cos()))(x), x * 3


def _of_a_view(x: Any) -> Any:
    made = x * 2
    return vmap(lambda s: s[0].mul_(3) * s.sum())(made), made


def _twice(x: Any) -> Any:
    return vmap(lambda s, t: s.add_(1) * t)(x, x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_acos, _columns, _nested, _of_a_view, _twice])
def test_vmap_writes_what_it_maps(fn: Callable[..., Any], backend: str) -> None:
    """The argument has the tensor's own memory: values, versions and aliases must match eager afterwards."""
    given = torch.rand(4, 4)
    ours, eagers = given.clone(), given.clone()
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn is not _twice)  # runs eagerly
    torch.testing.assert_close(compiled(ours), fn(eagers))
    torch.testing.assert_close(ours, eagers)
    assert ours._version == eagers._version


def test_vmap_writes_what_autograd_records() -> None:
    def fn(x: Any) -> Any:
        made = x * 2
        return vmap(lambda s: s.mul_(3).sin())(made) * made

    leaves = [torch.linspace(0, 1, 12).view(3, 4).requires_grad_() for _ in range(2)]
    for run, leaf in zip((fn, pycompiler.compile(fn, fullgraph=True)), leaves, strict=True):
        run(leaf).sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_what_vmap_writes_beside_its_arguments_breaks(chunk_size: int | None) -> None:
    """Writes to a tensor from outside the function, and to slices in chunks, where each write counts a version."""

    def fn(x: Any, w: Any) -> Any:
        return vmap(lambda s: (s if chunk_size else w).add_(1) * s, chunk_size=chunk_size)(x)

    ours, eagers = [[torch.ones(4, 3), torch.ones(3)] for _ in range(2)]
    compiled = pycompiler.compile(fn)
    torch.testing.assert_close(compiled(*ours), fn(*eagers))
    assert [(t.sum(), t._version) for t in ours] == [(t.sum(), t._version) for t in eagers]
    assert "the inner graph writes a tensor from outside" in str(pycompiler.explain(fn)(*ours).break_reasons[0])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [torch.sin, lambda x: (x * x.exp()).tanh()])
def test_gradients_of_compiled_results_inside_of_transforms(program: Any, backend: str) -> None:
    """The Jacobian of functorch's tutorial: the inputs of a replay are created outside the transform's levels."""

    def ask(call: Any) -> list[Any]:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
        y, unit = call(x), torch.eye(4, dtype=torch.float64)

        def pulled(v: torch.Tensor, again: bool = False) -> torch.Tensor:
            return torch.autograd.grad(y, x, v, retain_graph=True, create_graph=again)[0]

        found = [torch.func.vmap(pulled)(unit), torch.func.vmap(lambda v: pulled(v, True))(unit)]
        return [*found, *torch.func.jvp(pulled, (unit[1],), (unit[2],)), torch.func.jacrev(pulled)(unit[1])]

    compiled = pycompiler.compile(program, backend=backend)
    torch.testing.assert_close(ask(compiled), ask(program))
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("transform", [torch.func.vjp, torch.func.linearize])
def test_what_maps_along_a_function_leaves_the_frame(transform: Any) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x * 2
        value, along = transform(torch.sin, y)
        return value.cos() + y, along

    report = pycompiler.explain(fn)(torch.ones(3))
    assert [b.kind for b in report.break_reasons] == ["inner-graph"] and report.graph_count >= 2
    compiled = pycompiler.compile(fn, backend="eager")
    for scale in (1, 2):
        (want, theirs), (made, ours) = fn(torch.ones(3) * scale), compiled(torch.ones(3) * scale)
        torch.testing.assert_close(made, want)
        torch.testing.assert_close(ours(torch.ones(3)), theirs(torch.ones(3)))
    assert compiled.counters()["compiles"] == 1
