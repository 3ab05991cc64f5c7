"""Lists, tuples, deques and slices of values.

A container that existed before the frame has a source.  Its elements are `LazyObject` until used, and its length is guarded
when read.  Changes to it are replayed at the end (`capture/effects/side_effects.py`).
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.base import NEEDED, Capture, LazyObject, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.list_ends import Contents, KnownEnds
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, hint_value, source_of_open
from pycompiler.ir.computed_sources import NUMBERS, fold_container, fold_numbers, overflows
from pycompiler.ir.iterator_state import length_of
from pycompiler.ir.source import const_source


class Sequence(Value):
    """The base of lists and tuples.

    - `raw`: the elements, without a guard on their number.
    - `reach`: for an existing container, the facts that hold while its length is not guarded (`list_ends.py`).
    """

    reach: KnownEnds | None = None

    def __init__(self, items: list[Value], cls: type) -> None:
        self.raw = items
        self.cls = cls

    @property
    def items(self) -> list[Value]:
        """All elements.  The length becomes guarded."""
        if self.reach is not None:
            self.reach.settle()
            self.reach = None
        return self.raw

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.raw, self.reach = items, None

    def length(self, cx: Capture) -> Value:
        reach = self.reach
        known = None if reach is None else cx.sizes.integer(reach.length, reach.source.then("begun", length_of))
        if reach is None or known is None:
            return Const(len(self.items))
        return cx.make(known + (len(self.raw) - reach.length))

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.raw)}"

    __repr__ = describe

    def python_type(self) -> type:
        return self.cls

    def at(self, cx: Capture, index: int) -> Value:
        item = self.items[index]
        if isinstance(item, LazyObject):
            item = self.items[index] = cx.realize(item)
        return item

    def iterate(self, cx: Capture) -> Iterator[Value]:
        i = 0
        while i < len(self.items):  # live: a list may grow while it is iterated
            yield self.at(cx, i)
            i += 1

    def backwards(self, cx: Capture) -> Iterator[Value]:
        """The elements from the current last one on, backwards.  Ends early if the list has become shorter."""

        def each(i: int) -> Iterator[Value]:
            while 0 <= i < len(self.items):
                yield self.at(cx, i)
                i -= 1

        return each(len(self.items) - 1)

    def contains(self, cx: Capture, item: Value) -> bool:
        return any(cx.alike(v, item) for v in self.iterate(cx))

    def _changes(self, cx: Capture, reach: KnownEnds) -> bool:
        """Whether an existing list's length changes between calls."""
        return cx.sizes.integer(reach.length, reach.source.then("begun", length_of)) is not None

    def _part(self, bounds: slice) -> list[Value] | None:
        """The elements of a slice near one end, if every call has as many elements there; None for any other slice."""
        start, stop, size = bounds.start or 0, bounds.stop, len(self.raw)
        at_end = start < 0 and (stop is None or stop < 0) and -start <= size
        at_begin = start >= 0 and stop is not None and start < stop <= size
        if self.reach is None or bounds.step not in (None, 1) or not (at_end or at_begin):
            return None
        # A slice of the whole tuple would be the very tuple.
        more = isinstance(self, Tuple) and (stop is None or start == 0)
        self.place(start - more if at_end else stop - 1 + more)
        if self.reach is not None:
            self.reach.require()
        return self.raw[bounds]

    def place(self, index: int) -> int | None:
        """The place in `raw` of the element at `index`, or None.  The length is guarded if the answer depends on it."""
        if self.reach is None or not self.reach.covers(index, self.raw):
            if not -len(self.items) <= index < len(self.items):
                return None
        return index if index >= 0 else len(self.raw) + index

    def element(self, cx: Capture, place: int) -> Value:
        """The element at this place of `raw`."""
        found = self.raw[place] = cx.realize(self.raw[place])
        return found

    def truth(self, cx: Capture) -> bool:
        return self.reach.is_filled(self.raw) if self.reach is not None and self.raw else bool(self.items)

    def getitem(self, cx: Capture, key: Value) -> Value:
        base = list if isinstance(self, List) else tuple
        if (bounds := bounds_of(cx, key)) is not None:
            reach = self.reach
            if isinstance(self, Tuple) and self.cls is tuple and self._is_all(bounds):
                return self
            part = self._part(bounds)
            if part is None:
                cls = self.cls if self.cls in (list, tuple, torch.Size) else base
                return cx.sequence(list(cx.evaluate_raw(self.items.__getitem__, bounds)), cls)
            made = cx.sequence(part, base)
            if isinstance(made, List):
                made.changes = reach is not None and self._changes(cx, reach)
            return made
        place = self.place(cx.index(key, base.__name__))
        if place is None:
            cx.throw(IndexError, f"{base.__name__} index out of range")
        return self.element(cx, place)


class Tuple(Sequence):
    """A tuple, namedtuple, torch.Size or structseq.  `begin`: an existing tuple of any length that this tuple starts with."""

    begin: Tuple | None = None

    deferred: bool | None = None  # whether it contains a deferred value; None: not computed yet

    def __init__(self, items: list[Value], cls: type = tuple) -> None:
        super().__init__(items, cls)

    def is_const(self) -> bool:
        known = all(not isinstance(v, LazyObject) and v.is_const() for v in self.raw) and self.cls in (
            tuple,
            torch.Size,
        )
        return known and self.items is self.raw

    def const(self, why: str = NEEDED) -> Any:
        if self.cls not in (tuple, torch.Size):
            return super().const(why)
        return self.cls(v.const(why) for v in self.items)

    def settle(self, why: str) -> Value:
        for item in self.items:
            item.settle(why)
        return self

    def more(self, items: list[Value]) -> Tuple | None:
        """`self + tuple(items)` without a guard on the length; None if the length is guarded already."""
        if self.reach is None or self.cls is not tuple or not self.raw:
            return None
        if not items:
            return self
        self.reach.is_filled(self.raw)  # an empty tuple's sum is the other tuple itself
        kept = [
            LazyObject(v.real, v.source) if isinstance(v, LazyObject) and v.seen is None and v.source else v
            for v in self.raw
        ]
        made = Tuple([*kept, *items])
        made.reach, made.begin = copy.copy(self.reach), self.begin or self
        made.reach.add(len(items), first=False)
        return made

    def identity(self) -> object:
        """The empty tuple exists once."""
        filled = self.reach.is_filled(self.raw) if self.reach is not None and self.raw else bool(self.items)
        return super().identity() if filled or self.cls is not tuple else ("const", tuple, ())

    def _is_all(self, bounds: slice) -> bool:
        """Whether a slice is this tuple itself."""
        if bounds.start in (None, 0) and bounds.stop is None and bounds.step in (None, 1):
            return True
        return (
            bounds.indices(len(self.raw)) == (0, len(self.raw), 1) and self.items is self.raw
        )  # `items` guards the length

    @property
    def added(self) -> list[Value]:
        """The elements after `begin`."""
        return [] if self.begin is None else self.raw[len(self.begin.raw) :]


def _bounds_first() -> bool:
    items = [1]

    def given() -> Iterator[int]:
        items.append(2)
        yield 3

    items[0:] = given()
    return items == [3, 2]


BOUNDS_FIRST = _bounds_first()
"""Whether this Python computes the bounds of a slice before it iterates the assigned values (patches of 3.13 differ)."""


class List(Sequence):
    """A list (or deque)."""

    def __init__(self, items: list[Value], cls: type = list) -> None:
        self.reach = None
        self.changes = False  # of a part of an existing list: whether the part differs between calls
        super().__init__(items, cls)
        self.length_before = len(items)  # of an existing list: before the writes of this capture
        self.emptied = 0

    def summary(self, cx: Capture, function: Callable[[list[Any]], Any]) -> Value | None:
        """`function(list of all elements)` as a number that each call computes.

        None if some element is not a number, the length is guarded already, or the list is the same in every call.
        """
        reach = self.reach
        if not (self.changes if reach is None else self._changes(cx, reach)):
            return None
        ends = self.raw if reach is None else [*self.raw[: reach.first], *self.raw[len(self.raw) - reach.last :]]
        known = [source_of_open(cx, v) for v in ends]
        places = [p for p in known if p is not None]
        items = [hint_value(v) for v in self.raw if isinstance(v, (LazyObject, *PLAIN_VALUES))]
        if len(places) < len(ends) or len(items) < len(self.raw) or any(type(i) not in NUMBERS for i in items):
            return None
        try:
            real = function(items)
        except Exception:  # the program's own error
            return None
        if reach is None:
            source = cx.computed(fold_numbers, const_source(function), *places)
        else:
            counts = (const_source(n) for n in (reach.left, reach.right, reach.first))
            source = cx.computed(fold_container, reach.source, const_source(function), *counts, *places)
        cx.sizes.policy.will_change(source, type(real).__name__)
        return cx.realize(cx.lazy(real, source))

    def contents(self) -> Contents:
        """The current contents, for the replay of a write."""
        return Contents(list(self.raw), self.emptied) if self.reach is None else self.reach.contents(self.raw)

    def empty(self) -> None:
        """Remove all elements without a guard on them."""
        self.emptied += 1
        self.items = []

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        if (bounds := bounds_of(cx, key)) is not None:
            size = len(self.items)
            start, stop, step = cx.evaluate_raw(bounds.indices, size)
            given = cx.listed(_assigned(cx, value, bounds))
            if step == 1:
                bounds = slice(start, stop) if BOUNDS_FIRST else slice(*bounds.indices(len(self.items)))
            elif len(self.items) != size:
                raise Break("unsupported-operation", "a list that changes during an assignment to a slice of it")
            cx.effects.mutate(self, cx.evaluate_raw(self.items.__getitem__, bounds))
            cx.evaluate_raw(self.items.__setitem__, bounds, given)
            return
        self.raw[self._changed(cx, key)] = value

    def delitem(self, cx: Capture, key: Value) -> None:
        if (bounds := bounds_of(cx, key)) is not None:
            cx.effects.mutate(self, cx.evaluate_raw(self.items.__getitem__, bounds))
            del self.items[bounds]
            return
        self.remove(self._changed(cx, key))

    def _changed(self, cx: Capture, key: Value) -> int:
        """The place of the element to remove or replace."""
        place = self.place(cx.index(key, "list"))
        if place is None:
            cx.throw(IndexError, "list assignment index out of range")
        self.change(cx, [self.raw[place]])
        return place

    def change(self, cx: Capture, drops: Iterable[Value]) -> None:
        """Call before a change of elements that are known from an end.  `drops`: the elements that go out."""
        if self.reach is not None:
            self.reach.require()
        cx.effects.mutate(self, drops)

    def dropped(self) -> tuple[Value, ...] | None:
        """The elements that an addition may push out; None: any."""
        return ()

    def add(self, value: Value, *, first: bool = False) -> None:
        """Add an element at the end, or at the begin."""
        self.raw.insert(0 if first else len(self.raw), value)
        if self.reach is not None:
            self.reach.add(1, first=first)

    def put(self, place: int, value: Value, *, first: bool) -> None:
        """Insert at a place of `raw`, beside an element that is known from the end, or from the begin (`first`)."""
        if self.reach is not None:
            self.reach.require()
            self.reach.add(1, first=first)
        self.raw.insert(place, value)

    def remove(self, place: int) -> Value:
        """Remove the element at a place of `raw` that is known from an end."""
        if self.reach is not None:
            self.reach.add(-1, first=place < self.reach.first)
        return self.raw.pop(place)


def _assigned(cx: Capture, value: Value, bounds: slice) -> Value:
    """The iterator over the values assigned to a slice."""
    try:
        return cx.iterator(value)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), TypeError):
            raise
    cx.throw(
        TypeError,
        "can only assign an iterable" if bounds.step in (None, 1) else "must assign iterable to extended slice",
    )


class Deque(List):
    """A collections.deque; `limit` is its maxlen."""

    def __init__(self, items: list[Value], limit: int | None = None) -> None:
        super().__init__(items, collections.deque)
        self.limit = limit
        self.moves = 0  # changes of the elements' places, which invalidate iterators; a store into a place is none

    def dropped(self) -> tuple[Value, ...] | None:
        return () if self.limit is None else None

    def push(self, value: Value, *, left: bool = False) -> None:
        """Append at one end; a full deque drops from the other."""
        self.moves += 1
        self.add(value, first=left)
        if self.limit is not None and self._overflows(self.limit):
            place = self.place(-1 if left else 0)
            assert place is not None
            self.remove(place)

    def _changes(self, cx: Capture, reach: KnownEnds) -> bool:
        return super()._changes(cx, reach) or self.moves > 0

    def _overflows(self, limit: int) -> bool:
        if self.reach is None or not limit:
            return len(self.items) > limit
        more = const_source(len(self.raw) - self.reach.length)
        answer = len(self.raw) > limit
        self.reach.cx.guard("equals", self.reach.cx.computed(overflows, self.reach.source, more), answer)
        return answer

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return DequeIterator(cx, self, range(len(self.items)))

    def backwards(self, cx: Capture) -> Iterator[Value]:
        return DequeIterator(cx, self, range(len(self.items))[::-1])

    def check(self, cx: Capture, key: Value) -> None:
        """Raise CPython's error for a key that is no index of this deque."""
        if not issubclass(key.python_type(), int):  # CPython's message depends on the operation that was used
            raise Break("unsupported-operation", f"deque[{key.describe()}]")
        if self.place(cx.index(key, "deque")) is None:
            cx.throw(IndexError, "deque index out of range")

    def getitem(self, cx: Capture, key: Value) -> Value:
        self.check(cx, key)
        return super().getitem(cx, key)

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        self.check(cx, key)
        super().setitem(cx, key, value)

    def delitem(self, cx: Capture, key: Value) -> None:
        self.check(cx, key)
        self.moves += 1
        super().delitem(cx, key)

    def getattr(self, cx: Capture, name: str) -> Value:
        return Const(self.limit) if name == "maxlen" else super().getattr(cx, name)


class DequeIterator(Iterator[Value]):
    """An iterator over these places of a deque.  It raises if the deque has changed since, each time it is called.

    Exception: a reversed iterator at its end.
    """

    def __init__(self, cx: Capture, deque: Deque, places: range) -> None:
        self.cx, self.deque, self.places, self.moves, self.at = cx, deque, places, deque.moves, 0

    def __next__(self) -> Value:
        ended = self.at == len(self.places)
        if self.deque.moves != self.moves and not (ended and self.places.step < 0):
            self.cx.throw(RuntimeError, "deque mutated during iteration")
        if ended:
            raise StopIteration
        self.at += 1
        return self.deque.at(self.cx, self.places[self.at - 1])


def bounds_of(cx: Capture, key: Value) -> slice | None:
    """The slice of constants that a key is, or None.  The slice was created here or is a constant of the code (3.14)."""
    if isinstance(key, Const) and type(key.value) is slice:
        key = Slice([Const(part) for part in (key.value.start, key.value.stop, key.value.step)])
    return key.bounds(cx) if isinstance(key, Slice) else None


class Slice(Value):
    """slice(start, stop, step) of values that need not be constants."""

    def __init__(self, parts: list[Value]) -> None:
        self.parts = parts

    def python_type(self) -> type:
        return slice

    def is_const(self) -> bool:
        return all(p.is_const() for p in self.parts)

    def const(self, why: str = NEEDED) -> Any:
        return slice(*(p.const(why) for p in self.parts))

    def settle(self, why: str) -> Value:
        for part in self.parts:
            part.settle(why)
        return self

    def bounds(self, cx: Capture) -> slice:
        """The slice of constants that indexes a sequence: each part is None or an index."""
        return slice(*(None if cx.is_none(p) else self._bound(cx, p) for p in self.parts))

    def _bound(self, cx: Capture, part: Value) -> int:
        if not hasattr(part.python_type(), "__index__"):
            cx.throw(TypeError, "slice indices must be integers or None or have an __index__ method")
        return cx.index(part)

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return cx.evaluate(getattr, self, name)
