"""An existing list of which nobody has asked how long it is: what is done at its ends is known from there.

In: the places that the program reads, writes, adds and takes.  Out: which of the list's own elements these are in a list of
any length, by index from its begin or from its end, and what has to be there.
Example: of `rows` with three elements, `rows.append(x)` leaves `first` 0 and `last` 1; then ``rows[-2]`` is what is at -1 when
the frame begins, whatever number that is from the begin.

What is between is as it was.  Who needs more settles the length, which is a guard from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycompiler.ir.source import Source


@dataclass(frozen=True, eq=False)
class Contents:
    """What a list holds at one time: `first` elements at its begin and `last` at its end are known from there, in place of so
    many that it had (`left`, `right`)."""

    items: list[Any]
    emptied: int  # how often by now, whatever was in it
    is_whole: bool = True  # else these are the elements of today
    first: int = 0
    last: int = 0
    left: int = 0
    right: int = 0

    def at_begin(self, until: Contents) -> tuple[list[Any], list[Any]]:
        """What is at the begin now, and what takes its place."""
        return self.items[: self.first + until.left - self.left], until.items[: until.first]

    def at_end(self, until: Contents) -> tuple[list[Any], list[Any]]:
        here, there = self.last + until.right - self.right, until.last
        return self.items[len(self.items) - here :], until.items[len(until.items) - there :]


class Members:
    """Of an existing set whose members nobody has asked for: what went in and out since, in order."""

    def __init__(self, cx: Any, source: Source, real: Any) -> None:
        self.cx, self.source, self.real = cx, source, real
        self.changes: list[tuple[Any, Any]] = []

    def settle(self) -> None:
        """From now on the members are known."""
        self.cx.guard("set_equals", self.source, frozenset(self.real))


class Ends:
    """How far the elements of such a list are known from either end."""

    def __init__(self, cx: Any, source: Source, length: int) -> None:
        self.cx, self.source, self.length = cx, source, length
        self.first = self.last = 0
        self.left = self.right = 0

    def contents(self, items: list[Any]) -> Contents:
        return Contents(list(items), 0, False, self.first, self.last, self.left, self.right)

    def settle(self) -> None:
        """From now on the length is known."""
        self.cx.guard("length", self.source, self.length)

    def covers(self, index: int, items: list[Any]) -> bool:
        """Whether it is known which element is at `index` (not negative: from the begin); one in between is from now on."""
        begin, end = self.first, len(items) - self.last
        at = index if index >= 0 else len(items) + index
        if not begin <= at < end:
            return at < begin if index >= 0 else at >= end
        if index >= 0:
            self.first, self.left = at + 1, self.left + at + 1 - begin
        elif not self._from_end(range(at, end), items):
            return False
        if self.left and self.right:
            self.require()
        return True

    def _from_end(self, places: range, items: list[Any]) -> bool:
        """The elements at these places are counted from the end, unless one is known from the begin."""
        if any(getattr(items[at], "seen", items) is not None for at in places):  # only what nobody has looked at
            return False
        for at in places:
            items[at].source = self.source.item(self.left + at - self.first - self.length)
        self.last, self.right = self.last + len(places), self.right + len(places)
        return True

    def add(self, count: int, *, first: bool) -> None:
        """So many elements more at the begin, or at the end; less, where one goes out."""
        if first:
            self.first += count
        else:
            self.last += count

    def is_filled(self, items: list[Any]) -> bool:
        """Of a list that has elements today."""
        if self.first + self.last == 0:
            self.covers(0, items)
            self.require()
        return True

    def require(self) -> None:
        """What is known from both ends are different elements, and what nobody reads is there."""
        if self.left + self.right:
            place = self.source.item(self.left + self.right - 1)
            self.cx.guard("same_object", place, None, (place,))
