"""Inlined comprehensions (PEP 709, since 3.12): the comprehension variable takes the slot of a variable that closures share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

ITEMS = [2, 5]


def brk(value: Any) -> Any:
    pycompiler.graph_break()
    return value


def shared(x: Any) -> Any:
    v = x
    g = lambda: v
    a = [brk(v) + g() for v in ITEMS]
    v = v + 1
    return a, v, g()


def nested(x: Any) -> Any:
    v = x
    g = lambda: v
    a = [[brk(v) + brk(g()) for v in ITEMS] for v in ITEMS for w in [brk(v)]]
    return a, v, g(), [v for v in a]


def raises_inside(x: Any) -> Any:
    g = lambda: v
    try:
        [x / brk(v) for v in (1, 0)]
    except ZeroDivisionError:
        v = brk(4)
    return g(), {v: brk(v) for v in ITEMS}, v


def both_are_cells(x: Any) -> Any:
    v = x
    a = [brk(lambda: v) for v in ITEMS]
    b = [k() for k in a]
    g = lambda: v
    return b, g(), {brk(v) for v in ITEMS}, v, g()


def written_while_saved(x: Any) -> Any:
    v = x

    def write() -> None:
        nonlocal v
        v = v + 10

    a = [(write(), brk(v)) for v in ITEMS]
    return a, v


@pytest.mark.parametrize("fn", [shared, nested, raises_inside, both_are_cells, written_while_saved])
def test_a_break_inside(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for x in (1, 1, 3):
        assert compiled(x) == fn(x)


def test_a_cell_in_the_slot_of_a_free_variable() -> None:
    """3.12 leaves the comprehension's cell in the slot, so `v` is 2 afterwards; the compiled code follows the running Python."""

    def made(v: int) -> Callable[[torch.Tensor], Any]:
        def program(x: torch.Tensor) -> Any:
            found = [(lambda: v)() for v in (1, 2)]
            return x + v, v, found

        return program

    def outer(x: torch.Tensor) -> Any:
        return [made(k)(x) for k in (3, 4)]

    for program in (made(5), outer):
        compiled = pycompiler.compile(program, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))
