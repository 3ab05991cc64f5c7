"""`eval`, `exec` and `compile` of texts that are known: what the text does is inlined, with variables by name.

Without dicts it sees the variables of the frame that calls, as `locals()` shows them; a dict of globals is the frame's own.
"""

from __future__ import annotations
import __future__

import builtins
import types
import warnings
from typing import Any

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break
from pycompiler.capture.builtins.python import own_frame, shown
from pycompiler.capture.calls import Args, Kwargs, builtin, run_frame
from pycompiler.capture.interpreter import Frame, breaking_frame
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.ir.source import const as const_source

OWN_GLOBALS = ("MAKE_FUNCTION", "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS")
"""Instructions that need the globals as a module's."""


def _code(cx: Capture, value: Value, mode: str) -> types.CodeType:
    """The code of a text, or that the program has compiled."""
    text = cx.snapshot(value)
    if isinstance(text, types.CodeType):
        code = text
    elif isinstance(text, str):
        text = text.lstrip(" \t") if mode == "eval" else text
        code = _compiled(cx, text, "<string>", mode)
    else:
        raise Break("builtin-call", f"{mode} of {value.describe()}")
    if code.co_freevars or skip.why_frame_skipped(code) is None:
        raise Break("builtin-call", f"{mode} of a function's code")
    return code


FUTURES = __future__.annotations.compiler_flag  # which a text inherits


def _evaluating(mode: str) -> Any:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if kwargs or not 0 < len(args) < 4 or not _is_known(cx, args[0]):
            return own_frame(cx)
        text = args[0]
        scope, names = [*args[1:], None, None][:2]
        if scope is None and names is None:
            around = breaking_frame(cx.frames[:-1]).begin if len(cx.frames) > 1 else None
            cx.reads_frame[cx.frames[-1].begin] = around
        code = _code(cx, text, mode)
        scope = None if scope is None or cx.is_none(scope) else scope
        names = scope if names is None or cx.is_none(names) else names
        if scope is not None:
            _check(cx, code, scope, mode)
        frame = Frame(cx, code, cx.frames[-1].globals, {}, ())
        frame.scope, frame.names = scope, shown(cx) if names is None else names
        if not isinstance(frame.names, Dict):
            raise Break("builtin-call", f"{mode} with {frame.names.describe()} for variables")
        cx.inlined.add(code)
        _, result = run_frame(cx, frame)
        return result if mode == "eval" else Const(None)

    return handler


def _is_known(cx: Capture, text: Value) -> bool:
    try:
        return isinstance(cx.snapshot(text), (str, types.CodeType))
    except Break:
        return False


def _check(cx: Capture, code: types.CodeType, scope: Value, mode: str) -> None:
    """A dict of the frame's as globals, which gets the builtins first."""
    frame = Frame(cx, code, {}, {}, ())
    if not isinstance(scope, Dict) or scope.cls is not dict or scope.source is not None:
        raise Break("builtin-call", f"{mode} with {scope.describe()} for globals")
    if any(i.opname in OWN_GLOBALS for i in frame.instructions):
        raise Break("builtin-call", f"{mode} of what keeps its globals, which are a dict of the frame's")
    if scope.lookup(cx, Const("__builtins__")) is None:
        found = skip.builtins_of(cx.frames[-1].globals)
        scope.setitem(cx, Const("__builtins__"), cx.wrap(found, const_source(found)))
    else:
        raise Break("builtin-call", f"{mode} with builtins of the frame's")


builtin(builtins.eval)(_evaluating("eval"))
builtin(builtins.exec)(_evaluating("exec"))


@builtin(builtins.compile)
def compile_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    known, named = [cx.snapshot(a) for a in args], {k: cx.snapshot(v) for k, v in kwargs.items()}
    if len(known) != 3 or named or not all(type(v) is str for v in known):
        raise Break("builtin-call", f"compile({', '.join(a.describe() for a in args)})")
    return cx.make(_compiled(cx, *known))


def _compiled(cx: Capture, text: Any, filename: Any, mode: Any) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        code = cx.evaluate_raw(compile, text, filename, mode, cx.frames[-1].code.co_flags & FUTURES, True)
    if told:  # each call of the program's tells it
        raise Break("builtin-call", f"compile() of a text that it warns of: {told[0].message}")
    return code
