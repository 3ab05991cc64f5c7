"""Sets of values.  One that existed before the frame is guarded by what is asked of it, and a change is replayed at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Lazy, Value
from pycompiler.capture.values.constant import Const, settled
from pycompiler.capture.values.dicts import Dict, Stable
from pycompiler.capture.values.ends import Members
from pycompiler.capture.values.keys import Key, known_hash, replayed, restless
from pycompiler.capture.values.sequences import Sequence, Tuple
from pycompiler.capture.values.symbolic import PLAIN_VALUES, changes, is_open, is_open_text, place_of, today
from pycompiler.ir.begun import length_of
from pycompiler.ir.computed import has_key
from pycompiler.ir.source import mro_of, namespace_of

UNORDERED = "the order of a set whose elements' hashes, or whose history, are not known"


def hashes(cls: type) -> bool:
    """Whether instances have a hash."""
    return next(namespace_of(c)["__hash__"] for c in mro_of(cls) if "__hash__" in namespace_of(c)) is not None


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
        return Stable(cx, self, self.ordered(cx))

    def length(self, cx: Capture) -> int:
        return len(self.entries)

    def truth(self, cx: Capture) -> bool:
        return bool(self.entries)

    def contains(self, cx: Capture, item: Value) -> bool:
        known = self._asks(cx, item)
        if known is None and self.source is None:
            values = [v.value for v in self.raw.values() if isinstance(v, Const)]
            known = cx.realize(item).among(cx, values) if len(values) == len(self.raw) else None
        return self.asked(cx, cx.realize(item)) in self.entries if known is None else known

    def takes(self, item: Value) -> bool:
        """Whether a text of the program's need not be asked which it is."""
        return is_open_text(item) and self.unasked is not None

    def _asks(self, cx: Capture, item: Value) -> bool | None:
        """Whether an existing set that nobody has changed has a text or number, which is guarded."""
        unasked = self.unasked
        if unasked is None or unasked.changes or not (is_open(item) or isinstance(item, Const)):
            return None
        grows = cx.sizes.integer(length_of(unasked.real), unasked.source.then("begun", length_of)) is not None
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
        storage = getattr(item, "storage", None)
        if isinstance(storage, Set) and issubclass(storage.cls, set) and not hashes(item.python_type()):
            item = storage
        if isinstance(item, Set) and issubclass(item.cls, set):
            return Key(cx, Set(dict(item.entries), frozenset))
        if issubclass(item.python_type(), set) and not hashes(item.python_type()):
            raise Break("unsupported-operation", f"{item.describe()}, of which nobody knows the members, in a set")
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
