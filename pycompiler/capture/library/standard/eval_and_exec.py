"""Handlers of `eval`, `exec` and `compile` for known strings: the code is inlined, with its variables by name.

Without dicts, the code sees the variables of the calling frame, as `locals()` gives them.  A dict for globals must be
created in the frame.
"""

from __future__ import annotations
import __future__

import builtins
import types
import warnings
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, run_frame
from pycompiler.capture.interpreter.evaluation import Frame, breaking_frame
from pycompiler.capture.library.standard.builtin_functions import break_for_own_frame, locals_dict
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.ir.source import const_source

OWN_GLOBALS = ("MAKE_FUNCTION", "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS")
"""Instructions that need a module's globals."""


def _code(cx: Capture, value: Value, mode: str) -> types.CodeType:
    """The code of a string, or a code object that the program has compiled."""
    text = cx.snapshot(value)
    if isinstance(text, types.CodeType):
        code = text
    elif isinstance(text, str):
        text = text.lstrip(" \t") if mode == "eval" else text
        code = _compiled(cx, text, "<string>", mode)
    else:
        raise Break("builtin-call", f"{mode} of {value.describe()}")
    if code.co_freevars or inlining_rules.why_frame_skipped(code) is None:
        raise Break("builtin-call", f"{mode} of a function's code")
    return code


FUTURES = __future__.annotations.compiler_flag  # a compiled string inherits it


def _evaluating(mode: str) -> Any:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if kwargs or not 0 < len(args) < 4 or not _is_known(cx, args[0]):
            return break_for_own_frame(cx)
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
        frame.scope, frame.names = scope, locals_dict(cx) if names is None else names
        if not isinstance(frame.names, Dict):
            raise Break("builtin-call", f"{mode} with {frame.names.describe()} as locals")
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
    """Break unless the globals are a new dict of the frame; the dict gets the builtins."""
    frame = Frame(cx, code, {}, {}, ())
    if not isinstance(scope, Dict) or scope.cls is not dict or scope.source is not None:
        raise Break("builtin-call", f"{mode} with {scope.describe()} as globals")
    if any(i.opname in OWN_GLOBALS for i in frame.instructions):
        raise Break(
            "builtin-call",
            f"{mode} of code with a function, class, import or global statement, with globals from the frame",
        )
    if scope.lookup(cx, Const("__builtins__")) is None:
        found = inlining_rules.builtins_of(cx.frames[-1].globals)
        scope.setitem(cx, Const("__builtins__"), cx.wrap(found, const_source(found)))
    else:
        raise Break("builtin-call", f"{mode} with globals that have their own __builtins__")


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
    if told:  # each call of the program raises this warning
        raise Break("builtin-call", f"compile() of code that has a warning: {told[0].message}")
    return code
