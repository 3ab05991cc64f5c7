"""Guards on compared long lists of numbers and strings: one guard for all elements."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.ir.guards import Guard, first_failure
from pycompiler.ir.source import Scope, local

X = torch.ones(2)
LONG = list(range(200))


def compared(x: Any, a: list[Any], b: list[Any]) -> Any:
    return x + (2 if a == b else 3)


def ordered(x: Any, a: list[Any], b: list[Any]) -> Any:
    return x + (2 if a < b else 3)


def against_a_new_one(x: Any, a: list[Any], n: int) -> Any:
    same = a == list(range(n))
    return x + same, a[3]


@pytest.mark.parametrize("program", [compared, ordered])
@pytest.mark.parametrize("change", [None, 0, 70, 199])
def test_of_two_lists(program: Any, change: int | None) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    a, b = list(LONG), list(LONG)
    if change is not None:
        b[change] += 1
    for _ in range(4):
        assert torch.equal(compiled(X, a, b), program(X, a, b))
    assert compiled.counters()["compiles"] == 1
    for where, value in ((0, 5), (199, 0), (100, 100.0), (100, True)):  # each change must be noticed
        before, a[where] = a[where], value
        assert torch.equal(compiled(X, a, b), program(X, a, b))
        a[where] = before
        assert torch.equal(compiled(X, a, b), program(X, a, b))
    a.append(3)
    assert torch.equal(compiled(X, a, b), program(X, a, b))


def test_one_guard_for_all_elements() -> None:
    compiled = pycompiler.compile(against_a_new_one, backend="eager")
    made = list(LONG)
    y, item = compiled(X, made, 200)
    assert (y.tolist(), item) == ([2.0, 2.0], 3)
    assert len(compiled.entries[0].guards) < 12
    assert "200" not in max((str(g) for g in compiled.entries[0].guards), key=len)  # the printed guard is abbreviated
    assert compiled(X, list(LONG), 200)[1] == 3
    assert compiled.counters()["compiles"] == 1
    made[3] = 4
    y, item = compiled(X, made, 200)
    assert (y.tolist(), item) == ([1.0, 1.0], 4)


def test_numbers_that_change_are_symbols_as_before() -> None:
    compiled = pycompiler.compile(lambda x, a: x + a[0] if a != LONG else x, backend="eager")
    for k in range(1, 9):
        assert compiled(X, [k + 1, *LONG[1:]]).tolist() == [k + 2.0] * 2
    assert compiled.counters()["compiles"] <= 3
    assert compiled(X, list(LONG)).tolist() == [1.0, 1.0]
    changing = pycompiler.compile(lambda x, a, b: x + (a == b) + a[1], backend="eager", recompile_limit=4)
    for k in range(4):
        a = [k + 9, k + 20, *LONG]
        assert changing(X, a, list(a)).tolist() == [k + 22.0] * 2


def test_a_list_that_the_frame_has_changed() -> None:
    def program(x: Any, a: list[Any], b: list[Any]) -> Any:
        first = a == b
        a.append(7)
        second = a == b
        b.append(7)
        return x + first + 2 * second + 4 * (a == b)

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(3):
        lists, others = ([list(LONG), list(LONG)] for _ in range(2))
        assert torch.equal(compiled(X, *lists), program(X, *others))
        assert lists == others
    assert compiled.counters()["compiles"] == 1


def test_the_guard_reads_the_list_each_time() -> None:
    gc.collect()
    held = [1, 2.0, "a", b"b", float("nan"), True, (1, -0.0)]
    made = [Guard("equals", local("a"), list(held))]
    tree = _native.GuardTree(made, ["a"])
    others: list[Any] = [
        held, [*held], held[:-1], [*held, 1], [1, 2, *held[2:]], [True, *held[1:]], [*held[:-1], (1, 0.0)], tuple(held), None, []
    ]  # fmt: skip
    for value in others * 2:
        holds = first_failure(made, Scope({"a": value}, {})) is None
        assert (tree.check({"a": value}, {}) is None) == holds, value
        assert holds == any(value is equal for equal in others[:2])
    held[0] = 2
    assert tree.check({"a": held}, {}) is not None
