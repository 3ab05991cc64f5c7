"""Second derivatives of some results of a graph: tensors that these results need are read and version-checked, and no
others, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import grad

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("aot_eager", "native")


def matrix(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()


def tried(ask: Callable[[], Any]) -> Any:
    """The result, or the start of the error message."""
    try:
        return ask()
    except RuntimeError as error:
        return type(error), str(error).partition(":")[0]


def as_eager(fn: Callable[..., Any], ask: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    expected = tried(lambda: ask(fn))
    for _ in range(2):
        assert_same(tried(lambda: ask(compiled)), expected)
    assert pycompiler.counters(compiled)["compiles"] == 1


def _flip(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.flip(0), w * 2


def _apart(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.sin(), w.sin()


def _joined(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x * w).exp(), (x @ w.T).tanh() + 1


def _deep(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x.sin() * 2).exp().sum(), (w * x).cos()


def _ended(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x * w).exp()
    return y, y.sin() * w


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("program", [_flip, _apart, _joined, _deep, _ended])
def test_what_was_freed_was_anothers(program: Callable[..., Any], retain: bool, backend: str) -> None:
    """The other result's tensors are freed by a backward without retain_graph, or by a backward that is differentiated."""

    def ask(first: int, freed_by: str) -> Callable[..., Any]:
        def of(run: Any) -> Any:
            x, w = matrix(), matrix(1)
            made = run(x, w)
            one, other = made[first].sum(), made[1 - first].sum()
            if freed_by == "backward":
                one.backward(retain_graph=retain)
            else:
                grad(one, (x, w), create_graph=True, retain_graph=retain, allow_unused=True)
            return [x.grad, w.grad, *(tried(lambda of=of: twice(of, x, w)) for of in (other, one, other))]

        return of

    def twice(of: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        slopes = grad(of, (x, w), create_graph=True, allow_unused=True)
        size = sum(t.pow(2).sum() for t in slopes if t is not None)
        return slopes, grad(size, (x, w), allow_unused=True, retain_graph=True) if size.requires_grad else ()

    for first in range(2):
        for freed_by in ("backward", "a second derivative"):
            as_eager(program, ask(first, freed_by), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("result", range(2))
@pytest.mark.parametrize("written", ["first", "second", "x", "w"])
def test_writes_to_what_another_result_keeps(written: str, result: int, backend: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x.sin() * x, w.cos()

    def ask(run: Any) -> Any:
        x, w = matrix(), matrix(1)
        made = run(x, w)
        with torch.no_grad():
            {"first": made[0], "second": made[1], "x": x, "w": w}[written].mul_(2)
        slopes = grad(made[result].sum(), (x, w), create_graph=True, allow_unused=True)
        return slopes, [grad(s.sum(), (x, w), allow_unused=True) for s in slopes if s is not None]

    as_eager(program, ask, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_a_result_that_is_kept(backend: str) -> None:
    """Nodes save the result, and the caller's write separates it from the gradients of these nodes."""

    def program(x: torch.Tensor) -> Any:
        v = (x.abs() + 0.5).rsqrt()
        return nn.functional.pairwise_distance(x.detach(), v), v

    def ask(run: Any) -> Any:
        x = matrix()
        u, v = run(x)
        v[0].mul_(3)
        return grad([u.sum(), v.sum()], x, create_graph=True)

    as_eager(program, ask, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_is_written_by_another_name(backend: str) -> None:
    """Its derivatives belong to the caller's tensor from before the write."""

    def program(x: torch.Tensor) -> Any:
        v = x.sin()
        u = v * 2
        v.detach().mul_(0.5)
        return u, v

    def ask(run: Any) -> Any:
        x = matrix()
        u, v = run(x)
        return grad(u.sum(), [x, v], create_graph=True)

    as_eager(program, ask, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["recorded", "not recorded", "in part"])
def test_a_result_that_is_written_when_gradients_end_at_it(how: str, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        v = x * 3
        return v, nn.functional.pairwise_distance(v, x)

    def ask(run: Any) -> Any:
        x = matrix()
        v, u = run(x)
        with torch.set_grad_enabled(how != "not recorded"):
            (v[0] if how == "in part" else v).add_(0.5)
        slopes = grad(u.sum(), [x], create_graph=True)
        return slopes, grad([slopes[0].pow(2).sum(), v.sin().sum()], [x], allow_unused=True)

    as_eager(program, ask, backend)


PADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an argument": lambda x: nn.functional.pad(x, (1, 1), mode="reflect"),
    "what was computed from one": lambda x: nn.functional.pad((x * 2)[None], (1, 1, 1, 1), mode="reflect") * 2,
    "a view of one": lambda x: nn.functional.pad(x.t(), (1, 1), mode="reflect"),
    "what nothing is computed from": lambda x: nn.functional.pad(x.detach(), (1, 1), mode="reflect") * x.mean(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("of", ["leaf", "other work"])
@pytest.mark.parametrize("name", PADDED)
def test_what_is_kept_for_its_history_alone(name: str, of: str, backend: str) -> None:
    """The derivative of reflection padding saves its argument but does not depend on its values: its own derivative is zeros."""

    def ask(run: Any) -> Any:
        x = matrix()
        tangent = torch.ones((), dtype=torch.float64, requires_grad=True)
        (slope,) = grad(run(x if of == "leaf" else x * 3).sum(), x, tangent, create_graph=True)
        return slope, grad(slope.sum(), x, allow_unused=True)

    as_eager(PADDED[name], ask, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_a_result_that_is_kept_and_not_led_to(backend: str) -> None:
    """The node of a one-element product saves its result, and no derivative of its gradient passes the result."""

    def ask(run: Any) -> Any:
        x, seen = matrix(), []
        y = run(x * 1)
        y.register_hook(lambda g: seen.append(None if g is None else g.detach()))
        (slope,) = grad(y.sum(), x, create_graph=True)
        return slope, grad((slope.norm() - 2) ** 2, x), seen

    as_eager(lambda x: x.norm().prod(), ask, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", range(2))
def test_a_result_that_one_gradients_derivative_passes(first: int, backend: str) -> None:
    """The derivative of the other gradient does not pass it: it frees nothing on that path, and calls no hook."""

    def ask(run: Any) -> Any:
        x, w, seen = matrix(), matrix(1), []
        y = run(x, w)
        y.register_hook(lambda g: seen.append(None if g is None else g.detach()))
        tangent = torch.ones_like(y).requires_grad_()
        slopes = grad(y, (x, w), tangent, create_graph=True)
        found = []
        for k in (first, 1 - first):
            found += [grad(slopes[k].sum(), (x, w), allow_unused=True), len(seen)]
        return slopes, found, seen

    as_eager(lambda x, w: x.ldexp(w), ask, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_piece_that_was_taken_without_gradients_has_no_history(backend: str) -> None:
    """Its `requires_grad` is True, as for its base."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            piece = x.split(2, -1)[0]
        return piece.max(), x.sum()

    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for fn in (program, compiled):
        found, total = fn(x * 1)
        assert found.item() == 9.0
        [grad] = torch.autograd.grad(total, x, create_graph=True)
        assert grad.tolist() == [[1.0] * 4] * 3
