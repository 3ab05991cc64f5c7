"""Lists and sets whose length or members are not guarded yet.

In: the places that the program reads, writes, adds and removes near the ends of an existing list. Out: the list's own
elements at these places, by index from its begin or its end, valid for a list of any length; and the least length
required.

Example: `rows` has three elements.  `rows.append(x)` leaves `first` 0 and `last` 1.  Then ``rows[-2]`` is the element
at -1 when the frame begins, whatever its index from the begin.

The elements in between are unchanged.  Code that needs more calls `settle`, which guards the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycompiler.ir.source import Source


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents of a list at one time.

    `first` elements at the begin and `last` at the end are known.  They replace `left` and `right` elements of the
    original.
    """

    items: list[Any]
    emptied: int  # how often the list was emptied so far
    is_whole: bool = True  # False: the elements in between hold for this call only
    first: int = 0
    last: int = 0
    left: int = 0
    right: int = 0

    def at_begin(self, until: Contents) -> tuple[list[Any], list[Any]]:
        """The elements at the begin now, and the elements that replace them."""
        return self.items[: self.first + until.left - self.left], until.items[: until.first]

    def at_end(self, until: Contents) -> tuple[list[Any], list[Any]]:
        here, there = self.last + until.right - self.right, until.last
        return self.items[len(self.items) - here :], until.items[len(until.items) - there :]


class UnguardedMembers:
    """Additions and removals, in order, of an existing set whose members are not guarded."""

    def __init__(self, cx: Any, source: Source, real: Any) -> None:
        self.cx, self.source, self.real = cx, source, real
        self.changes: list[tuple[Any, Any]] = []

    def settle(self) -> None:
        """Guard the members."""
        self.cx.guard("set_equals", self.source, frozenset(self.real))


class KnownEnds:
    """The number of elements that are known from either end of an existing list."""

    def __init__(self, cx: Any, source: Source, length: int) -> None:
        self.cx, self.source, self.length = cx, source, length
        self.first = self.last = 0
        self.left = self.right = 0

    def contents(self, items: list[Any]) -> Contents:
        return Contents(list(items), 0, False, self.first, self.last, self.left, self.right)

    def settle(self) -> None:
        """Guard the length."""
        self.cx.guard("length", self.source, self.length)

    def covers(self, index: int, items: list[Any]) -> bool:
        """Whether the element at `index` is known from that end (from the begin if `index` is not negative).

        An element in between becomes known by this call.
        """
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
        """Count the elements at these places from the end, unless one of them is known from the begin."""
        # Only elements that the program has not used.
        if any(getattr(items[at], "seen", items) is not None for at in places):
            return False
        for at in places:
            items[at].source = self.source.item(self.left + at - self.first - self.length)
        self.last, self.right = self.last + len(places), self.right + len(places)
        return True

    def add(self, count: int, *, first: bool) -> None:
        """Add `count` elements at the begin or at the end; a negative count removes."""
        if first:
            self.first += count
        else:
            self.last += count

    def is_filled(self, items: list[Any]) -> bool:
        """Guard that a list with elements in this call is never empty.  Returns True."""
        if self.first + self.last == 0:
            self.covers(0, items)
            self.require()
        return True

    def require(self) -> None:
        """Guard that the list is long enough: elements known from both ends are distinct, and unused ones among them
        exist."""
        if self.left + self.right:
            place = self.source.item(self.left + self.right - 1)
            self.cx.guard("same_object", place, None, (place,))
