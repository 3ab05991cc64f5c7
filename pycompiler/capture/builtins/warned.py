"""`warnings.catch_warnings`, and what changes its filters.

Generated code does it after the graph, in the order of the program: the graph has no part of it.  Operators of the graph warn
by the filters around it; a program's own warning breaks the graph, so it meets the filters that it set.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import Args, BuiltinHandler, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.objects import Object

MANAGER = warnings.catch_warnings
ENTER, EXIT = MANAGER.__enter__, MANAGER.__exit__
SHOWN = ("filters", "showwarning", "_showwarnmsg_impl")
ACTIONS = ("ignore", "always", "default", "module", "once")
skip.INLINED |= {MANAGER.__init__}


def _defer(cx: Capture, fn: Callable[..., Any], args: Args) -> Value:
    cx.effects.defer(Builtin(fn), args, (vars(warnings), SHOWN))
    return Const(None)


def _is_open(cx: Capture, manager: Object) -> bool:
    return manager.exists or any(w.kind == "call" and w.value[:1] == [manager] for w in cx.effects.journal)


@builtin(ENTER)
def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not isinstance(manager, Object) or _is_open(cx, manager):
        raise Break("skipped-call", "catch_warnings.__enter__ of a manager that was made before")
    if cx.truth(manager.getattr(cx, "_record")):
        raise Break("skipped-call", "catch_warnings(record=True)")
    action = manager.getattr(cx, "_filter")
    if not cx.is_none(action) and cx.snapshot(action)[0] not in ACTIONS:
        raise Break("skipped-call", "catch_warnings(action='error')")
    return _defer(cx, ENTER, [manager])


@builtin(EXIT)
def leave(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not isinstance(manager, Object) or not _is_open(cx, manager):
        raise Break("skipped-call", "catch_warnings.__exit__")
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

for _fn in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    builtin(_fn)(_filtering(_fn))
