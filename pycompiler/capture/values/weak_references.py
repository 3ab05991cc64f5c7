"""Weak references that the program makes.

In: `weakref.ref(obj)`, without a callback.  Out: a value that gives the object where a variable of a captured frame holds it.
Generated code makes the reference where the graph ends; what it refers to lives then as in eager: an existing object by itself,
a new one where something else leads to it (of a tensor `Head.only_referred` asks that: torch may hold one unseen).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Cell, Lazy, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.iterators import ends_others

if TYPE_CHECKING:
    from pycompiler.capture.values.interface import Frame


class MadeReference(Value):
    """One of them.  From now on the end of what it refers to is seen, as is its own: variables keep both beyond a break."""

    def __init__(self, referent: Value, made_at: int | None) -> None:
        self.referent = referent
        self.made_at = made_at
        self.ends = referent.ends = referent.referred = True

    def python_type(self) -> type:
        return weakref.ReferenceType

    def identity(self) -> object:
        raise Break("unsupported-operation", "which weak reference it is: one that there was may be given once more")

    def truth(self, cx: Capture) -> bool:
        return True

    def getattr(self, cx: Capture, name: str) -> Value:
        return Const(None) if name == "__callback__" else super().getattr(cx, name)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs or not is_held(cx, self.referent):
            raise Break("builtin-call", "a weak reference to an object of which the frame may have let go")
        return self.referent


class Registered(Value):
    """What the handle of a hook refers to: the dict that the hook is in."""

    def __init__(self, entries: Value, made_at: int | None) -> None:
        self.entries = entries
        self.made_at = made_at

    def python_type(self) -> type:
        return weakref.ReferenceType

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.entries


FIRST = 2**61
"""Numbers that no handle has."""


class HookNumber(Const):
    """The number of a handle that the frame makes: it stands for the one that generated code takes."""


def is_held(cx: Capture, value: Value) -> bool:
    """Whether a variable of a captured frame holds an object, or what `locals()` gave there, which lives as long."""
    return any(_holds((*_variables(frame), *_shown(frame)), value) for frame in cx.frames)


def shows_an_end(frame: Frame) -> bool:
    """Whether what `locals()` gave in a frame, which lives as long as the frame, holds what ends visibly."""
    return any(map(ends_others, _shown(frame)))


def _variables(frame: Frame) -> list[Value]:
    held = (*frame.locals.values(), *frame.free.values())
    return [v.contents or v if isinstance(v, Cell) else v for v in held]


def _shown(frame: Frame) -> list[Value]:
    if frame.shown is None or sys.version_info >= (3, 13):  # where each call makes a dict of its own
        return []
    return [*frame.shown.entries.values()]


def _holds(held: Iterable[Value], value: Value) -> bool:
    return any(v is value or (isinstance(v, Lazy) and v.seen is value) for v in held)


__all__ = ["FIRST", "HookNumber", "MadeReference", "Registered", "is_held", "shows_an_end"]
