"""Saved tensors of a compiled graph: they live as long as eager's, and not beyond their last use."""

from __future__ import annotations

import types
import weakref
from typing import Any

import pytest
import torch
from ad_helpers import fakes, lifted, run_graph
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.autograd import compile_joint, runtime
from pycompiler.autograd.saved_tensors import SavedTensorCheck, raiser_of_written
from pycompiler.graphs import compile_aten

SECOND = "Trying to backward through the graph a second time"


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).tanh().exp().matmul(w.sigmoid())


def leaves() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 6, requires_grad=True) for _ in range(2)]


def compiled_with(compiler: Any, fn: Any = program) -> Any:
    gm, _ = lifted(fn, leaves())
    return compile_joint(gm, fakes(gm), fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler)


def gradients(fn: Any) -> list[torch.Tensor]:
    inputs = leaves()
    return list(torch.autograd.grad(fn(*inputs).sum(), inputs))


@pytest.fixture(params=["plan", "aten", "old torch"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "old torch":
        monkeypatch.setattr(runtime, "_CLEARS", False)
    fn = compiled_with(run_graph if request.param == "aten" else compile_aten)
    return lambda *args: fn(*args)[0]


def test_retained_graph_is_used_twice(run: Any) -> None:
    inputs = leaves()
    out = run(*inputs).sum()
    expected = gradients(program)
    for retain in (True, True, False):
        for got, want in zip(torch.autograd.grad(out, inputs, retain_graph=retain), expected, strict=True):
            torch.testing.assert_close(got, want)
    with pytest.raises(RuntimeError, match=SECOND):
        torch.autograd.grad(out, inputs)
    with pytest.raises(RuntimeError, match=SECOND):
        out.backward()


def test_saved_tensor_hooks(run: Any) -> None:
    inputs, calls = leaves(), {"pack": 0, "unpack": 0}

    def pack(t: torch.Tensor) -> torch.Tensor:
        calls["pack"] += 1
        return t.detach().clone()

    def unpack(t: torch.Tensor) -> torch.Tensor:
        calls["unpack"] += 1
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = run(*inputs).sum()
    for times, retain in ((1, True), (2, False)):
        for got, want in zip(torch.autograd.grad(out, inputs, retain_graph=retain), gradients(program), strict=True):
            torch.testing.assert_close(got, want)
        assert calls["unpack"] == times * calls["pack"] > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(run: Any, reentrant: bool) -> None:
    inputs = leaves()
    out = checkpoint(lambda *args: run(*args) * 2, *inputs, use_reentrant=reentrant)
    out.sum().backward()
    for leaf, want in zip(inputs, gradients(program), strict=True):
        torch.testing.assert_close(leaf.grad, 2 * want)


def test_two_outputs_that_go_backward_one_after_the_other() -> None:
    fn = compiled_with(compile_aten, lambda x, w: ((x * w).exp(), (x @ w).tanh()))
    inputs = leaves()
    one, two = fn(*inputs)
    one.sum().backward(retain_graph=True)
    two.sum().backward()
    x, w = (t.detach().requires_grad_() for t in inputs)
    ((x * w).exp().sum() + (x @ w).tanh().sum()).backward()
    torch.testing.assert_close([t.grad for t in inputs], [x.grad, w.grad])
    one.sum().backward()  # its saved tensors were retained, and the other backward used other nodes
    for out in (one, two):
        with pytest.raises(RuntimeError, match=SECOND):
            out.sum().backward()


def test_saved_tensor_that_is_a_gradient() -> None:
    fn = compiled_with(compile_aten, lambda x, w: (x * w.detach().exp()).sum() + w.sum())
    inputs = leaves()
    for _ in range(2):
        out = fn(*inputs)[0]
        got = torch.autograd.grad(out, inputs)
        torch.testing.assert_close(got[0], inputs[1].detach().exp())
        torch.testing.assert_close(got[1], torch.ones(6, 6))


@pytest.mark.parametrize("retain", [False, True])
def test_is_freed_inside_of_the_backward_unless_retained(retain: bool) -> None:
    if not hasattr(torch._C._FunctionBase, "maybe_clear_saved_tensors"):
        pytest.skip("this torch clears what is saved when the backward is over")
    inputs, saved, seen = leaves(), [], []

    def boxed(compiled: Any) -> Any:
        def take(values: list[Any]) -> Any:
            results = compiled(*values)
            values.clear()
            seen.append([ref() is not None for ref in saved])
            return results

        return take

    def forward(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        plan = compile_aten(gm, example_inputs)

        def run(*args: Any) -> Any:
            outs = plan(*args)
            saved.extend(weakref.ref(t.untyped_storage()) for t in outs[1:])
            return outs

        return run

    gm, _ = lifted(program, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "boxed", boxed)
        out = compile_joint(gm, fakes(gm), fw_compiler=forward, bw_compiler=compile_aten)(*inputs)[0]
        out.sum().backward(retain_graph=retain)
    assert saved
    assert seen == [[retain] * len(saved)]


def test_a_backward_that_does_not_compile_keeps_what_is_saved() -> None:
    answers: list[Any] = [RuntimeError("no disk")]

    def bw_compiler(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        if answers:
            raise answers.pop()
        return compile_aten(gm, example_inputs)

    inputs = leaves()
    gm, _ = lifted(program, inputs)
    out = compile_joint(gm, fakes(gm), fw_compiler=compile_aten, bw_compiler=bw_compiler)(*inputs)[0].sum()
    with pytest.raises(RuntimeError, match="no disk"):
        out.backward()
    out.backward()
    torch.testing.assert_close([t.grad for t in inputs], gradients(program))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_parts_of_one_memory_that_are_saved_are_told_apart(backend: str) -> None:
    """Both parts have one element: the saved part must not be confused with the part that is a result."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.sum(-1)
        return total[0], total[-1:] * x

    x, y = (torch.arange(1.0, 3.0).reshape(2, 1).requires_grad_() for _ in range(2))
    for h, leaf in ((fn, x), (pycompiler.compile(fn, backend=backend), y)):
        first, second = h(leaf)
        (first * 2 + second.sum() * 3).backward()
    assert x.grad.tolist() == y.grad.tolist() == [[8.0], [15.0]]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_copies_that_are_saved_lie_as_their_tensors_do(backend: str) -> None:
    """ATen's copy has no gaps: a saved copy of a complex tensor must not be read by the original's strides, out of bounds."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (-1, 2, 1, 1)).abs()

    def gradient(f: Any) -> torch.Tensor:
        memory = torch.complex(torch.arange(7.0), torch.arange(7.0, 14.0)).requires_grad_()
        f((memory * 1).as_strided((2, 3), (1, 2))[1:2]).sum().backward()
        return memory.grad

    # eager's vectorised complex numbers round differently on some machines
    torch.testing.assert_close(gradient(pycompiler.compile(fn, backend=backend)), gradient(fn), rtol=1e-6, atol=0)


KEPT: dict[str, Any] = {
    "a maximum": lambda x: x.amax(1),
    "a maximum at an index": lambda x: (x * 2).index_reduce(1, torch.tensor([0, 2]), x[:, :2], "amax"),
    "an exponential": lambda x: x.exp(),
    "a softmax, and beside it": lambda x: (x * 2).softmax(-1) + 0 * x.exp(),
}


@pytest.mark.parametrize("partition", ["min_cut", "save_all"])
@pytest.mark.parametrize("name", KEPT)
def test_backwards_look_at_results_as_they_are_then(name: str, partition: str) -> None:
    """Eager's node saves its result, and sees a write to it behind the version counter (seed 70026890)."""
    given = [torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)]
    with pycompiler.config.patch(partition=partition):
        for fn, x in zip((KEPT[name], pycompiler.compile(KEPT[name])), given, strict=True):
            y = fn(x)
            y.data.add_(1)
            y.sum().backward()
    torch.testing.assert_close(given[1].grad, given[0].grad, equal_nan=True)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_of_checkpoints_may_be_written(backend: str, again: bool) -> None:
    """A checkpoint does not save recomputed values: an inner node that saves its result does not save the caller's tensor."""

    def inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: (t.sin() * w).exp().tanh(), x, use_reentrant=False)  # type: ignore[no-any-return]

    def behind(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: (t * w).exp(), x.tanh(), use_reentrant=False).tanh()  # type: ignore[no-any-return]

    for fn, refused in ((inside, False), (behind, True)):
        seen: list[Any] = []
        compiled = pycompiler.compile(fn, backend=backend)
        for call in (fn, compiled):
            x, w = (torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_() for _ in range(2))
            y = call(x, w)
            with torch.no_grad():
                y.mul_(2)
            try:
                seen.append(found := torch.autograd.grad(y.sum(), (x, w), create_graph=again))
                if again:  # a recomputed result of a node is its result
                    seen[-1] += torch.autograd.grad(sum(g.sum() for g in found), (x, w, y))
            except RuntimeError as error:
                seen.append("modified by an inplace operation" in str(error))
        torch.testing.assert_close(seen[1], seen[0])
        assert (seen[0] is True) == refused
        assert compiled.counters()["compiles"] == 1


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1] = w.sum()
    return y


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x * 2,
        lambda x, w: x + w,
        lambda x, w: (x * 2, w / 3),
        lambda x, w: (x + 1, w * 3),
        lambda x, w: torch.where(torch.arange(6) > 2, x, w),
        _written,
    ],
)
def test_backward_that_takes_nothing_is_gone_through_as_often_as_eagers(fn: Any) -> None:
    """For x * 2 the compiled graph saves no tensor; eager's node saves the number and refuses a second backward."""

    def seen(call: Any) -> list[Any]:
        inputs, log = leaves(), []
        made = call(*inputs)
        for out in [*made, *made] if isinstance(made, tuple) else [made, made]:
            try:
                out.sum().backward()
            except RuntimeError as error:
                log.append(str(error))
            log.append([t.grad if t.grad is None else t.grad.tolist() for t in inputs])
        return log

    for backend in ("aot_eager", "native"):
        assert seen(pycompiler.compile(fn, backend=backend)) == seen(fn)


def test_second_backward_through_an_input_that_two_calls_wrote() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[2] = y.sum()
        return x * 1

    for call in (fn, pycompiler.compile(fn)):
        w, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        x = w * 1
        call(x, y).sum().backward()
        with pytest.raises(RuntimeError, match=SECOND):
            call(x, y).sum().backward()
        assert y.grad is not None and y.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_result_that_is_equal_to_what_a_gradient_is_made_of_may_be_written(backend: str) -> None:
    """Zeros are one node of the graph, both as the written value and as a gradient that depends on no tangent."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        zeros = torch.minimum(x, x)
        zeros.zero_()
        return zeros, torch.maximum(y, zeros)

    def ask(call: Any) -> Any:
        x, y = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        zeros, made = call(x, y)
        zeros.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            torch.autograd.grad(made.sum(), y)
        return torch.autograd.grad(zeros.sum(), x)

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(ask(compiled), ask(program))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_result_outlives_a_differentiable_backward_of_another(backend: str) -> None:
    """Without `retain_graph`, a differentiable backward frees its own saved tensors, and none of the other result."""

    def fn(x: torch.Tensor) -> Any:
        return x.exp(), x.sin()

    for run in (fn, pycompiler.compile(fn, backend=backend, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        a, b = run(x)
        torch.autograd.grad(a.sum(), x, create_graph=True, retain_graph=False)
        (grad,) = torch.autograd.grad(b.sum(), x, create_graph=True, retain_graph=False)
        torch.testing.assert_close(grad, x.cos())
        for freed in (a, b):
            with pytest.raises(RuntimeError, match="a second time"):
                torch.autograd.grad(freed.sum(), x)


def test_a_replay_refuses_a_tensor_that_was_written() -> None:
    """A version counter belongs to a tensor that eager saves and the compiled backward does not take."""
    counter = torch.ones(2, 3)
    ctx = types.SimpleNamespace(kept=[(counter, counter._version)], saved_tensors=())
    look = SavedTensorCheck(None, True, [(0, raiser_of_written(counter))], 0, False)
    assert look(ctx) == []
    counter.add_(1)
    with pytest.raises(
        RuntimeError, match=r"\[torch.FloatTensor \[2, 3\]\] is at version 1; expected version 0 instead"
    ):
        look(ctx)
