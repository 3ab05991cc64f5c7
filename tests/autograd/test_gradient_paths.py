"""Backwards of a graph's outputs one by one, written or not: each follows its own nodes, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("aot_eager", "native")


def _shared(x: Any) -> Any:
    y = x.exp()
    return y.sin(), y.cos(), x.sqrt()


def _write(outs: Any) -> None:
    with torch.no_grad():
        outs[0].mul_(2)


def _both(outs: Any) -> None:
    (outs[0] + outs[1]).sum().backward()


PROGRAMS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "one sum, as often as you like": (lambda x: (x.exp(), x.sum()), [0, 1, 1, 0]),
    "each once": (lambda x: (x.exp(), x.sin()), [0, 1, 1, 0]),
    "each once, the other way": (lambda x: (x.exp(), x.sin()), [1, 0, 1, 0]),
    "a common node": (_shared, [0, 2, 1]),
    "two, then the others": (lambda x: (x.exp(), x.sin(), x.sum(), x.sqrt()), [_both, 2, 3, 3, 2, 0]),
    "written, the other first": (lambda x: (x.exp(), x.sin()), [_write, 1, 0]),
    "written, itself first": (lambda x: (x.exp(), x.sin()), [_write, 0, 1]),
    "written between": (lambda x: (x.exp(), x.sin()), [1, _write, 0]),
    "written, kept by eager only": (lambda x: (x.std(0, keepdim=True), x.cumsum(0)), [_write, 1, 0]),
    "a product written": (lambda x: (x.prod(0, keepdim=True),), [_write, 0]),
    "a relu written": (lambda x: (x.relu(),), [_write, 0]),
    "a sum written": (lambda x: (x.sum(0, keepdim=True),), [_write, 0]),
}


def _outcome(fn: Any, steps: list[Any]) -> list[Any]:
    x = torch.arange(1.0, 5.0, dtype=torch.float64).requires_grad_()
    outs = fn(x.clone())
    seen: list[Any] = []
    for step in steps:
        try:
            step(outs) if callable(step) else outs[step].sum().backward()
        except RuntimeError as error:
            seen.append(str(error)[:40])
        else:
            seen.append(None if x.grad is None else x.grad.clone())
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_one_by_one(name: str, backend: str) -> None:
    fn, steps = PROGRAMS[name]
    expected = _outcome(fn, steps)
    assert_same(_outcome(pycompiler.compile(fn, backend=backend), steps), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_eager_keeps_is_written(backend: str) -> None:
    """The backward needs only a mask, computed in the forward: the gradient would be right, but eager raises."""
    for fn in (torch.maximum, pycompiler.compile(lambda x, y: torch.maximum(x, y), backend=backend)):
        x, y = torch.ones(3, requires_grad=True), torch.arange(3.0)
        out = fn(x.clone(), y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_eager_does_not_keep_is_written(backend: str) -> None:
    """Eager saves the result, and so does the compiled graph, instead of a recompute from the argument."""
    for op in (torch.exp, torch.relu, torch.sigmoid):
        leaf = torch.randn(5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        x = leaf.clone()
        out = pycompiler.compile(lambda x, op=op: op(x), backend=backend)(x)
        with torch.no_grad():
            x.add_(1)
        (got,) = torch.autograd.grad(out.sum(), leaf)
        (expected,) = torch.autograd.grad(op(leaf).sum(), leaf)
        torch.testing.assert_close(got, expected)
