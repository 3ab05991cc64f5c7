"""Keys of dicts and sets, compared as Python compares them: by constant value, else by identity of the object, or by
methods of the program's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Lazy, Value
from pycompiler.capture.values.constant import Const, ids_of_what_is_there

if TYPE_CHECKING:
    from pycompiler.capture.values.dicts import Dict
    from pycompiler.capture.values.sets import Set


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
        return self.value is other.value or bool(self.cx.alike(self.value, other.value))

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


def kind_of(key: Value) -> type:
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


SEPARATE = (tuple, frozenset, type, torch.dtype, torch.device)
"""Classes whose instances equal no text and no number."""
KNOWN_HASH = (str, int, float, complex, bytes, bool, type(None), torch.dtype, torch.device, type)


def known_hash(value: Any) -> bool:
    """Whether the place of this constant in a set is the same in every call."""
    if type(value) in (tuple, frozenset):
        return all(map(known_hash, value))
    return value == value and (type(value) in KNOWN_HASH or type(value) is type)  # not NaN, which is hashed by identity
