"""Handlers of methods of exceptions, and of reads of the handled exception."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.semantics import exception_groups
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.objects import Object, Traceback, traceback_of


def _new_exception(value: Value, what: str) -> Object:
    if not isinstance(value, Object) or value.exists:
        raise Break("mutation-unsupported", f"{what} of {value.describe()}")
    return value


@builtin(BaseException.with_traceback)
def with_traceback(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    made = _new_exception(args[0], "with_traceback")
    made.setattr(cx, "__traceback__", args[1])
    return made


@builtin(traceback.clear_frames)
def clear_frames(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Nothing to do for captured functions: their variables are released when they end."""
    if len(args) != 1 or kwargs or not isinstance(cx.realize(args[0]), Traceback) or any(e() for e in cx.holding):
        raise Break("skipped-call", "traceback.clear_frames")
    return Const(None)


@builtin(BaseException.add_note)
def add_note(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    exception = _new_exception(args[0], "add_note")
    if len(args) != 2 or kwargs:
        raise Break("builtin-call", f"add_note with {len(args) - 1} arguments")
    cls = args[1].python_type()
    if not issubclass(cls, str):
        name = class_name(cls)
        if sys.version_info >= (3, 14):  # raised by its argument parser
            name = "None" if cls is type(None) else name
            cx.throw(TypeError, f"add_note() argument must be str, not {name}")
        cx.throw(TypeError, f"note must be a str, not {name!r}")
    notes = cx.catching(AttributeError, lambda: exception.getattr(cx, "__notes__"))
    if notes is None:
        exception.setattr(cx, "__notes__", List([args[1]]))
        return Const(None)
    if not issubclass(notes.python_type(), list):
        cx.throw(TypeError, "Cannot add note: __notes__ is not a list")
    return cx.call(cx.make(list.append), [notes, args[1]], {})


@builtin(BaseExceptionGroup.split)
def split(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Tuple([*exception_groups.split(cx, args[0], args[1])])


@builtin(BaseExceptionGroup.subgroup)
def subgroup(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return exception_groups.split(cx, args[0], args[1], whole=False)[0]


@builtin(BaseExceptionGroup.derive)
def derive(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.call(cx.make(BaseExceptionGroup), [args[0].getattr(cx, "message"), args[1]], {})


def _handled(cx: Capture) -> Value | None:
    """The exception being handled, as sys.exception() returns it."""
    found: Any = next((f.handled[-1] for f in reversed(cx.frames) if f.handled), None)
    if found is None:
        cx.ask_callers()
    return found if isinstance(found, Value) else None


@builtin(sys.exc_info)
def exc_info(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    exception = _handled(cx)
    if exception is None:
        return Tuple([Const(None)] * 3)
    return Tuple([cx.class_of(exception), exception, traceback_of(exception)])


@builtin(sys.exception)
def exception_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return _handled(cx) or Const(None)
