"""Context variables: what a frame sets it sets back, or the graph breaks before.

In: `variable.get()`, `set`, `reset`.  Out: the value of now; one that the frame has not set is read by a guard.
"""

from __future__ import annotations

from contextvars import ContextVar

from pycompiler.capture.breaks import Break
from pycompiler.capture.builtins.torch_api import ask
from pycompiler.capture.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.opaque import Opaque, Token


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
    return ask(cx, variable.get)


@builtin(ContextVar.set)
def set_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    made = Token(args[0], args[1], cx.frames[0].begin)
    cx.variables.append(made)
    return made


@builtin(ContextVar.reset)
def reset(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not cx.variables or cx.variables[-1] is not args[1] or not cx.identical(cx.variables[-1].variable, args[0]):
        raise Break("builtin-call", "a context variable that is set back in another order, or by another one")
    cx.variables.pop()
    return Const(None)
