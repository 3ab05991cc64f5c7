"""Graph breaks in a function that a builtin calls: its result goes to the builtin and is not the builtin's own result."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import pytest

import pycompiler


def same(v: Any) -> Any:
    pycompiler.graph_break()
    return v


def large(v: int) -> bool:
    pycompiler.graph_break()
    return v > 2


class Breaks:
    """Each method breaks the graph."""

    @property
    def one(self) -> int:
        return int(same(11))

    two = one

    def method(self) -> int:
        return int(same(12))

    def __getitem__(self, key: int) -> int:
        return int(same(7)) + key

    def __len__(self) -> int:
        return int(same(3))

    def __next__(self) -> int:
        return int(same(9))

    def __eq__(self, other: object) -> bool:
        return bool(same(0))

    def __hash__(self) -> int:
        return int(same(7))


ITEMS = [2, 3, 4]
PROGRAMS: dict[str, Any] = {
    "filter": lambda: (filter(large, ITEMS).__next__(), 77),
    "filterfalse": lambda: (itertools.filterfalse(large, ITEMS).__next__(), 77),
    "takewhile": lambda: (itertools.takewhile(large, [3, 4]).__next__(), 77),
    "dropwhile": lambda: (itertools.dropwhile(large, [3, 1]).__next__(), 77),
    "zip": lambda: (zip(map(same, ITEMS), ITEMS, strict=True).__next__(), 77),
    "enumerate": lambda: (enumerate(map(same, ITEMS)).__next__(), 77),
    "groupby": lambda: (itertools.groupby(ITEMS, same).__next__()[0], 77),
    "accumulate": lambda: (itertools.accumulate([1, 3], lambda a, b: same(a + b)).__next__(), 77),
    "map": lambda: (map(same, ITEMS).__next__(), 77),
    "a generator": lambda: ((v for v in ITEMS if large(v)).__next__(), 77),
    "items of a getter": lambda: (operator.itemgetter(0, 1)(Breaks()), 77),
    "attributes of a getter": lambda: (operator.attrgetter("one", "two")(Breaks()), 77),
    "a method's caller": lambda: (operator.methodcaller("method")(Breaks()), 77),
    "a length": lambda: (Breaks().__len__(), operator.length_hint(Breaks()), bool(Breaks())),
    "a step": lambda: (Breaks().__next__(), next(Breaks())),  # type: ignore[call-overload]
    "a comparison": lambda: (Breaks() == 1, (1, Breaks()) == (1, 2), [Breaks()].count(1), 1 in [Breaks()]),
    "a partial": lambda: (functools.partial(same, 3)(), functools.reduce(lambda a, b: same(a + b), ITEMS)),
    "a sort": lambda: (sorted(ITEMS, key=same), max(ITEMS, key=same), any(map(large, ITEMS))),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_as_eager(program: Any) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        assert compiled() == program()
