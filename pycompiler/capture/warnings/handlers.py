"""Warnings of the program's, `warnings.catch_warnings`, and what changes its filters.

Generated code does it after the graph, in the order of the program, so that a program's own warning meets the filters that the
frame has set (none of which makes errors): the graph has no part of it.  Operators of the graph warn by the filters around it.
The list of a manager that records is not known: who looks at it has the graph end before the manager.
Where a warning would do more than be shown (`shown.only_shown`) generated code leaves the frame to eager.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

from pycompiler.capture import composed, skip, warns
from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, BuiltinHandler, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const, Withheld
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Object

MANAGER = warnings.catch_warnings
ENTER, EXIT = MANAGER.__enter__, MANAGER.__exit__
ACTIONS = ("ignore", "always", "default", "module", "once")
skip.INLINED |= {MANAGER.__init__}
HEAP_TYPE = 1 << 9
OWN = {"__init__", "__new__", "__str__"}  # what of a class of warnings would be run


def _defer(cx: Capture, fn: Callable[..., Any], args: Args) -> Value:
    cx.effects.defer(Builtin(fn), args, (vars(warnings), warns.SHOWN))
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
        raise Break("skipped-call", "catch_warnings.__enter__ of a manager that was made before")
    _check_module(cx, manager)
    records = cx.truth(manager.getattr(cx, "_record"))
    action = manager.getattr(cx, "_filter")
    if not cx.is_none(action) and cx.snapshot(action)[0] not in ACTIONS:
        raise Break("skipped-call", "catch_warnings(action='error')")
    _defer(cx, ENTER, [manager])
    told = Break("skipped-call", "what catch_warnings(record=True) gives")
    return Withheld(cx.frames[-1].here(told)) if records else Const(None)


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
            raise Break("skipped-call", f"warnings.{fn.__name__} of other arguments") from None
        given.apply_defaults()
        known = {n: cx.snapshot(v) if isinstance(v, Value) else v for n, v in given.arguments.items()}
        if not all(_FITS[name](value) for name, value in known.items()):
            raise Break("skipped-call", f"warnings.{fn.__name__} of other arguments, or of errors")
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
"""What does not raise an error."""


@builtin(warnings.warn)
def warn(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Only the plain form: a text, about a line of a function that is being captured."""
    given = dict(zip(("message", "category", "stacklevel"), args, strict=False)) | kwargs
    if (
        len(args) > 3
        or len(given) < len(args) + len(kwargs)
        or not given.keys() <= {"message", "category", "stacklevel"}
    ):
        raise Break("builtin-call", "warnings.warn of other arguments")
    message, category, level = (
        cx.snapshot(given[n]) if n in given else None for n in ("message", "category", "stacklevel")
    )
    category, level = category or UserWarning, 1 if level is None else level
    place = warns.place_at(cx, level)
    if type(message) is not str or not _is_plain(category) or place is None:
        raise Break("builtin-call", f"warnings.warn({message!r}, ...), about a line outside, or of another kind")
    warns.note(cx, place, message, category)
    return Const(None)


@builtin(composed.warns_of)
def warns_of(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """A function of torch's would warn of this, in C++: about the frame that calls the function in its place."""
    cx.warns_of(cx.realize(args[0]).const())
    return Const(None)


def _is_plain(category: Any) -> bool:
    """Whether nothing of the program's runs to make and show a warning of this class."""
    return (
        type(category) is type
        and issubclass(category, Warning)
        and not any(OWN & vars(c).keys() for c in category.__mro__ if c.__flags__ & HEAP_TYPE)
    )


for _fn in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    builtin(_fn)(_filtering(_fn))
