"""Handlers of context variables: the frame must reset the variables that it sets, or the graph breaks before the set.

In: `variable.get()`, `set`, `reset`.  Out: the current value.  A guard reads a variable that the frame has not set.
"""

from __future__ import annotations

from contextvars import ContextVar

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.torch_functions.torch_api import guarded_query
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.opaque import ContextVarToken, Opaque


@builtin(ContextVar.get)
def get(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    for token in reversed(cx.variables):
        if cx.identical(token.variable, args[0]):
            return token.value
    variable = args[0].real if isinstance(args[0], Opaque) else None
    try:
        assert isinstance(variable, ContextVar)
        variable.get()
    except (AssertionError, LookupError):
        raise Break("builtin-call", "a context variable without a value") from None
    return guarded_query(cx, variable.get)


@builtin(ContextVar.set)
def set_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    made = ContextVarToken(args[0], args[1], cx.frames[0].begin)
    cx.variables.append(made)
    return made


@builtin(ContextVar.reset)
def reset(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not cx.variables or cx.variables[-1] is not args[1] or not cx.identical(cx.variables[-1].variable, args[0]):
        raise Break(
            "builtin-call", "a context variable that is reset in another order, or with the token of another variable"
        )
    cx.variables.pop()
    return Const(None)
