"""Handlers for the program's warnings, `warnings.catch_warnings`, and changes of the warning filters.

In: calls of the program.
Out: effects that generated code replays after the graph, in the program's order.  So a warning of the program meets
the filters that the frame has set; filters that raise errors break the graph.  The graph itself contains none of
this.  Operators of the graph warn by the filters around the frame.  The list of a recording manager is not known:
reading it ends the graph before the manager.  If a warning would do more than be printed (`replay.check_only_printed`),
generated code leaves the frame to eager mode.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.calls import Args, BuiltinHandler, Kwargs, builtin
from pycompiler.capture.semantics import torch_polyfills
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, UnknownObject
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Object
from pycompiler.capture.warnings import record

MANAGER = warnings.catch_warnings
ENTER, EXIT = MANAGER.__enter__, MANAGER.__exit__
ACTIONS = ("ignore", "always", "default", "module", "once")
inlining_rules.INLINED |= {MANAGER.__init__}
HEAP_TYPE = 1 << 9
OWN = {"__init__", "__new__", "__str__"}  # methods of a warning class that would run


def _defer(cx: Capture, fn: Callable[..., Any], args: Args) -> Value:
    cx.effects.defer(Builtin(fn), args, (vars(warnings), record.WARNING_GLOBALS))
    return Const(None)


def _is_open(cx: Capture, manager: Object) -> bool:
    return manager.exists or any(w.kind == "call" and w.value[:1] == [manager] for w in cx.effects.journal)


def _check_module(cx: Capture, manager: Object) -> None:
    module = cx.realize(manager.getattr(cx, "_module"))
    if getattr(module, "module", None) is not warnings:
        raise Break("skipped-call", "catch_warnings(module=...) of another module")


@builtin(ENTER)
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not isinstance(manager, Object) or _is_open(cx, manager):
        raise Break(
            "skipped-call", "catch_warnings.__enter__ of a manager that existed before the frame or is entered already"
        )
    _check_module(cx, manager)
    records = cx.truth(manager.getattr(cx, "_record"))
    action = manager.getattr(cx, "_filter")
    if not cx.is_none(action) and cx.snapshot(action)[0] not in ACTIONS:
        raise Break("skipped-call", "catch_warnings(action='error')")
    _defer(cx, ENTER, [manager])
    told = Break("skipped-call", "the list that catch_warnings(record=True) returns")
    return UnknownObject(cx.frames[-1].here(told)) if records else Const(None)


@builtin(EXIT)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not isinstance(manager, Object) or not _is_open(cx, manager):
        raise Break("skipped-call", "catch_warnings.__exit__")
    _check_module(cx, manager)
    return _defer(cx, EXIT, [manager])


def _filtering(fn: Callable[..., None]) -> BuiltinHandler:
    signature = inspect.signature(fn)

    def change(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            raise Break("skipped-call", f"warnings.{fn.__name__} with arguments that it does not take") from None
        given.apply_defaults()
        known = {n: cx.snapshot(v) if isinstance(v, Value) else v for n, v in given.arguments.items()}
        if not all(_FITS[name](value) for name, value in known.items()):
            raise Break(
                "skipped-call", f"warnings.{fn.__name__} with unsupported arguments, or with the action 'error'"
            )
        return _defer(cx, fn, [cx.make(v) for v in known.values()])

    return change


def _is_pattern(text: Any) -> bool:
    try:
        return type(text) is str and bool(re.compile(text))
    except re.error:
        return False


_FITS: dict[str, Callable[[Any], bool]] = {
    "action": ACTIONS.__contains__,
    "message": _is_pattern,
    "module": _is_pattern,
    "category": lambda c: isinstance(c, type) and issubclass(c, Warning),
    "lineno": lambda n: type(n) is int and n >= 0,
    "append": lambda b: type(b) is bool,
}  # fmt: skip
"""Arguments that do not raise an error."""


@builtin(warnings.warn)
def warn(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Handle the plain form: a string, about a line of a captured function."""
    given = dict(zip(("message", "category", "stacklevel"), args, strict=False)) | kwargs
    if (
        len(args) > 3
        or len(given) < len(args) + len(kwargs)
        or not given.keys() <= {"message", "category", "stacklevel"}
    ):
        raise Break("builtin-call", "warnings.warn with arguments other than message, category and stacklevel")
    message, category, level = (
        cx.snapshot(given[n]) if n in given else None for n in ("message", "category", "stacklevel")
    )
    category, level = category or UserWarning, 1 if level is None else level
    place = record.place_at(cx, level)
    if type(message) is not str or not _is_plain(category) or place is None:
        raise Break(
            "builtin-call",
            f"warnings.warn({message!r}, ...), about a line outside of captured code, or with an unsupported message or category",
        )
    record.note(cx, place, message, category)
    return Const(None)


@builtin(torch_polyfills.warns_of)
def warns_of(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """A torch function would warn in C++, about the frame that calls the polyfill in its place."""
    cx.warns_of(cx.realize(args[0]).const())
    return Const(None)


def _is_plain(category: Any) -> bool:
    """Whether creating and printing a warning of this class runs no code of the program."""
    return (
        type(category) is type
        and issubclass(category, Warning)
        and not any(OWN & vars(c).keys() for c in category.__mro__ if c.__flags__ & HEAP_TYPE)
    )


for _fn in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    builtin(_fn)(_filtering(_fn))
