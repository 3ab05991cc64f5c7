"""Gradients of graphs over tensor subclasses: by results that other results use, and by inputs that depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pycompiler

BACKENDS = ("aot_eager", "native")
Program = Callable[..., tuple[torch.Tensor, ...]]


def leaf(n: int) -> Any:
    parts = (torch.linspace(start, 1, n, dtype=torch.float64) for start in (-0.7, 0.2))
    return TwoTensor(*parts).requires_grad_()  # type: ignore[no-untyped-call]


def inside(tensors: Any) -> list[Any]:
    return [None if t is None else (t.a, t.b) if isinstance(t, TwoTensor) else t for t in tensors]


def apart(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * y, (x + y).exp()


def in_a_row(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x.exp()
    return z, z * y


def one_of_several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin() * y, torch.cat([x, y]).tanh()


PROGRAMS = [apart, in_a_row, one_of_several]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_by_results(program: Program, backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    for n in (3, 4):
        found = []
        for run in (program, compiled):
            x, y = leaf(n), leaf(n)
            made = run(x, y)
            loss = sum((t * t).sum() for t in made)
            once = torch.autograd.grad(loss, [*made, x, y], retain_graph=True)
            first = torch.autograd.grad(loss, [*made, x, y], create_graph=True)
            total = sum((g * g).sum() for g in first[len(made) :])
            second = torch.autograd.grad(total, [*made, x, y], allow_unused=True, create_graph=True)
            third = torch.autograd.grad(sum(t.sum() for t in second if t is not None), [x, y])
            found.append(inside([*once, *first, *second, *third]))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_inputs_that_depend_on_each_other(program: Program, backend: str) -> None:
    """The source of one input must not receive the gradient through that input twice:
    neither where a result has no gradient, nor in gradients that are differentiated."""
    compiled = pycompiler.compile(program, backend=backend)
    for asked in (0, 1):
        for creates in (False, True):
            found = []
            for run in (program, compiled):
                x = leaf(3)
                y = x * 2
                made = run(x, y)
                total = (made[asked] ** 2).sum()
                found.append(inside(torch.autograd.grad(total, (x, y), create_graph=creates, allow_unused=True)))
            torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("creates", [False, True])
def test_a_result_that_was_written(creates: bool, backend: str) -> None:
    """`exp` saves its result: after a write its gradient is an error, but the gradient by the other result is not."""
    compiled = pycompiler.compile(apart, backend=backend)
    found = []
    for run in (apart, compiled):
        x, y = leaf(3), leaf(3)
        a, b = run(x, y)
        with torch.no_grad():
            b.add_(1)
        (first,) = torch.autograd.grad(a.sum(), x, create_graph=creates)
        found.append(inside([first]))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(b.sum(), x, create_graph=creates)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_gradient_of_two_leaves_is_added_to_once_for_each(backend: str) -> None:
    def run(fn: Callable[..., torch.Tensor]) -> list[Any]:
        x, y = leaf(3), leaf(3)
        result = fn(x, y).sum()
        for _ in range(2):
            first = torch.autograd.grad(result, (x, y), create_graph=True)
            sum((g * g).sum() for g in first).backward(retain_graph=True)  # type: ignore[union-attr]
        return inside((x.grad, y.grad))

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).square()

    torch.testing.assert_close(run(pycompiler.compile(fn, backend=backend)), run(fn))
