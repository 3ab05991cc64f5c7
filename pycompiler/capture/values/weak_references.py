"""Weak references that the program creates.

In: `weakref.ref(obj)` without a callback.  Out: a value that returns the object while a variable of a captured frame
holds it. Generated code creates the reference where the graph ends.  The referent must live then as in eager.  An
existing object does; a new one does if another object refers to it.  For a tensor see `Head.only_referred`, since torch
may hold it invisibly.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Cell, LazyObject, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.iterators import runs_code_at_end

if TYPE_CHECKING:
    from pycompiler.capture.values.interface import Frame


class MadeReference(Value):
    """A new weak reference.

    From its creation on, the ends of the referent and of the reference are observable: variables keep both across a
    graph break.
    """

    def __init__(self, referent: Value, made_at: int | None) -> None:
        self.referent = referent
        self.made_at = made_at
        self.ends = referent.ends = referent.referred = True

    def python_type(self) -> type:
        return weakref.ReferenceType

    def identity(self) -> object:
        raise Break(
            "unsupported-operation", "the identity of a weak reference: weakref.ref() may return an existing one"
        )

    def truth(self, cx: Capture) -> bool:
        return True

    def getattr(self, cx: Capture, name: str) -> Value:
        return Const(None) if name == "__callback__" else super().getattr(cx, name)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs or not is_held(cx, self.referent):
            raise Break("builtin-call", "a weak reference to an object that the frame may have dropped")
        return self.referent


class HookDictReference(Value):
    """The weak reference in a hook's handle: it refers to the dict of hooks."""

    def __init__(self, entries: Value, made_at: int | None) -> None:
        self.entries = entries
        self.made_at = made_at

    def python_type(self) -> type:
        return weakref.ReferenceType

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.entries


FIRST = 2**61
"""Numbers that no real handle has."""


class HookNumber(Const):
    """The number of a handle that the frame creates.  Generated code replaces it by a real one."""


def is_held(cx: Capture, value: Value) -> bool:
    """Whether a variable of a captured frame, or the dict of its `locals()`, holds an object."""
    return any(_holds((*_variables(frame), *_shown(frame)), value) for frame in cx.frames)


def locals_observe_end(frame: Frame) -> bool:
    """Whether the dict of a frame's `locals()`, which lives as long as the frame, holds an object whose end is observable."""
    return any(map(runs_code_at_end, _shown(frame)))


def _variables(frame: Frame) -> list[Value]:
    held = (*frame.locals.values(), *frame.free.values())
    return [v.contents or v if isinstance(v, Cell) else v for v in held]


def _shown(frame: Frame) -> list[Value]:
    if frame.shown is None or sys.version_info >= (3, 13):  # since 3.13 each call creates a new dict
        return []
    return [*frame.shown.entries.values()]


def _holds(held: Iterable[Value], value: Value) -> bool:
    return any(v is value or (isinstance(v, LazyObject) and v.seen is value) for v in held)


__all__ = ["FIRST", "HookDictReference", "HookNumber", "MadeReference", "is_held", "locals_observe_end"]
