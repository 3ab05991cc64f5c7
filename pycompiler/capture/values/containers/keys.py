"""Keys of dicts and sets, compared as Python does: by constant value, by identity, or by the program's methods."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, LazyObject, Value
from pycompiler.capture.values.constant import Const, check_ids_alive

if TYPE_CHECKING:
    from pycompiler.capture.values.containers.dicts import Dict
    from pycompiler.capture.values.containers.sets import Set


class Key:
    """A dict key or set member: equal iff Python finds the real objects equal.

    Python compares the key of one operation with each stored key of the same hash once.  The capture may search for the
    key several times, so `answers` caches each comparison.
    """

    __slots__ = ("answers", "key", "own", "place", "value")

    def __init__(self, cx: Capture, value: Value) -> None:
        self.value = cx.realize(value, "as a key")
        self.key: Any = cx.key_of(self.value)
        self.answers: dict[int, tuple[Key, bool]] = {}  # answers of the keys that were there before, by `id`
        self.place: Any = None  # of an open key, whose value differs between calls: the source of the value
        self.own: Any = None  # of an open key: the key object that the dict holds in this call

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return False
        if isinstance(self.key, UserKey) is not isinstance(other.key, UserKey):
            raise Break("unsupported-operation", "a key with its own __eq__ beside other keys")
        user = user_key_among([other])
        if user is None:
            return bool(self.key == other.key)
        if id(self) not in other.answers:
            mark = user.cx.effects.mark()
            same = bool(self.key == other.key)
            if not same and mark != user.cx.effects.mark() and not (user is other.key and user.is_asked_once()):
                raise Break("unsupported-operation", USER_KEYS)
            other.answers[id(self)] = self, same
        return other.answers[id(self)][1]

    def __hash__(self) -> int:
        """A constant has its real hash, since a `UserKey` may have the same one."""
        return hash(self.key[1] if isinstance(self.key, tuple) and self.key[0] == "c" else self.key)


class UserKey:
    """The key of an object whose class defines `__hash__` and `__eq__` in Python.

    Generated code that stores such a key runs these methods once more, at another time.  Only a frozen dataclass's
    methods are harmless (`calm`).
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
        """Whether a table compares at most once with a stored key of this hash.

        The bits of a larger hash lead the probe back to the same slots.  So does a set's linear probe when it holds
        more keys.
        """
        return 0 <= self.hash < 32


def user_key_among(keys: Iterable[Key]) -> UserKey | None:
    """The first key, among these or inside one of them, whose methods generated code must not run again."""
    return next((found for k in keys if (found := _restless(k.key)) is not None), None)


def _restless(key: Any) -> UserKey | None:
    if isinstance(key, UserKey):
        return None if key.calm else key
    if not isinstance(key, tuple) or key[0] == "c":
        return None
    if key[0] == "f":
        return user_key_among(key[1])
    return next((found for part in key[1:] if (found := _restless(part)) is not None), None)


def check_replayable(container: Dict | Set, keys: Iterable[Key]) -> None:
    """Break if these keys are added to, or removed from, an existing container: the replay would run the keys' methods
    again."""
    if container.source is not None and (container.restless or user_key_among(keys) is not None):
        raise Break("mutation-unsupported", USER_KEYS)


def kind_of(key: Value) -> type:
    """The kind of a key: keys of different kinds are never equal."""
    value = key.real if isinstance(key, LazyObject) else key.value if isinstance(key, Const) else 0
    return type(value) if type(value) in (str, bytes, type(None)) else object


def keys_of(container: Dict | Set) -> list[Key]:
    """The keys to pass to another dict or set, with their known hashes: the program's `__hash__` does not run."""
    if user_key_among(container.entries) is not None:
        raise Break("unsupported-operation", USER_KEYS)
    return list(container.entries)


def is_stored_under(mapping: dict[Any, Any], key: Any, hashed: int) -> bool:
    """Whether a dict stores a key under this hash.  A dict stores hashes, so the key's methods do not run."""
    find = ctypes.pythonapi["_PyDict_GetItem_KnownHash"]
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t]
    return find(mapping, key, hashed) is not None


USER_KEYS = "a dict or set with keys whose class has its own __hash__ or __eq__"


def distinct_members(cx: Capture, values: Iterable[Value]) -> dict[Key, Value]:
    """The members of a set: of equal values the first one stays."""
    members: dict[Key, Value] = {}
    for value in values:
        members.setdefault(Key(cx, value), value)
    check_ids_alive(members.values())
    return members


SEPARATE = (tuple, frozenset, type, torch.dtype, torch.device)
"""Classes whose instances are never equal to a str or number."""
KNOWN_HASH = (str, int, float, complex, bytes, bool, type(None), torch.dtype, torch.device, type)


def known_hash(value: Any) -> bool:
    """Whether this constant has the same place in a set in every call."""
    if type(value) in (tuple, frozenset):
        return all(map(known_hash, value))
    return value == value and (type(value) in KNOWN_HASH or type(value) is type)  # NaN is hashed by identity
