"""Helpers for state that outlives the calls: each call runs beside eager, and the state is compared after each call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pycompiler
from tests.harness.compare import Comparer, compare_outcomes, observe

Program = Callable[..., Any]


class Kept:
    """State that outlives the calls."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Same:
    """A key with the hash of a given value, and equal to that value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(other == self.value)

    def __repr__(self) -> str:
        return f"Same({self.value!r})"


def compiles_over(
    fn: Program,
    make: Callable[[], Any],
    calls: Iterable[tuple[Any, ...]],
    given: Callable[[int, Any, tuple[Any, ...]], tuple[Any, ...]],
    backend: str = "eager",
) -> int:
    """The number of compiles of `fn` over calls with the arguments `given(number,
    state, call)`. Each call must return eager's result and leave eager's state."""
    compiled = pycompiler.compile(fn, backend=backend)
    ours, theirs = make(), make()
    for i, call in enumerate(calls):
        eager, mine = (
            observe(run, given(i, kept, copy.deepcopy(call)), watch=kept)
            for run, kept in ((fn, theirs), (compiled, ours))
        )
        compare_outcomes(eager, mine, Comparer(exact=True))
    return int(pycompiler.counters(compiled)["compiles"])
