"""`torch.autograd.grad` and tensor hooks inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ["aot_eager", "native"]
W = torch.linspace(-1, 1, 9).view(3, 3)


def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).tanh().sum()
    a, b = torch.autograd.grad(y, [x, w], create_graph=True)
    return (a * a).sum() + (b * b).sum()


def first_order(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (a,) = torch.autograd.grad((x @ w).tanh(), x, torch.ones(3, 3))
    return a * w + (x * w).sin()


def unused(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = torch.autograd.grad((x * 2).sum(), (x, w), allow_unused=True)
    return a + w, b is None


def hooked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    y.register_hook(lambda g: g * 3)
    return y.sin().sum()


def hooked_and_written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y, k = x @ w, x.detach() + 1
    y.register_hook(lambda g: g * k)
    y.mul_(2)
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: None)
    return y.sum()


def hooked_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: g * w.detach())
    (a,) = torch.autograd.grad(y.sin().sum(), x)
    return a + w


PROGRAMS = [penalty, first_order, unused, hooked, hooked_and_written, hooked_inside]


def gradients(fn: Callable[..., Any]) -> Any:
    x, w = W.cos().requires_grad_(), W.clone().requires_grad_()
    out = fn(x, w)
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    return out, x.grad, w.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_eager(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(program))


def test_a_gradient_does_not_leave_the_graph() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((x * w).sum(), w)[0]

    compiled = pycompiler.compile(program, backend="eager")
    w = W.clone().requires_grad_()
    assert torch.equal(compiled(W, w), W)
    inner = w * 2  # its history leads to w
    assert torch.equal(compiled(inner, w), program(w * 2, w))
    with pytest.raises(pycompiler.exc.Unsupported, match="computed outside|has autograd history"):
        pycompiler.compile(program, backend="eager", fullgraph=True)(w * 2, w)


def test_hooks_of_a_leaf_are_called() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((x * 3).sum(), x)[0]

    compiled = pycompiler.compile(program, backend="eager")
    x = W.clone().requires_grad_()
    assert torch.equal(compiled(x), torch.full((3, 3), 3.0))
    x.register_hook(lambda g: g * 5)
    assert torch.equal(compiled(x), torch.full((3, 3), 15.0))


def test_hooks_that_do_more_break_the_graph() -> None:
    seen: list[Any] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(seen.append)
        handle = y.register_hook(lambda g: g * 7)
        handle.remove()
        return y.sum()

    x = W.clone().requires_grad_()
    pycompiler.compile(program, backend="eager")(x).backward()
    assert len(seen) == 1 and torch.equal(x.grad, torch.full((3, 3), 2.0))


@pytest.mark.parametrize("wanted", [True, False])
def test_requires_grad_of_what_is_so_is_nothing(wanted: bool) -> None:
    """The call breaks the graph where the flag changes."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.requires_grad_(wanted).sin() * 2

    compiled = pycompiler.compile(program, backend="eager")
    for requires_grad in (wanted, not wanted, wanted):
        given = [W.clone().requires_grad_(requires_grad) for _ in range(2)]
        expected, found = program(given[0]), compiled(given[1])
        assert torch.equal(expected, found) and expected.requires_grad == found.requires_grad == wanted
        assert given[1].requires_grad == wanted
    pycompiler.compile(program, backend="eager", fullgraph=True)(W.clone().requires_grad_(wanted))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_a_hook_looks_at_may_not_change_before_the_backward(backend: str) -> None:
    scale = {"by": 2.0}

    def program(x: torch.Tensor) -> Any:
        y = x * 1
        other = y * 5
        y.register_hook(lambda g: g * scale["by"])
        return y * 2, other

    compiled = pycompiler.compile(program, backend=backend)
    for at in (0, 1):
        x = torch.ones(3, requires_grad=True)
        results = compiled(x)
        results[at].sum().backward()
        assert torch.equal(x.grad, torch.full((3,), (2.0, 5.0)[at] * scale["by"]))
        changed = compiled(x)
        scale["by"] += 1
        with pytest.raises(RuntimeError, match="or a hook reads has changed"):
            changed[at].sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_whether_a_gradient_lies_as_wanted_is_not_known(backend: str) -> None:
    """`contiguous` returns its argument or a copy."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 2 if g.contiguous() is g else g * 3)
        return y.sum() * 1

    grads = []
    for run in (fn, pycompiler.compile(fn, backend=backend)):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        run(x).backward()
        grads.append(x.grad)
    assert torch.equal(grads[0], grads[1])


# hooks of existing tensors --------------------------------------------------------------------------------------


def of_an_argument(x: torch.Tensor, seen: list[Any]) -> Any:
    x.register_hook(lambda g: g * 2)
    return (x * 3).sum()


def kept(x: torch.Tensor, seen: list[Any]) -> Any:
    handle = x.register_hook(lambda g: seen.append(g.clone()))
    seen.append(handle)
    return (x * 3).sum(), handle, handle


def removed(x: torch.Tensor, seen: list[Any]) -> Any:
    handle = x.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g + 1)
    y = (x * 3).sum()
    handle.remove()
    handle.remove()
    return y, handle


def of_a_break(x: torch.Tensor, seen: list[Any]) -> Any:
    handle = x.register_hook(lambda g: g * 2)
    y = x * 3
    pycompiler.graph_break()
    seen.append(handle.id >= 0)
    handle.remove()
    return y.sum()


def asked_inside(x: torch.Tensor, seen: list[Any]) -> Any:
    x.register_hook(lambda g: g * 2)
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return y + g.sum()


@pytest.mark.parametrize("program", [of_an_argument, kept, removed, of_a_break, asked_inside], ids=lambda p: p.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_hooks_of_arguments(program: Callable[..., Any], backend: str) -> None:
    whole = program not in (of_a_break, asked_inside)
    compiled = pycompiler.compile(program, backend=backend, fullgraph=whole)
    for _ in range(2):
        found = []
        for fn in (program, compiled):
            x, seen = torch.linspace(0, 1, 3, requires_grad=True), []
            result = fn(x, seen)
            first, *handles = result if isinstance(result, tuple) else (result,)
            first.backward()
            assert all(h is handles[0] and isinstance(h, torch.utils.hooks.RemovableHandle) for h in handles)
            assert not handles or (handles[0].id in x._backward_hooks) is (program is kept)
            found.append((x.grad.tolist(), len(x._backward_hooks), [str(v) for v in seen if not hasattr(v, "id")]))
        assert found[0] == found[1]


def test_a_hook_of_what_has_a_history_breaks_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 2)
        return x * 3

    compiled = pycompiler.compile(program, backend="eager")
    for fn in (program, compiled):
        leaf = torch.ones(3, requires_grad=True)
        fn(leaf * 2).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [12.0] * 3
    with pytest.raises(RuntimeError, match="doesn't require grad"):
        compiled(torch.ones(3))


def test_a_gradient_is_stored_in_a_new_tensor() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x + 10
        y.grad = x
        y.note = 42  # type: ignore[attr-defined]
        z = y.grad * 2 + y
        y.add_(1)
        other = y.detach()
        other.grad = z
        other.grad = None
        return y, z, other, other.grad is None, (x * 2).grad

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for n in (3, 3, 4):
        x = torch.arange(float(n))
        got, want = compiled(x), program(x)
        assert all(torch.equal(a, b) for a, b in zip(got[:3], want[:3], strict=True)) and got[3:] == want[3:]
        assert got[0].grad is x and got[0].note == 42 and got[2].grad is None


@pytest.mark.parametrize("wanted", [torch.ones(2), torch.ones(3, dtype=torch.float64), 3])
def test_a_gradient_that_eager_refuses(wanted: Any) -> None:
    def program(x: torch.Tensor, grad: Any) -> torch.Tensor:
        y = x + 1
        y.grad = grad
        return y

    with pytest.raises((RuntimeError, TypeError)):
        program(torch.ones(3), wanted)
    with pytest.raises((RuntimeError, TypeError)):
        pycompiler.compile(program, backend="eager")(torch.ones(3), wanted)


def test_a_gradient_of_what_autograd_knows_breaks() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = (x * 2).detach()
        y.grad = x * 3
        y.requires_grad_()
        (y * w).sum().backward()
        return y.grad

    x, w = torch.ones(3), torch.arange(3.0)
    assert torch.equal(pycompiler.compile(program, backend="eager")(x, w), program(x, w))


def test_inputs_from_an_iterator() -> None:
    torch.manual_seed(0)
    module, v = torch.nn.Linear(3, 2), torch.randn(2, 3)

    def program(x: torch.Tensor) -> Any:
        first = torch.autograd.grad(module(x).pow(4).mean(), module.parameters(), create_graph=True)
        return torch.autograd.grad((first[0] * v).sum(), {"w": module.weight, "b": module.bias}.values())

    compiled = pycompiler.compile(program, fullgraph=True)
    for n in (2, 3, 4):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), program(x))


def test_a_parameter_that_is_written_and_stored() -> None:
    def program(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            module.weight -= 0.1 * x.sum()
            module.bias += 1
        assert module.weight.grad_fn is None
        return module(x)  # type: ignore[no-any-return]

    compiled = pycompiler.compile(program, fullgraph=True)
    found = []
    for call in (program, compiled):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 2)
        weight = module.weight
        made = [call(module, torch.ones(n, 3)) for n in (2, 2, 3)]
        made[-1].sum().backward()
        assert module.weight is weight
        found.append((made, weight.detach().clone(), weight.grad))
    torch.testing.assert_close(found[1], found[0])


def saliency(x: torch.Tensor) -> Any:
    hidden = BODY[0](x)
    hidden.retain_grad()
    hidden.retain_grad()
    told = hidden.retains_grad, hidden.grad is None
    wide = hidden.t().tanh()
    wide.retain_grad()
    BODY[1](wide.t()).pow(2).sum().backward()
    return hidden.grad, wide.grad * 2, told, hidden.detach()


def added(x: torch.Tensor) -> Any:
    hidden = BODY[0](x).tanh()
    hidden.retain_grad()
    hidden.sum().backward(retain_graph=True)
    hidden.pow(2).sum().backward()
    return hidden.grad


def unreached(x: torch.Tensor) -> Any:
    hidden = BODY[0](x)
    other = hidden * 2
    other.retain_grad()
    hidden.sum().backward()
    return other.grad


def hooked(x: torch.Tensor) -> Any:
    hidden, other = BODY[0](x).tanh(), BODY[0](x).sin()
    hidden.retain_grad()
    hidden.register_hook(lambda g: g * 3)
    other.register_hook(lambda g: g * 2)
    other.retain_grad()
    (hidden * other).sum().backward()
    return hidden.grad, other.grad


def test_hooks_beside_kept_gradients_are_eagers() -> None:
    x = torch.ones(2, 3)
    torch.testing.assert_close(pycompiler.compile(hooked)(x), hooked(x))


def gives_it(x: torch.Tensor) -> Any:
    hidden = BODY[0](x)
    hidden.retain_grad()
    hidden.sum().backward()
    return hidden, hidden.grad


BODY = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("fn", [saliency, added, unreached])
def test_gradients_of_results(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n in (2, 3, 4):
        found = []
        for call in (fn, compiled):
            BODY.zero_grad()
            torch.manual_seed(n)
            made = call(torch.randn(n, 3))
            strides = [t.stride() for t in made if isinstance(t, torch.Tensor)] if isinstance(made, tuple) else []
            found.append((made, strides, [p.grad for p in BODY.parameters()]))
        torch.testing.assert_close(found[1], found[0])


def test_a_result_that_keeps_its_gradient_and_leaves_the_graph() -> None:
    report = pycompiler.explain(gives_it)(torch.ones(2, 3))
    assert report.graph_break_count > 0
    compiled = pycompiler.compile(gives_it)
    for call in (gives_it, compiled):
        hidden, grad = call(torch.ones(2, 3))
        assert hidden.retains_grad and torch.equal(hidden.grad, grad)


def asked_for(x: torch.Tensor) -> Any:
    hidden = BODY[0](x)
    hidden.retain_grad()
    loss = BODY[1](hidden).pow(2).sum()
    (grad,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    before = hidden.grad
    loss.backward()
    return grad, before, hidden.grad


def test_autograd_grad_keeps_gradients_of_results_too() -> None:
    compiled = pycompiler.compile(asked_for)
    for n in (2, 3, 4):
        x = torch.ones(n, 3)
        torch.testing.assert_close(compiled(x), asked_for(x))
    assert pycompiler.explain(asked_for)(torch.ones(2, 3)).graph_break_count > 0


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("leaf", [W.t(), W.expand(2, 3, 3).permute(2, 0, 1), W[:, :2], W[0].expand(3, 3)], ids=str)
def test_a_gradient_lies_as_its_leaf(leaf: torch.Tensor, backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        loss = (x * x.detach().contiguous().cos()).sum()
        loss.backward()
        return loss

    x, given = leaf.detach().requires_grad_(), leaf.detach().requires_grad_()
    program(x)
    pycompiler.compile(program, backend=backend, fullgraph=True)(given)
    assert x.grad is not None and given.grad is not None and given.grad.stride() == x.grad.stride()
    torch.testing.assert_close(given.grad, x.grad)


def test_a_result_behind_a_backward_leads_to_its_leaf() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss

    for fn in (program, pycompiler.compile(program, backend="eager", fullgraph=True)):
        x = W.clone().requires_grad_()
        loss = fn(x)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(loss, x)
