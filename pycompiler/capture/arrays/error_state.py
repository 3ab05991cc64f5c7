"""`numpy.errstate`: what NumPy does about errors of floating-point operations, while a context variable is set.

In: the manager is entered.  Out: the state that is known from then on.  Graphs warn of nothing; where NumPy would raise, the
graph breaks ahead of the manager (`variables.py`).
"""

from __future__ import annotations

from contextvars import ContextVar

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break
from pycompiler.capture.builtins.torch_api import ask
from pycompiler.capture.calls import LATE, Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.objects import Object
from pycompiler.ir import arrays
from pycompiler.ir.source import const as const_source

MODULE = "numpy._core._ufunc_config"
KINDS = ("all", "divide", "over", "under", "invalid")
skip.INLINED_LATE |= {(MODULE, "errstate.__init__"), (MODULE, "errstate.__exit__")}

State = tuple[tuple[str, str], ...]


def _set(cx: Capture) -> State | None:
    """What the frame has set last; None: nothing."""
    variable = arrays.errors_variable()
    for token in reversed(cx.variables) if variable is not None else ():
        if getattr(token.variable, "real", None) is variable:
            state: State = token.value.const()
            return state
    return None


@builtin(arrays.raises_errors)
def raises_errors(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    state = _set(cx)
    return ask(cx, arrays.raises_errors) if state is None else Const(arrays.may_raise(state))


def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not isinstance(manager, Object) or manager.exists:
        raise Break("skipped-call", "numpy.errstate.__enter__ of a manager that was made before")
    if not cx.is_none(manager.getattr(cx, "_token")):
        cx.throw(TypeError, "Cannot enter `np.errstate` twice.")
    if manager.getattr(cx, "_call").python_type().__name__ != "_unspecified":
        raise Break("skipped-call", "numpy.errstate(call=...)")
    wanted = {name: cx.realize(manager.getattr(cx, f"_{name}")).const() for name in KINDS}
    around = _set(cx) or cx.snapshot(ask(cx, arrays.errors))
    if (variable := arrays.errors_variable()) is None:
        raise Break("skipped-call", "numpy.errstate.__enter__, whose state is in no context variable")
    state = Const(cx.evaluate_raw(arrays.errors_within, around, wanted))
    token = cx.call_builtin(ContextVar.set, [cx.wrap(variable, const_source(variable)), state], {})
    manager.setattr(cx, "_token", token)
    return Const(None)


LATE[MODULE, "errstate.__enter__"] = enter
