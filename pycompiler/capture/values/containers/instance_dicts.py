"""`__dict__` of objects and functions as a dict: its entries are the owner's attributes.

In: the owner, with its overlay of attributes that the program set.  Out: a dict whose reads and writes go to the owner.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import (
    MISSING,
    is_behind_python_descriptor,
    is_data_descriptor,
    lookup_descriptor,
    mro_lookup,
)
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.keys import Key
from pycompiler.capture.values.functions import PARTIAL, shadowed, unshadowed


class _Deleted(Value):
    """Marks an attribute that the captured program deleted."""


DELETED = _Deleted()


class InstanceDict(Dict):
    """vars(object): the attributes of its instance dict, live in both directions."""

    def __init__(self, cx: Capture, owner: Any, base: Dict | None = None) -> None:
        self.owner = owner
        self.base = base
        self.cx = cx
        super().__init__({}, dict, real=None if base is None else base.real)
        self.source = None if base is None else base.source

    def identity(self) -> object:
        """The identity of the real dict, which the program may reach another way too."""
        return super().identity() if self.base is None else self.base.identity()

    def _own_slots(self, name: str) -> bool:
        raw = mro_lookup(self.owner.cls, name)
        return raw is not MISSING and is_data_descriptor(raw) and not is_behind_python_descriptor(self.owner.cls, name)

    def _decide(self, cx: Capture, name: str) -> None:
        """Guard the class: it decides whether generated code writes the attribute or the dict."""
        lookup_descriptor(cx, self.owner.cls, name)

    @property
    def entries(self) -> dict[Key, Value]:
        found = dict(self.base.entries) if self.base is not None else {}
        for name, value in self.owner.overlay.items():
            if self._own_slots(name):
                continue
            key = Key(self.cx, Const(name))
            if value is DELETED or self.cx.facts.location("attribute", self.owner, name) in self.cx.effects.moved:
                found.pop(key, None)
            if value is not DELETED:
                found[key] = value
        return found

    @entries.setter
    def entries(self, value: dict[Key, Value]) -> None:
        """The entries are the owner's attributes; there is nothing to store."""

    def at(self, cx: Capture, key: Key) -> Value:
        return cx.realize(self.entries[key])

    def _overlaid(self, key: Value) -> Value | None:
        name = key.const() if key.is_const() else None
        if not isinstance(name, str) or self._own_slots(name):
            return None
        found: Value | None = self.owner.overlay.get(name)
        return None if found is None else self.cx.realize(found)

    def lookup(self, cx: Capture, key: Value) -> Value | None:
        found = self._overlaid(key)
        if found is not None:
            return None if found is DELETED else found
        return None if self.base is None else self.base.lookup(cx, key)

    def contains(self, cx: Capture, item: Value) -> bool:
        found = self._overlaid(item)
        if found is not None:
            return found is not DELETED
        return self.base is not None and self.base.contains(cx, item)

    def guard_keys(self, cx: Capture) -> None:
        if self.base is not None:
            self.base.guard_keys(cx)

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        name = key.const() if key.is_const() else None
        if not isinstance(name, str) or self._own_slots(name):
            raise Break("mutation-unsupported", f"vars({self.owner.describe()})[{key.describe()}] = ...")
        self._decide(cx, name)
        cx.effects.set_attr(self.owner, name, value)

    def delitem(self, cx: Capture, key: Value) -> None:
        if self.lookup(cx, key) is None:
            cx.throw_value(KeyError, [key])
        self._decide(cx, key.const())
        cx.effects.set_attr(self.owner, key.const(), DELETED)

    def entries_at(self, key: Key) -> dict[Key, Value]:
        return self.entries

    def known(self) -> Iterable[Key]:
        return self.entries

    def held(self) -> Iterable[Value]:
        return self.entries.values()

    def says_truth(self) -> bool:
        return False

    def empty(self, cx: Capture) -> None:
        self.mutate(cx)

    def mutate(self, cx: Capture, drops: Iterable[Value] | None = None, keys: list[Key] | None = None) -> None:
        raise Break("mutation-unsupported", f"a change of vars({self.owner.describe()}) as a whole")


class FunctionDict(InstanceDict):
    """vars(function) of a function created by the program: its attributes.

    An entry with the name of a slot that every function has is no attribute (see `shadowed`).  `functools.wraps` copies
    such entries from objects that are not functions.
    """

    def _own_slots(self, name: str) -> bool:
        return name in types.FunctionType.__dict__

    @property
    def entries(self) -> dict[Key, Value]:
        shown = {n: v for n, v in self.owner.overlay.items() if not self._own_slots(n)}
        return {Key(self.cx, Const(unshadowed(n))): v for n, v in shown.items()}

    @entries.setter
    def entries(self, value: dict[Key, Value]) -> None:
        """The entries are the owner's attributes; there is nothing to store."""

    def _overlaid(self, key: Value) -> Value | None:
        name = key.const() if key.is_const() else None
        found: Value | None = self.owner.overlay.get(self._kept_as(name)) if isinstance(name, str) else None
        return found

    def _kept_as(self, name: str) -> str:
        return shadowed(name) if self._own_slots(name) else name

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        name = key.const() if key.is_const() else None
        if not isinstance(name, str) or unshadowed(name) != name:
            raise Break("mutation-unsupported", f"vars(function)[{key.describe()}] = ...")
        if self._own_slots(name):
            cx.effects.allow(self.owner, self.owner.describe())
            self.owner.overlay[shadowed(name)] = value
        else:
            self.owner.setattr(cx, name, value)

    def delitem(self, cx: Capture, key: Value) -> None:
        if self.lookup(cx, key) is None:
            cx.throw_value(KeyError, [key])
        self.remove(cx, Key(cx, key))

    def remove(self, cx: Capture, k: Key) -> None:
        cx.effects.allow(self.owner, self.owner.describe())
        del self.owner.overlay[self._kept_as(k.value.const())]


class PartialDict(FunctionDict):
    """vars(partial) of a partial created by the program."""

    def _own_slots(self, name: str) -> bool:
        return name in PARTIAL

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        if key.is_const() and key.const() in PARTIAL:
            raise Break("mutation-unsupported", f"vars(partial)[{key.describe()}] = ...")
        super().setitem(cx, key, value)
