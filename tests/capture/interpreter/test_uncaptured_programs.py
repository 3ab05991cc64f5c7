"""Programs that capture does not support yet: each breaks its graph with the named reason and matches eager in each call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

import pycompiler
from tests.harness.compare import assert_same

W = torch.ones(3, requires_grad=True)
LEFT: list[torch.Tensor] = []
torch.func.grad(lambda x: (LEFT.append(x[1:]), x.sum())[1])(torch.ones(4))


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 3


class Empty:
    __slots__ = ()

    def double(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class One(Empty):
    __slots__ = ("held",)


PROGRAMS: list[tuple[str, str | None, Callable[[torch.Tensor], Any]]] = []


def program(name: str, kind: str | None) -> Callable[[Callable[[torch.Tensor], Any]], None]:
    return lambda fn: PROGRAMS.append((name, kind, fn))


@program("while_loop of tensors", None)
def _(x: torch.Tensor) -> Any:
    return while_loop(lambda i, y: i.sum() < 5, lambda i, y: (i + 1, y * 2), (torch.zeros(1), x))


@program("while_loop of a number", None)
def _(x: torch.Tensor) -> Any:
    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y + i), (0, x))


@program("while_loop of a number and a tensor", "inner-graph")
def _(x: torch.Tensor) -> Any:
    return while_loop(lambda i, y: y.sum() < 50, lambda i, y: (i + 1, y + i + 1), (0, x))


@program("a Function that marks what it wrote", None)
def _(x: torch.Tensor) -> Any:
    y = x * 2
    z = Dirty.apply(y)
    return y, z, z is y


@program("gradients of a Function that marks what it wrote", None)
def _(x: torch.Tensor) -> Any:
    y = W * 2
    z = Dirty.apply(y)
    return torch.autograd.grad(z.sum(), W), z.detach()


@program("backward()", None)
def _(x: torch.Tensor) -> Any:
    W.grad = None
    (W * x).sum().backward()
    assert W.grad is not None
    return W.grad * 2


@program("a generator", "running-iterator")
def _(x: torch.Tensor) -> Any:
    def numbers() -> Iterator[int]:
        yield from (1, 2, 3)

    rest = numbers()
    first = next(rest)
    pycompiler.graph_break()
    return x + first + next(rest), list(rest)


@program("a tensor of a transform that is over", "unsupported-type")
def _(x: torch.Tensor) -> Any:
    return LEFT[0] + x


@program("catch_warnings", "skipped-call")
def _(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("here", stacklevel=1)
        y = x + 1
    return y * 2, [str(w.message) for w in seen]


@program("empty slots", None)
def _(x: torch.Tensor) -> Any:
    made, held = Empty(), One()
    held.held = x  # type: ignore[attr-defined]
    try:
        made.more = 1  # type: ignore[attr-defined]
    except AttributeError as e:
        return made.double(x) + held.double(held.held), str(e), hasattr(made, "__dict__")  # type: ignore[attr-defined]


@program("empty slots over a break", "explicit-break")
def _(x: torch.Tensor) -> Any:
    made = Empty()
    pycompiler.graph_break()
    return made.double(x)


@pytest.mark.parametrize(("kind", "fn"), [pytest.param(k, f, id=n) for n, k, f in PROGRAMS])
def test_it_is_eagers(kind: str | None, fn: Callable[[torch.Tensor], Any]) -> None:
    compiled = pycompiler.compile(fn)
    for k in range(3):
        x = torch.arange(3.0) + k
        assert_same(compiled(x.clone()), fn(x.clone()))
    kinds = {b.kind for b in pycompiler.explain(fn)(torch.arange(3.0)).break_reasons}
    assert kinds == set() if kind is None else kind in kinds
