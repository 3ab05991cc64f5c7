"""Lists, tuples, dicts, sets and slices of values.

A container that existed before the frame has a source; its elements are `Lazy` until used, its length and keys
are guarded when looked at, and a change to it is replayed at the end (`effects.py`).
Dict and set keys are compared as Python compares them: by constant value, else by identity of the object.
"""

from __future__ import annotations

import collections
import ctypes
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Lazy, Value
from pycompiler.capture.values.constant import Const, ids_of_what_is_there, settled
from pycompiler.capture.values.ends import Contents, Ends, Members
from pycompiler.capture.values.symbolic import PLAIN_VALUES, changes, is_open, is_open_text, place_of, today
from pycompiler.ir.begun import length_of
from pycompiler.ir.computed import NUMBERS, PLAIN, at_key, has_key, is_same_key, of_numbers, overflows, whole
from pycompiler.ir.source import Source
from pycompiler.ir.source import const as const_source


class Sequence(Value):
    """What lists and tuples share.  `raw`: the elements, for who relies on nothing of them."""

    def __init__(self, items: list[Value], cls: type) -> None:
        self.raw = items
        self.cls = cls

    @property
    def items(self) -> list[Value]:
        """All elements, of which there are so many."""
        return self.raw

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.raw = items

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.raw)}"

    __repr__ = describe

    def python_type(self) -> type:
        return self.cls

    def at(self, cx: Capture, index: int) -> Value:
        item = self.items[index]
        if isinstance(item, Lazy):
            item = self.items[index] = cx.realize(item)
        return item

    def length(self, cx: Capture) -> int:
        return len(self.items)

    def truth(self, cx: Capture) -> bool:
        return bool(self.items)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        i = 0
        while i < len(self.items):  # live: a list may grow while it is iterated
            yield self.at(cx, i)
            i += 1

    def backwards(self, cx: Capture) -> Iterator[Value]:
        """From what is the last element now; ends where a list that became shorter has none."""

        def each(i: int) -> Iterator[Value]:
            while 0 <= i < len(self.items):
                yield self.at(cx, i)
                i -= 1

        return each(len(self.items) - 1)

    def contains(self, cx: Capture, item: Value) -> bool:
        return any(cx.same(v, item) or cx.equal(v, item) for v in self.iterate(cx))

    def getitem(self, cx: Capture, key: Value) -> Value:
        if (bounds := bounds_of(cx, key)) is not None:
            cls = self.cls if self.cls in (list, tuple, torch.Size) else (list if isinstance(self, List) else tuple)
            return cx.sequence(list(cx.evaluate_raw(self.items.__getitem__, bounds)), cls)
        index = cx.index(key, "list" if isinstance(self, List) else "tuple")
        if not -len(self.items) <= index < len(self.items):
            cx.throw(IndexError, f"{'list' if isinstance(self, List) else 'tuple'} index out of range")
        return self.at(cx, index)


class Tuple(Sequence):
    """A tuple, namedtuple, torch.Size or structseq."""

    deferred: bool | None = None  # whether it holds what is known when the graph has run, where that was asked

    def __init__(self, items: list[Value], cls: type = tuple) -> None:
        super().__init__(items, cls)

    def is_const(self) -> bool:
        return all(not isinstance(v, Lazy) and v.is_const() for v in self.items) and self.cls in (tuple, torch.Size)

    def const(self) -> Any:
        if self.cls not in (tuple, torch.Size):
            return super().const()
        return self.cls(v.const() for v in self.items)

    def settle(self, why: str) -> Value:
        for item in self.items:
            item.settle(why)
        return self


def _bounds_first() -> bool:
    items = [1]

    def given() -> Iterator[int]:
        items.append(2)
        yield 3

    items[0:] = given()
    return items == [3, 2]


BOUNDS_FIRST = _bounds_first()
"""Whether this Python knows the elements of a slice before it asks for those that take their places (patches of 3.13 differ)."""


class List(Sequence):
    """A list (or deque).  Of an existing one `reach` says what is known while nobody has asked for its length."""

    def __init__(self, items: list[Value], cls: type = list) -> None:
        self.reach: Ends | None = None
        self.changes = False  # of a part of an existing list: whether that is another one in each call
        super().__init__(items, cls)
        self.length_before = len(items)  # of an existing list: before the writes of this capture
        self.emptied = 0

    @property
    def items(self) -> list[Value]:
        """All elements: who looks at them as a whole relies on their number."""
        if self.reach is not None:
            self.reach.settle()
            self.reach = None
        return self.raw

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.raw, self.reach = items, None

    def count(self, cx: Capture) -> Value:
        """`len(self)`: a symbol where the number changes from call to call and nobody has relied on it."""
        reach = self.reach
        known = None if reach is None else cx.sizes.integer(reach.length, reach.source.then("begun", length_of))
        if reach is None or known is None:
            return Const(len(self.items))
        return cx.make(known + (len(self.raw) - reach.length))

    def summary(self, cx: Capture, function: Callable[[list[Any]], Any]) -> Value | None:
        """What `function` gives of all elements, as a number that each call computes; None where not all are numbers, somebody
        has asked how many there are, or that is the same in every call."""
        reach = self.reach
        if not (self.changes if reach is None else self._changes(cx, reach)):
            return None
        ends = self.raw if reach is None else [*self.raw[: reach.first], *self.raw[len(self.raw) - reach.last :]]
        known = [place_of(cx, v) for v in ends]
        places = [p for p in known if p is not None]
        items = [today(v) for v in self.raw if isinstance(v, (Lazy, *PLAIN_VALUES))]
        if len(places) < len(ends) or len(items) < len(self.raw) or any(type(i) not in NUMBERS for i in items):
            return None
        try:
            real = function(items)
        except Exception:  # the program's
            return None
        if reach is None:
            source = cx.computed(of_numbers, const_source(function), *places)
        else:
            counts = (const_source(n) for n in (reach.left, reach.right, reach.first))
            source = cx.computed(whole, reach.source, const_source(function), *counts, *places)
        cx.sizes.policy.will_change(source, type(real).__name__)
        return cx.realize(cx.lazy(real, source))

    def _changes(self, cx: Capture, reach: Ends) -> bool:
        """Whether an existing list is another one in each call."""
        return cx.sizes.integer(reach.length, reach.source.then("begun", length_of)) is not None

    def _part(self, bounds: slice) -> list[Value] | None:
        """The elements of a slice near one end, where as many are there in every call; None of any other."""
        start, stop, size = bounds.start or 0, bounds.stop, len(self.raw)
        at_end = start < 0 and (stop is None or stop < 0) and -start <= size
        at_begin = start >= 0 and stop is not None and start < stop <= size
        if self.reach is None or bounds.step not in (None, 1) or not (at_end or at_begin):
            return None
        self.place(start if at_end else stop - 1)
        if self.reach is not None:
            self.reach.require()
        return self.raw[bounds]

    def contents(self) -> Contents:
        """What it holds now, for a write that is replayed."""
        return Contents(list(self.raw), self.emptied) if self.reach is None else self.reach.contents(self.raw)

    def empty(self) -> None:
        """All goes out, of which nothing need be known."""
        self.emptied += 1
        self.items = []

    def place(self, index: int) -> int | None:
        """Where in `raw` the element at `index` is, None where there is none; the length is asked for where that needs it."""
        if self.reach is None or not self.reach.covers(index, self.raw):
            if not -len(self.items) <= index < len(self.items):
                return None
        return index if index >= 0 else len(self.raw) + index

    def element(self, cx: Capture, place: int) -> Value:
        """The element at this place of `raw`."""
        found = self.raw[place] = cx.realize(self.raw[place])
        return found

    def truth(self, cx: Capture) -> bool:
        return self.reach.is_filled(self.raw) if self.reach is not None and self.raw else super().truth(cx)

    def getitem(self, cx: Capture, key: Value) -> Value:
        if (bounds := bounds_of(cx, key)) is not None:
            reach = self.reach
            part = self._part(bounds)
            if part is None:
                return super().getitem(cx, key)
            made = List(part)
            made.changes = reach is not None and self._changes(cx, reach)
            return made
        place = self.place(cx.index(key, "list"))
        if place is None:
            cx.throw(IndexError, "list index out of range")
        return self.element(cx, place)

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        if (bounds := bounds_of(cx, key)) is not None:
            size = len(self.items)
            start, stop, step = cx.evaluate_raw(bounds.indices, size)
            given = cx.listed(cx.iterator(value))
            if step == 1:
                bounds = slice(start, stop) if BOUNDS_FIRST else slice(*bounds.indices(len(self.items)))
            elif len(self.items) != size:
                raise Break("unsupported-operation", "a list that changes while others take the places of a slice")
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
        """The place of the element that is about to go."""
        place = self.place(cx.index(key, "list"))
        if place is None:
            cx.throw(IndexError, "list assignment index out of range")
        self.change(cx, [self.raw[place]])
        return place

    def change(self, cx: Capture, drops: Iterable[Value]) -> None:
        """Call before a change of elements that are known from an end; `drops`: what goes out."""
        if self.reach is not None:
            self.reach.require()
        cx.effects.mutate(self, drops)

    def dropped(self) -> tuple[Value, ...] | None:
        """What may go out where something is added; None: anything."""
        return ()

    def add(self, value: Value, *, first: bool = False) -> None:
        """A new element at the end, or at the begin."""
        self.raw.insert(0 if first else len(self.raw), value)
        if self.reach is not None:
            self.reach.add(1, first=first)

    def put(self, place: int, value: Value, *, first: bool) -> None:
        """A new element at a place of `raw`, beside one that is known from the end, or from the begin."""
        if self.reach is not None:
            self.reach.require()
            self.reach.add(1, first=first)
        self.raw.insert(place, value)

    def remove(self, place: int) -> Value:
        """The element at a place of `raw`, which is known from an end, goes out."""
        if self.reach is not None:
            self.reach.add(-1, first=place < self.reach.first)
        return self.raw.pop(place)


class Deque(List):
    """A collections.deque; `limit` is its maxlen."""

    def __init__(self, items: list[Value], limit: int | None = None) -> None:
        super().__init__(items, collections.deque)
        self.limit = limit
        self.moves = 0  # changes of what stands where, which end every iterator; a store into a place is none

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

    def _changes(self, cx: Capture, reach: Ends) -> bool:
        return super()._changes(cx, reach) or self.moves > 0

    def _overflows(self, limit: int) -> bool:
        if self.reach is None or not limit:
            return len(self.items) > limit
        more = const_source(len(self.raw) - self.reach.length)
        answer = len(self.raw) > limit
        self.reach.cx.guard("equals", self.reach.cx.computed(overflows, self.reach.source, more), answer)
        return answer

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return self._walk(cx, range(len(self.items)))

    def backwards(self, cx: Capture) -> Iterator[Value]:
        return self._walk(cx, range(len(self.items))[::-1])

    def _walk(self, cx: Capture, places: range) -> Iterator[Value]:
        moves = self.moves

        def each() -> Iterator[Value]:
            for i in (*places, None):
                if self.moves != moves:
                    cx.throw(RuntimeError, "deque mutated during iteration")
                if i is not None:
                    yield self.at(cx, i)

        return each()

    def check(self, cx: Capture, key: Value) -> None:
        """Raise what CPython raises for a key that is no place in this deque."""
        if not issubclass(key.python_type(), int):  # the text of the error depends on how it was asked for
            raise Break("unsupported-operation", f"deque[{key.describe()}]")
        if self.place(cx.index(key)) is None:
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


class Key:
    """A dict key or set member: equal as Python finds the real objects equal.

    An operation of the program makes one, and compares it with each key that has the same hash once: capture, which may look for
    its place more than once, asks a pair once.
    """

    __slots__ = ("answers", "key", "own", "place", "value")

    def __init__(self, cx: Capture, value: Value) -> None:
        self.value = value.settle("as a key")
        self.key: Any = cx.key_of(self.value)
        self.answers: dict[int, tuple[Key, bool]] = {}  # what keys that were there before said, by `id`
        self.place: Any = None  # of an open key, whose value is known in each call alone: where that is read
        self.own: Any = None  # the key that the dict has for it today

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return False
        if isinstance(self.key, UserKey) is not isinstance(other.key, UserKey):
            raise Break("unsupported-operation", "a key that says itself which constants it equals")
        user = restless([other])
        if user is None:
            return bool(self.key == other.key)
        if id(self) not in other.answers:
            mark = user.cx.effects.mark()
            same = bool(self.key == other.key)
            if not same and mark != user.cx.effects.mark() and not (user is other.key and user.is_asked_once()):
                raise Break("unsupported-operation", RESTLESS)
            other.answers[id(self)] = self, same
        return other.answers[id(self)][1]

    def __hash__(self) -> int:
        """Of a constant its own hash, which a `UserKey` may have, too."""
        return hash(self.key[1] if isinstance(self.key, tuple) and self.key[0] == "c" else self.key)


class UserKey:
    """The key of an object whose class defines `__hash__` and `__eq__` in Python.

    Generated code that stored it would run these once more, and at another time: only what a frozen dataclass was given may be.
    """

    __slots__ = ("at", "calm", "cx", "hash", "value")

    def __init__(self, cx: Capture, value: Value, hashed: int, *, calm: bool) -> None:
        self.cx = cx
        self.value: Any = value
        self.hash = hashed
        self.calm = calm
        self.at = cx.step()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserKey):
            return NotImplemented
        same = self.value is other.value or self.cx.same(self.value, other.value)
        return bool(same or self.cx.equal(self.value, other.value))

    def __hash__(self) -> int:
        return self.hash

    def is_asked_once(self) -> bool:
        """Whether each key of this hash is at one place of those where a table looks: the bits of a larger hash lead to the
        same places again, as more keys than a set looks at in a row do."""
        return 0 <= self.hash < 32


def restless(keys: Iterable[Key]) -> UserKey | None:
    """The key among these, or within one of them, whose methods generated code cannot run once more."""
    return next((found for k in keys if (found := _restless(k.key)) is not None), None)


def _restless(key: Any) -> UserKey | None:
    if isinstance(key, UserKey):
        return None if key.calm else key
    if not isinstance(key, tuple) or key[0] == "c":
        return None
    if key[0] == "f":
        return restless(key[1])
    return next((found for part in key[1:] if (found := _restless(part)) is not None), None)


def replayed(container: Dict | Set, keys: Iterable[Key]) -> None:
    """These keys go into, or out of, a container; into an existing one they go once more, in generated code."""
    if container.source is not None and (container.restless or restless(keys) is not None):
        raise Break("mutation-unsupported", RESTLESS)


def _kind(key: Value) -> type:
    """Keys of different kinds are different ones."""
    value = key.real if isinstance(key, Lazy) else key.value if isinstance(key, Const) else 0
    return type(value) if type(value) in (str, bytes, type(None)) else object


def keys_of(container: Dict | Set) -> list[Key]:
    """The keys as they are passed on to another dict or set: with their hashes, which the program is not asked for."""
    if restless(container.entries) is not None:
        raise Break("unsupported-operation", RESTLESS)
    return list(container.entries)


def is_stored_under(mapping: dict[Any, Any], key: Any, hashed: int) -> bool:
    """Whether a dict, which keeps the hashes that its keys had, has a key under this one.  The key is not asked."""
    find = ctypes.pythonapi["_PyDict_GetItem_KnownHash"]
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t]
    return find(mapping, key, hashed) is not None


RESTLESS = "a dict or set with keys that have methods __hash__ and __eq__ of their own"


def distinct_members(cx: Capture, values: Iterable[Value]) -> dict[Key, Value]:
    """A set's members: of equal values the first stays."""
    members: dict[Key, Value] = {}
    for value in values:
        members.setdefault(Key(cx, value), value)
    ids_of_what_is_there(members.values())
    return members


def keys_now(keyed: Dict | Set) -> list[Key]:
    places = keyed.known_places() if isinstance(keyed, Dict) else None
    return list(keyed.entries) if places is None else places


def last_key(keyed: Dict | Set) -> Key | None:
    """The newest key. A dict or set that keeps it and its size has lost no key."""
    return next(reversed(keys_now(keyed)), None)


def stable(cx: Capture, iterated: Dict | Set, values: list[Value]) -> Iterator[Value]:
    """`values` one after the other, as long as the dict or set that they come from keeps the size that it has now."""
    size, last = len(iterated.entries), last_key(iterated)
    keeps = isinstance(iterated, Dict) and iterated.entries is iterated.entries  # one that is not made for each look

    def check() -> None:
        if len(iterated.entries) != size:
            kind = "dictionary" if isinstance(iterated, Dict) else "Set"
            if issubclass(iterated.cls, collections.OrderedDict):
                cx.throw(RuntimeError, "OrderedDict mutated during iteration")
            cx.throw(RuntimeError, f"{kind} changed size during iteration")
        if last_key(iterated) is not last and (keeps or last_key(iterated) != last):
            raise Break("unsupported-operation", f"a {iterated.cls.__name__} whose members change while it is iterated")

    def each() -> Iterator[Value]:
        for value in values:
            check()
            yield value
        check()

    return each()


SEPARATE = (tuple, frozenset, type, torch.dtype, torch.device)
"""Classes whose instances equal no text and no number."""


class Tally(Const):
    """What is added to the int that is at a key of an existing dict, whichever that is."""


class Dict(Value):
    """A dict, OrderedDict, defaultdict, or a mapping proxy of one."""

    def __init__(
        self, items: dict[Key, Value], cls: type = dict, *, real: Any = None, default_factory: Value | None = None
    ) -> None:
        self.unasked: list[
            tuple[Value, Value]
        ] = []  # last stores under numbers that may be any keys of an existing dict
        self.entries = items
        self.cls = cls
        self.real = real  # an existing dict: its keys are guarded when they are looked at as a whole
        self.default_factory = default_factory
        self.keys_guarded = real is None
        self.opened: list[Key] = []  # open keys, of which it is known that they are no others that were asked for
        self.by_place = False  # whether all keys are open, each at its place, and there are no others
        self.met: dict[Key, None] = {}  # texts and numbers that were
        self.is_odd = False  # whether one was asked for that may equal a text or number, and is none
        self.added: set[Key] = set()  # keys that the program has put in where none was, or none any more
        self.taken: set[Key] = set()  # keys of the dict as it was that the program has taken out
        self.changed = False
        self.counting = False  # all that has changed was counted (`Tally`)
        self.emptied = 0
        self.restless = real is not None and restless(items) is not None
        self.attributes: dict[str, Value] = {}  # of an OrderedDict that is made here
        self.seen_by: type = dict  # the class that gives views of it: attributes of classes are behind a proxy

    @property
    def entries(self) -> dict[Key, Value]:
        """What it has at the keys that are known: who looks at them relies on which they are."""
        self._flush()
        opened, self.opened = self.opened, []
        for key in opened:
            self._closed(self.cx, key)
        return self.raw

    @entries.setter
    def entries(self, entries: dict[Key, Value]) -> None:
        self.raw = entries

    def _flush(self) -> None:
        """Stores under what may be any keys are made."""
        stores, self.unasked = self.unasked, []
        self.counting = self.counting and not stores
        for known, value in stores:
            key = self.key(self.cx, known)
            if isinstance(value, Tally):
                value = self._counted(key, value)
            if not self.contains_key(self.cx, key) and self.found(self.cx, key) is None:
                self.added.add(key)
            self.raw[key] = value

    def entries_at(self, key: Key) -> dict[Key, Value]:
        """Entries that tell what is at a key: no number is a text."""
        kind = _kind(key.value) if key.place is not None or isinstance(key.value, Const) else None
        if any(kind is None or _kind(k) is kind for k, _ in self.unasked):
            self._flush()
        return self.raw

    def known(self) -> Iterable[Key]:
        """The keys, for who relies on nothing of them; without numbers that may be any."""
        return self.raw

    def held(self) -> Iterable[Value]:
        """The values, for who relies on nothing of them."""
        return [*self.raw.values(), *(value for _, value in self.unasked)]

    def contents(self) -> Any:
        """What it holds now, for a write that is replayed: entries, what is stored behind them, how often all went out, and
        whether there are no others."""
        return dict(self.raw), [*self.unasked], self.emptied, self.keys_guarded

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.raw)}"

    __repr__ = describe

    def python_type(self) -> type:
        return self.cls

    def key(self, cx: Capture, value: Value) -> Key:
        """The key of what is looked for or stored: an id is a number where keys are numbers."""
        opened = self._open(cx, value) if is_open(value) else None
        if opened is not None:
            return opened
        value = cx.realize(value)
        others = self.known() if isinstance(value, Const) else self.entries
        made = Key(cx, settled(cx, value, (k.value for k in others)))
        if (
            issubclass(self.cls, collections.OrderedDict) and restless([made]) is not None
        ):  # which asks it more than once
            raise Break("unsupported-operation", RESTLESS)
        return made if self.keys_guarded or self.source is None else self._meet(cx, made)

    def asks_keys(self) -> bool:
        """Whether an existing dict may be asked for keys that are open."""
        return (
            type(self) is Dict and self.source is not None and not (self.keys_guarded or self.restless or self.is_odd)
        )

    def _open(self, cx: Capture, value: Value) -> Key | None:
        """The key of a text or number that each call has another one for; None where only its value will do."""
        place = place_of(cx, value) if self.asks_keys() and changes(cx, value) else None
        if place is None:
            return None
        self.cx = cx
        made = Key(cx, Const(today(value)))
        for other in self.opened:
            if other.place == place:
                return other
        same = next((k for k in self.opened if k == made), None)
        if same is not None and type(today(same.value)) is type(today(value)):  # the one key in place of the other
            if isinstance(value, Lazy):
                value.guard_class(cx)
            cx.guard("equals", cx.computed(is_same_key, place, same.place), True)
            return same
        others = [*self.opened, *self.met]
        found = next((k for k in self.raw if k == made), made)
        known = self.raw.get(found)
        seen = known is not None and not (isinstance(known, Lazy) and known.seen is None)
        if seen or any(k == made for k in others):
            return None
        if isinstance(value, Lazy):
            value.guard_class(cx)
        for other in others:
            if _kind(other.value) is _kind(value):
                there = const_source(other.value.const()) if other.place is None else other.place
                cx.guard("equals", cx.computed(is_same_key, place, there), False)
        found.own = found.value if known is not None else None
        found.value, found.place = value, place
        if isinstance(known, Lazy):
            assert self.source is not None
            self.raw[found] = cx.lazy(known.real, cx.computed(at_key, self.source, place))
        self.opened.append(found)
        return found

    def _meet(self, cx: Capture, made: Key) -> Key:
        """A key that is known is none of the open ones; one that is today is known from now on."""
        if not (isinstance(made.value, Const) and type(made.value.value) in PLAIN):
            apart = (
                isinstance(made.value, Tuple)
                or isinstance(made.value, Const)
                and isinstance(made.value.value, SEPARATE)
            )
            if not apart:
                _ = self.entries
                self.is_odd = True
        elif made not in self.met:
            for same in [k for k in self.opened if k == made]:
                self.opened.remove(same)
                self._closed(cx, same)
            for other in self.opened:
                if _kind(other.value) is _kind(made.value):
                    place = const_source(made.value.value)
                    cx.guard("equals", cx.computed(is_same_key, other.place, place), False)
            self.met[made] = None
        return made

    def _closed(self, cx: Capture, key: Key) -> None:
        """An open key is a constant from now on."""
        settled = cx.realize(key.value).settle("as a key")
        key.value, key.place = settled if key.own is None else key.own, None
        self.met[key] = None

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if self.cls is not collections.OrderedDict or self.source is not None or hasattr(self.cls, name):
            super().setattr(cx, name, value)
        cx.effects.allow(self, f"{self.describe()}.{name}")
        cx.effects.looks.change(("attribute", id(self), name))
        self.attributes[name] = value

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if self.cls is collections.OrderedDict and self.real is not None and self.source is not None:
            if name in vars(self.real):  # the one of these classes whose instances have attributes
                raise Break("unsupported-attribute", f"{name} of an OrderedDict that has it as an attribute")
            cx.guard("instance_absent", self.source, name)
        if name == "default_factory" and self.cls is collections.defaultdict:
            return Const(None) if self.default_factory is None else self.default_factory
        return super().getattr(cx, name)

    def guard_keys(self, cx: Capture) -> None:
        if self.keys_guarded or self.source is None:
            return
        _ = self.entries  # open keys are constants before
        self.keys_guarded = True
        cx.guard_dict_keys(self.source, self.real)
        self.guard_hashes(cx)

    def at_places(self, cx: Capture, keys: dict[Key, Value], source: Source) -> None:
        """All keys are numbers that each call has others for: so many, each at its place."""
        for i, key in enumerate(keys):
            key.place = source.then("dict_key_at", i)
        self.cx, self.opened, self.by_place = cx, [*keys], True

    def known_places(self) -> list[Key] | None:
        """The keys where they are known by their places."""
        keys = list(self.raw) if self.by_place else []
        return keys if keys and keys == self.opened and not self.unasked else None

    def pairs(self, cx: Capture) -> list[tuple[Value, Value]]:
        if (keys := self.known_places()) is not None:
            return [(k.value, self.at(cx, k)) for k in keys]
        self.guard_keys(cx)
        return [(k.value, self.at(cx, k)) for k in list(self.entries)]

    def at(self, cx: Capture, key: Key) -> Value:
        entries = self.entries_at(key)
        value = entries[key]
        if isinstance(value, Lazy):
            value = entries[key] = cx.realize(value)
        return value

    def guard_hashes(self, cx: Capture) -> None:
        """A dict keeps the hash that a key had when it was stored: that it is the one that the key has now."""
        if self.real is None or self.source is None:
            return
        for key in self.known():
            if not isinstance(key.key, UserKey) or key.value.source is None:
                continue
            if key.key.calm:
                cx.guard("dict_contains", self.source, key.key.value.real)
                continue
            cx.guard_dict_keys(self.source, self.real)

    def lookup(self, cx: Capture, key: Value) -> Value | None:
        return self.found(cx, self.key(cx, key))

    def found(self, cx: Capture, k: Key) -> Value | None:
        """The value at a key, or None, which is guarded."""
        if k in self.entries_at(k):
            return self.at(cx, k)
        self.guard_hashes(cx)
        if not self.keys_guarded and self.source is not None and k not in self.taken:
            self._guard_key(cx, k, "dict_absent")
        return None

    def _guard_key(self, cx: Capture, k: Key, kind: str) -> None:
        assert self.source is not None
        if k.place is not None:
            cx.guard("equals", cx.computed(has_key, self.source, k.place), kind == "dict_contains")
        elif k.value.is_const():
            cx.guard(kind, self.source, k.value.const())
        else:
            self.guard_keys(cx)

    def getitem(self, cx: Capture, key: Value) -> Value:
        found = self.lookup(cx, key)
        if found is not None:
            return found
        if self.default_factory is not None and issubclass(self.cls, collections.defaultdict):
            made = cx.call(self.default_factory, [], {})
            self.setitem(cx, key, made)
            return made
        cx.throw_value(KeyError, [key])
        raise AssertionError

    def mutate(self, cx: Capture, drops: Iterable[Value] | None = None, keys: list[Key] | None = None) -> None:
        """Call before a change: of these keys, each of which is looked up, or of any."""
        self.counting = False
        replayed(self, keys or ())
        if keys is None or self.restless:
            self.guard_keys(cx)
        for k in keys or ():
            if not self.contains_key(cx, k):
                self.found(cx, k)
        cx.effects.mutate(self, drops)

    def counts(self, cx: Capture, key: Value, number: int) -> bool:
        """Adds to the int at a key that may be any; False where something else was done to the dict, or no int is there."""
        if self.source is None or self.keys_guarded or self.restless or (self.changed and not self.counting):
            return False
        zero = 0 if issubclass(self.cls, (collections.Counter, collections.defaultdict)) else None
        if type(dict.get(self.real, today(key), zero)) is not int:
            return False
        if isinstance(key, Lazy):
            key.guard_class(cx)
        cx.effects.count(self, key, zero=zero is not None)
        self.unasked.append((key, Tally(number)))
        self.cx, self.counting = cx, True
        return True

    def _counted(self, key: Key, tally: Tally) -> Value:
        """What is at a key where it was counted."""
        there = key in self.raw or self.found(self.cx, key) is not None
        known = self.at(self.cx, key) if there and self.contains_key(self.cx, key) else Const(0)
        return self.cx.call(self.cx.make(operator.add), [known, Const(tally.value)], {})

    def takes(self, key: Value) -> bool:
        """Whether a store under a text of the program's need not ask what that is."""
        return is_open_text(key) and self.asks_keys()

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        """`key` is a `Lazy` only where `takes` says so."""
        if isinstance(key, Lazy):
            key.guard_class(cx)
        place = place_of(cx, key) if self.opened and is_open(key) else None
        known = place is not None and any(k.place == place for k in self.opened)
        if self.source is None or self.keys_guarded or self.restless or known or not is_open(key):
            self.store(cx, self.key(cx, key), value)
            return
        replayed(self, ())
        self.counting = False
        cx.effects.store_unasked(self, key)
        self.unasked.append((key, value))
        self.cx = cx

    def store(self, cx: Capture, k: Key, value: Value) -> None:
        entries = self.entries_at(k)
        there = k in entries
        if not there:  # it comes behind those that are there
            self._flush()
        self.mutate(cx, [entries[k]] if there else (), [k])
        if not there and not self.keys_guarded:
            self.added.add(k)
        entries[k] = value

    def delitem(self, cx: Capture, key: Value) -> None:
        k = self.key(cx, key)
        if not self.contains_key(cx, k) and self.found(cx, k) is None:
            cx.throw_value(KeyError, [key])
        self.remove(cx, k)

    def remove(self, cx: Capture, k: Key) -> None:
        entries = self.entries_at(k)
        self.mutate(cx, [entries[k]], [k])
        if not self.keys_guarded:
            (self.added.discard if k in self.added else self.taken.add)(k)
        del entries[k]
        if k.place is not None:  # one that comes again is another
            again = Key(cx, Const(today(k.value)))
            again.value, again.place = k.value, k.place
            self.opened = [again if other is k else other for other in self.opened]

    def iterate(self, cx: Capture) -> Iterator[Value]:
        self.guard_keys(cx)
        return stable(cx, self, [k.value for k in self.entries])

    def length(self, cx: Capture) -> int:
        if (keys := self.known_places()) is not None:
            return len(keys)
        self.guard_keys(cx)
        return len(self.entries)

    def count(self, cx: Capture) -> Value:
        """`len(self)`: a symbol where the number changes from call to call and nobody has relied on the keys."""
        known = None
        if self.known_places() is not None:
            return Const(self.length(cx))
        if self.asks_keys():
            self._flush()
        if self.source is not None and self.asks_keys():
            known = cx.sizes.integer(len(self.real), self.source.then("begun", length_of))
        return Const(self.length(cx)) if known is None else cx.make(known + len(self.added) - len(self.taken))

    def truth(self, cx: Capture) -> bool:
        self._flush()
        if not self.keys_guarded and self.source is not None and not self.added:
            if not self.known() and not self.taken:
                cx.guard("length", self.source, 0)
            elif self.taken or not self.says_truth():
                self.guard_keys(cx)
            else:
                cx.guard("truth", self.source, True)
        return bool(self.known())

    def says_truth(self) -> bool:
        """Whether the truth of an existing dict is that it is not empty."""
        cls = type(self.real)
        return cls.__len__ in (dict.__len__, collections.OrderedDict.__len__) and not hasattr(cls, "__bool__")

    def empty(self, cx: Capture) -> None:
        """All goes out, of which nothing need be known."""
        if self.restless:
            self.guard_keys(cx)
        cx.effects.mutate(self)
        self.emptied += 1
        self.entries, self.unasked, self.keys_guarded, self.counting = {}, [], True, False
        self.opened, self.met = [], {}

    def contains(self, cx: Capture, item: Value) -> bool:
        k = self.key(cx, item)
        return self.contains_key(cx, k) or self.found(cx, k) is not None

    def contains_key(self, cx: Capture, k: Key) -> bool:
        """Whether it has the key, which is guarded."""
        there = k in self.entries_at(k)
        if there and not self.keys_guarded and self.source is not None and k not in self.added:
            self._guard_key(cx, k, "dict_contains")
        return there


class Proxy(Value):
    """types.MappingProxyType(mapping): a live view that stores nothing."""

    READS = ("get", "keys", "values", "items", "copy")

    def __init__(self, mapping: Dict) -> None:
        self.mapping = mapping

    def python_type(self) -> type:
        return types.MappingProxyType

    def getattr(self, cx: Capture, name: str) -> Value:
        return self.mapping.getattr(cx, name) if name in self.READS else super().getattr(cx, name)

    def getitem(self, cx: Capture, key: Value) -> Value:
        return self.mapping.getitem(cx, key)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return self.mapping.iterate(cx)

    def length(self, cx: Capture) -> int:
        return self.mapping.length(cx)

    def truth(self, cx: Capture) -> bool:
        return self.mapping.truth(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        return self.mapping.contains(cx, item)

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        cx.throw(TypeError, "'mappingproxy' object does not support item assignment")

    def delitem(self, cx: Capture, key: Value) -> None:
        cx.throw(TypeError, "'mappingproxy' object does not support item deletion")


class Variables(Dict):
    """What `locals()` gives in a frame, which a later call brings up to date."""

    def __init__(self, frame: object) -> None:
        super().__init__({})
        self.frame = weakref.ref(frame)  # which has it: what it shows ends with the last of both


class DictView(Value):
    """keys(), values() or items() of a dict."""

    CLASSES = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
    ORDERED = {n: type(getattr(collections.OrderedDict(), n)()) for n in CLASSES}

    def __init__(self, mapping: Dict, what: str) -> None:
        self.mapping = mapping
        self.owner = mapping.within  # which says what the dict is
        self.what = what

    def python_type(self) -> type:
        return (self.ORDERED if self.is_ordered() else self.CLASSES)[self.what]

    def is_ordered(self) -> bool:
        """Whether the dict has an order of its own, which only its own methods know."""
        return issubclass(self.mapping.python_type(), collections.OrderedDict)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        if self.what == "keys":
            return self.mapping.iterate(cx)
        mapping = self.mapping
        if (known := mapping.known_places()) is not None:
            return self._at_places(cx, known)
        mapping.pairs(cx)
        keys = list(mapping.entries)
        elements = stable(cx, mapping, [k.value for k in keys])
        return (self.element(cx, key) for _, key in zip(elements, keys, strict=False))

    def _at_places(self, cx: Capture, keys: list[Key]) -> Iterator[Value]:
        for key in keys:
            if self.mapping.known_places() != keys:
                raise Break("unsupported-operation", "a dict whose keys change while it is iterated")
            value = self.mapping.at(cx, key)
            yield value if self.what == "values" else Tuple([key.value, value])

    def element(self, cx: Capture, key: Key) -> Value:
        """What a live iterator gives at a key: the value of now."""
        if key not in self.mapping.entries:
            raise Break("unsupported-operation", "a dict whose keys change while it is iterated")
        value = self.mapping.at(cx, key)
        return value if self.what == "values" else Tuple([key.value, value])

    def length(self, cx: Capture) -> int:
        return self.mapping.length(cx)

    def truth(self, cx: Capture) -> bool:
        return self.mapping.truth(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        if self.what == "keys":
            return self.mapping.contains(cx, item)
        if self.what == "values":
            return any(cx.same(v, item) or cx.equal(v, item) for v in self.iterate(cx))
        if not isinstance(item, Tuple) or len(item.items) != 2:
            if not isinstance(item, PLAIN_VALUES) or issubclass(item.python_type(), tuple):
                raise Break("unsupported-operation", f"{item.describe()} in the items of a dict")
            return False
        found = self.mapping.lookup(cx, item.at(cx, 0))
        return found is not None and (cx.same(found, item.at(cx, 1)) or cx.equal(found, item.at(cx, 1)))


class KeysOf(DictView):
    """keys() of an existing dict that only the view leads to.  Whether the program has changed that dict is not known."""

    def _settled(self, cx: Capture) -> None:
        if cx.effects:
            raise Break("unsupported-operation", "keys of an existing dict, after a change of what may be the dict")

    def iterate(self, cx: Capture) -> Iterator[Value]:
        self._settled(cx)
        return self._each(cx, super().iterate(cx))

    def _each(self, cx: Capture, elements: Iterator[Value]) -> Iterator[Value]:
        for value in elements:
            yield value
            self._settled(cx)

    def length(self, cx: Capture) -> int:
        self._settled(cx)
        return super().length(cx)

    def truth(self, cx: Capture) -> bool:
        self._settled(cx)
        return super().truth(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        self._settled(cx)
        return super().contains(cx, item)


UNORDERED = "the order of a set whose elements' hashes, or whose history, are not known"
KNOWN_HASH = (str, int, float, complex, bytes, bool, type(None), torch.dtype, torch.device, type)


def known_hash(value: Any) -> bool:
    """Whether the place of this constant in a set is the same in every call."""
    if type(value) in (tuple, frozenset):
        return all(map(known_hash, value))
    return value == value and (type(value) in KNOWN_HASH or type(value) is type)  # not NaN, which is hashed by identity


class Set(Value):
    """A set or frozenset.

    `shadow` is a real set to which the same happened as to this one in eager, so that its order is CPython's; None when
    that is not known.  `plain`: all that happened is that the entries were added one by one, in their order.
    `raw`: the entries, for who relies on nothing of them; `unasked`: of an existing set whose members nobody has asked for.
    """

    def __init__(self, items: dict[Key, Value], cls: type = set, *, real: Any = None, shadow: Any = None) -> None:
        self.unasked: Members | None = None
        self.raw = items
        self.cls = cls
        self.real = real  # an existing set: its order is guarded when it is looked at
        self.plain = shadow is None and real is None
        self.shadow: Any = self._added(items.values()) if self.plain else shadow
        self.log: list[tuple[Any, Value | None]] = []  # what happened to an existing set
        self.changed = False
        self.made_at: int | None = None
        self.restless = real is not None and restless(items) is not None
        self.recipe: tuple[Any, list[Set]] | None = None  # the operation that gave it, for generated code to repeat

    @property
    def entries(self) -> dict[Key, Value]:
        """All members: who looks at them relies on what they are."""
        unasked, self.unasked = self.unasked, None
        if unasked is not None:
            unasked.settle()
            for method, value in unasked.changes:
                key = Key(unasked.cx, unasked.cx.realize(value))
                _ = self.raw.setdefault(key, value) if method is set.add else self.raw.pop(key, None)
        return self.raw

    @entries.setter
    def entries(self, entries: dict[Key, Value]) -> None:
        self.raw, self.unasked = entries, None

    @staticmethod
    def _added(values: Iterable[Value]) -> Any:
        """A real set to which the values were added one by one, or None when a hash is not known."""
        values = list(values)
        return {v.const() for v in values} if all(v.is_const() and known_hash(v.const()) for v in values) else None

    def python_type(self) -> type:
        return self.cls

    def ordered(self, cx: Capture) -> list[Value]:
        """The elements in CPython's order."""
        values = list(self.entries.values())
        if self.real is not None and not self.changed:
            if self.source is not None:
                cx.guard_dict_keys(self.source, self.real)
            return values
        if len(values) < 2:
            return values
        if self.shadow is None:
            raise Break("unsupported-operation", UNORDERED)
        cx.looks_at_hashes(self.shadow)
        place = {v: i for i, v in enumerate(self.shadow)}
        return sorted(values, key=lambda v: place[v.const()])

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return stable(cx, self, self.ordered(cx))

    def length(self, cx: Capture) -> int:
        return len(self.entries)

    def truth(self, cx: Capture) -> bool:
        return bool(self.entries)

    def contains(self, cx: Capture, item: Value) -> bool:
        known = self._asks(cx, item)
        return self.asked(cx, cx.realize(item)) in self.entries if known is None else known

    def takes(self, item: Value) -> bool:
        """Whether a text of the program's need not be asked which it is."""
        return is_open_text(item) and self.unasked is not None

    def _asks(self, cx: Capture, item: Value) -> bool | None:
        """Whether an existing set that nobody has changed has a text or number, which is guarded."""
        unasked = self.unasked
        if unasked is None or unasked.changes or not (is_open(item) or isinstance(item, Const)):
            return None
        grows = cx.sizes.integer(len(unasked.real), unasked.source.then("begun", length_of)) is not None
        place = place_of(cx, item) if grows or is_open(item) and changes(cx, item) else None
        if place is None:
            return None
        if isinstance(item, Lazy):
            item.guard_class(cx)
        there = today(item) in unasked.real
        cx.guard("equals", cx.computed(has_key, unasked.source, place), there)
        return there

    def asked(self, cx: Capture, item: Value) -> Key:
        """The key of what is looked for: a set is hashed as a frozenset then."""
        if isinstance(item, Set) and issubclass(item.cls, set):
            return Key(cx, Set(dict(item.entries), frozenset))
        return Key(cx, settled(cx, item, self.entries.values()))

    def happened(self, cx: Capture, method: Any, value: Value | None = None, key: Key | None = None) -> None:
        """Call before a change: the same is done to the shadow, and will be to the existing set."""
        replayed(self, [] if key is None else [key])
        cx.effects.mutate(self, () if method is set.add else None)
        self.changed, self.recipe = True, None
        if self.source is not None:
            self.log.append((method, value))
        if self.shadow is None:
            return
        if value is None:
            method(self.shadow)
        elif value.is_const() and known_hash(value.const()):
            method(self.shadow, value.const())
        elif method is set.add:
            self.shadow = None

    def add(self, cx: Capture, value: Value) -> None:
        if self._happens_unasked(cx, set.add, value):
            return
        key = Key(cx, settled(cx, value, self.entries.values()))
        self.happened(cx, set.add, value, key)
        self.entries.setdefault(key, value)

    def _happens_unasked(self, cx: Capture, method: Any, value: Value) -> bool:
        """A constant, or a number that may be any, goes in or out of a set that may have any members."""
        if self.unasked is None or not (isinstance(value, PLAIN_VALUES) or is_open_text(value)):
            return False
        if isinstance(value, Lazy):
            value.guard_class(cx)
        if isinstance(value, Const):
            Key(cx, value)  # an error where it has no hash
        self.happened(cx, method, value)
        self.unasked.changes.append((method, value))
        return True

    def discard(self, cx: Capture, value: Value) -> bool | None:
        """Whether it was there; None where nobody has asked."""
        if self._happens_unasked(cx, set.discard, value):
            return None
        key = self.asked(cx, value)
        if not value.is_const() and self.log and self.log[-1][0] is set.add and self.log[-1][1] is value:
            self.log.pop()  # as if it had never been there: a value of the capture (an id) that no code can load
        else:
            self.happened(cx, set.discard, value, key)
        found = self.entries.pop(key, None) is not None
        self.plain = self.plain and not found
        return found

    def empty(self, cx: Capture, method: Any) -> None:
        """set.clear or the pop of the only element."""
        self.happened(cx, method)
        self.plain = self.plain and not self.raw
        self.entries = {}

    def replace(self, cx: Capture, other: Set, method: Any, operand: Value, elements: list[Value]) -> None:
        """`method(self, operand)` changes the set in place, and gives it what `other` has."""
        if self.source is not None:
            replayed(self, [Key(cx, v) for v in elements])
            if isinstance(operand, Dict):
                raise Break("mutation-unsupported", f"a dict into an existing {self.cls.__name__}")
            given = operand.additions() if isinstance(operand, Set) else elements
            if given is None:
                raise Break("unsupported-operation", UNORDERED)
            if isinstance(operand, Set) and not operand.plain and len(given) > 1:
                cx.looks_at_hashes(operand.shadow)
            then: Value = Tuple(given)
            if isinstance(
                operand, Set
            ):  # with itself a set does otherwise than with an equal one: its table stays, or is new
                then = self if operand is self else Set({Key(cx, v): v for v in given}, frozenset)
            cx.effects.mutate(self)
            self.log.append((method, then))
        self.entries, self.shadow, self.plain, self.changed = other.entries, other.shadow, False, True
        self.recipe = None

    def additions(self) -> list[Value] | None:
        """The elements in an order in which adding them to an empty set gives this very set, or None."""
        values = list(self.entries.values())
        if self.plain or len(values) < 2:
            return values
        if self.shadow is None:
            return None
        place = {v: i for i, v in enumerate(self.shadow)}
        for order in (values, sorted(values, key=lambda v: place[v.const()])):
            made = type(self.shadow)([v.const() for v in order])
            if list(made) == list(self.shadow) and sys.getsizeof(made) == sys.getsizeof(self.shadow):
                return order
        return None

    def operand(self, cx: Capture) -> Set | None:
        """What generated code can load in place of this set as it is now: an existing set, or a copy by additions."""
        if self.source is not None and not self.changed:
            return self
        order = self.additions() if self.source is None else None
        if order is not None and not self.plain and len(order) > 1:
            cx.looks_at_hashes(self.shadow)
        return None if order is None else Set({Key(cx, v): v for v in order}, self.cls)

    def is_const(self) -> bool:
        return self.cls is frozenset and all(v.is_const() for v in self.entries.values())

    def const(self) -> Any:
        if not self.is_const():
            return super().const()
        if self.shadow is not None or self.real is not None:
            return frozenset(self.real if self.shadow is None else self.shadow)
        return frozenset(v.const() for v in self.entries.values())


def values_in(container: Value) -> Iterable[Value]:
    """What a container holds, for who relies on nothing of it."""
    if isinstance(container, Sequence):
        return container.raw
    if isinstance(container, Set):
        return container.raw.values()
    return container.held() if isinstance(container, Dict) else ()


def bounds_of(cx: Capture, key: Value) -> slice | None:
    """The slice of constants that a key is, made here or a constant (3.14 has those in code); None: it is another key."""
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

    def const(self) -> Any:
        return slice(*(p.const() for p in self.parts))

    def settle(self, why: str) -> Value:
        for part in self.parts:
            part.settle(why)
        return self

    def bounds(self, cx: Capture) -> slice:
        """The slice of constants that indexes a sequence: each part None or an index."""
        return slice(*(None if cx.is_none(p) else cx.index(p) for p in self.parts))

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return cx.evaluate(getattr, self.const(), name)
