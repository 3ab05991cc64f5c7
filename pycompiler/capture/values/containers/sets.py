"""Sets of values.

An existing set is guarded only as far as the program reads it.  Changes are replayed at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import NEEDED, Capture, LazyObject, Value
from pycompiler.capture.values.constant import Const, lookup_key
from pycompiler.capture.values.containers.dicts import CheckedIterator, Dict
from pycompiler.capture.values.containers.keys import Key, check_replayable, known_hash, user_key_among
from pycompiler.capture.values.containers.list_ends import UnguardedMembers
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.symbolic_numbers import (
    PLAIN_VALUES,
    changes,
    hint_value,
    is_open,
    is_open_text,
    source_of_open,
)
from pycompiler.ir.computed_sources import has_key
from pycompiler.ir.iterator_state import length_of
from pycompiler.ir.source import mro_of, namespace_of

UNORDERED = "the order of a set whose history, or whose elements' hashes, are unknown"


def hashes(cls: type) -> bool:
    """Whether instances have a hash."""
    return next(namespace_of(c)["__hash__"] for c in mro_of(cls) if "__hash__" in namespace_of(c)) is not None


class Set(Value):
    """A set or frozenset.

    - `shadow`: a real set with the same history as this set has in eager, so that its order is CPython's; None:
      unknown.
    - `plain`: the history is only additions of the entries, one by one, in their order.
    - `raw`: the entries, without a guard on them.
    - `unasked`: the changes of an existing set whose members are not guarded; None otherwise.
    """

    def __init__(self, items: dict[Key, Value], cls: type = set, *, real: Any = None, shadow: Any = None) -> None:
        self.unasked: UnguardedMembers | None = None
        self.raw = items
        self.cls = cls
        self.real = real  # an existing set: its order is guarded when the program reads the order
        self.plain = shadow is None and real is None
        self.shadow: Any = self._added(items.values()) if self.plain else shadow
        self.log: list[tuple[Any, Value | None]] = []  # changes to an existing set
        self.changed = False
        self.made_at: int | None = None
        self.restless = real is not None and user_key_among(items) is not None
        self.recipe: tuple[Any, list[Set]] | None = None  # the operation that created it, for generated code to repeat

    @property
    def entries(self) -> dict[Key, Value]:
        """All members.  The members become guarded."""
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
        """A real set to which the values were added one by one, or None if a hash is not known."""
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
        return CheckedIterator(cx, self, self.ordered(cx))

    def length(self, cx: Capture) -> Value:
        return Const(len(self.entries))

    def truth(self, cx: Capture) -> bool:
        return bool(self.entries)

    def contains(self, cx: Capture, item: Value) -> bool:
        known = self._asks(cx, item)
        if known is None and self.source is None:
            values = [v.value for v in self.raw.values() if isinstance(v, Const)]
            known = cx.realize(item).among(cx, values) if len(values) == len(self.raw) else None
        return self.asked(cx, cx.realize(item)) in self.entries if known is None else known

    def takes(self, item: Value) -> bool:
        """Whether an operation on an open str leaves it open."""
        return is_open_text(item) and self.unasked is not None

    def _asks(self, cx: Capture, item: Value) -> bool | None:
        """Whether an unchanged existing set contains a str or number.  Only this answer is guarded; None: not decided
        here."""
        unasked = self.unasked
        if unasked is None or unasked.changes or not (is_open(item) or isinstance(item, Const)):
            return None
        grows = cx.sizes.integer(length_of(unasked.real), unasked.source.then("begun", length_of)) is not None
        place = source_of_open(cx, item) if grows or is_open(item) and changes(cx, item) else None
        if place is None:
            return None
        if isinstance(item, LazyObject):
            item.guard_class(cx)
        there = hint_value(item) in unasked.real
        cx.guard("equals", cx.computed(has_key, unasked.source, place), there)
        return there

    def asked(self, cx: Capture, item: Value) -> Key:
        """The key to search for.  A set is hashed as a frozenset for the search."""
        storage = getattr(item, "storage", None)
        if isinstance(storage, Set) and issubclass(storage.cls, set) and not hashes(item.python_type()):
            item = storage
        if isinstance(item, Set) and issubclass(item.cls, set):
            return Key(cx, Set(dict(item.entries), frozenset))
        if issubclass(item.python_type(), set) and not hashes(item.python_type()):
            raise Break("unsupported-operation", f"{item.describe()}, a set of unknown members, searched in a set")
        return Key(cx, lookup_key(cx, item, self.entries.values()))

    def happened(self, cx: Capture, method: Any, value: Value | None = None, key: Key | None = None) -> None:
        """Call before a change.  The shadow gets the same change; an existing set gets it in the replay."""
        check_replayable(self, [] if key is None else [key])
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
        key = Key(cx, lookup_key(cx, value, self.entries.values()))
        self.happened(cx, set.add, value, key)
        self.entries.setdefault(key, value)

    def _happens_unasked(self, cx: Capture, method: Any, value: Value) -> bool:
        """Add or remove a constant or an open value, without a guard on the members of an existing set."""
        if self.unasked is None or not (isinstance(value, PLAIN_VALUES) or is_open_text(value)):
            return False
        if isinstance(value, LazyObject):
            value.guard_class(cx)
        if isinstance(value, Const):
            Key(cx, value)  # raises if it has no hash
        self.happened(cx, method, value)
        self.unasked.changes.append((method, value))
        return True

    def discard(self, cx: Capture, value: Value) -> bool | None:
        """Whether the value was a member; None if the members are not guarded."""
        if self._happens_unasked(cx, set.discard, value):
            return None
        key = self.asked(cx, value)
        if not value.is_const() and self.log and self.log[-1][0] is set.add and self.log[-1][1] is value:
            self.log.pop()  # undo the addition: generated code cannot load such a value (an id)
        else:
            self.happened(cx, set.discard, value, key)
        found = self.entries.pop(key, None) is not None
        self.plain = self.plain and not found
        return found

    def empty(self, cx: Capture, method: Any) -> None:
        """set.clear, or the pop of the only element."""
        self.happened(cx, method)
        self.plain = self.plain and not self.raw
        self.entries = {}

    def replace(self, cx: Capture, other: Set, method: Any, operand: Value, elements: list[Value]) -> None:
        """`method(self, operand)` changes the set in place to the contents of `other`."""
        if self.source is not None:
            check_replayable(self, [Key(cx, v) for v in elements])
            if isinstance(operand, Dict):
                raise Break("mutation-unsupported", f"an update of an existing {self.cls.__name__} with a dict")
            given = operand.additions() if isinstance(operand, Set) else elements
            if given is None:
                raise Break("unsupported-operation", UNORDERED)
            if isinstance(operand, Set) and not operand.plain and len(given) > 1:
                cx.looks_at_hashes(operand.shadow)
            then: Value = Tuple(given)
            if isinstance(operand, Set):  # a set keeps its table with itself as the operand, but not with an equal set
                then = self if operand is self else Set({Key(cx, v): v for v in given}, frozenset)
            cx.effects.mutate(self)
            self.log.append((method, then))
        self.entries, self.shadow, self.plain, self.changed = other.entries, other.shadow, False, True
        self.recipe = None

    def additions(self) -> list[Value] | None:
        """The elements in an order whose additions to an empty set build this very set, or None."""
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
        """A set that generated code can load for this one: the unchanged existing set or a copy by additions; None:
        neither."""
        if self.source is not None and not self.changed:
            return self
        order = self.additions() if self.source is None else None
        if order is not None and not self.plain and len(order) > 1:
            cx.looks_at_hashes(self.shadow)
        return None if order is None else Set({Key(cx, v): v for v in order}, self.cls)

    def is_const(self) -> bool:
        return self.cls is frozenset and all(v.is_const() for v in self.entries.values())

    def const(self, why: str = NEEDED) -> Any:
        if not self.is_const():
            return super().const(why)
        if self.shadow is not None or self.real is not None:
            return frozenset(self.real if self.shadow is None else self.shadow)
        return frozenset(v.const(why) for v in self.entries.values())


def values_in(container: Value) -> Iterable[Value]:
    """The contents of a container, without a guard on them."""
    if isinstance(container, Sequence):
        return container.raw
    if isinstance(container, Set):
        return container.raw.values()
    return container.held() if isinstance(container, Dict) else ()
