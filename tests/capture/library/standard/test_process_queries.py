"""Queries about the process: capture answers and guards them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import pycompiler

X = torch.arange(3.0)


def test_the_recursion_limit_is_the_programs() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + sys.getrecursionlimit()

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    before = sys.getrecursionlimit()
    try:
        for limit in (before, before + 100, before):
            sys.setrecursionlimit(limit)
            assert torch.equal(compiled(X), X + limit)
    finally:
        sys.setrecursionlimit(before)
    assert compiled.counters()["compiles"] == 2


def test_what_traces() -> None:
    def program(x: torch.Tensor) -> Any:
        if torch.fx._symbolic_trace.is_fx_tracing() or not torch.autograd._is_checkpoint_valid():
            return x - 1
        return x + len(_get_current_dispatch_mode_stack())

    assert torch.equal(pycompiler.compile(program, backend="eager", fullgraph=True)(X), X)


def test_partial_objects_have_variables() -> None:
    part = functools.partial(torch.add, other=1)

    def program(x: torch.Tensor) -> Any:
        own = functools.partial(torch.mul, other=2)
        return part(x) if hasattr(part, "__dict__") and hasattr(own, "__dict__") and not hasattr(own, "none") else x

    assert torch.equal(pycompiler.compile(program, backend="eager", fullgraph=True)(X), X + 1)


def test_the_text_of_a_function() -> None:
    def first() -> None: ...

    def second() -> None: ...

    def program(x: torch.Tensor, fn: Callable[[], None]) -> Any:
        return x + len(str(fn)), f"calls {fn}", repr(fn), "{}".format(fn), [fn, str(fn)]

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for fn in (first, first, second):
        got, want = compiled(x, fn), program(x, fn)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    second.__qualname__ = "renamed"
    assert compiled(x, second)[1:] == program(x, second)[1:]
    with pytest.raises(pycompiler.errors.Unsupported):

        def made(x: torch.Tensor) -> Any:
            return x + 1, str(lambda: 1)

        pycompiler.compile(made, backend="eager", fullgraph=True)(x)
