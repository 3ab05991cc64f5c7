"""`numpy.errstate`: NumPy's handling of floating-point errors, stored in a context variable.

In: entry of the context manager.  Out: the state that is known from then on.  Graphs do not warn.  If NumPy would
raise, the graph breaks before the context manager (`capture/library/standard/context_variables.py`).
"""

from __future__ import annotations

from contextvars import ContextVar

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.calls import LATE_BUILTINS, Args, Kwargs, builtin
from pycompiler.capture.library.torch_functions.torch_api import guarded_query
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import const_source
from pycompiler.operators import numpy_arrays

MODULE = "numpy._core._ufunc_config"
KINDS = ("all", "divide", "over", "under", "invalid")
inlining_rules.INLINED_LATE |= {(MODULE, "errstate.__init__"), (MODULE, "errstate.__exit__")}

State = tuple[tuple[str, str], ...]


def _set(cx: Capture) -> State | None:
    """The last state that the frame set; None if it set none."""
    variable = numpy_arrays.errors_variable()
    for token in reversed(cx.variables) if variable is not None else ():
        if getattr(token.variable, "real", None) is variable:
            state: State = token.value.const()
            return state
    return None


@builtin(numpy_arrays.raises_errors)
def raises_errors(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    state = _set(cx)
    return guarded_query(cx, numpy_arrays.raises_errors) if state is None else Const(numpy_arrays.may_raise(state))


def enter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    manager = cx.realize(args[0])
    if not isinstance(manager, Object) or manager.exists:
        raise Break("skipped-call", "numpy.errstate.__enter__ of a manager that existed before the frame")
    if not cx.is_none(manager.getattr(cx, "_token")):
        cx.throw(TypeError, "Cannot enter `np.errstate` twice.")
    if manager.getattr(cx, "_call").python_type().__name__ != "_unspecified":
        raise Break("skipped-call", "numpy.errstate(call=...)")
    wanted = {name: cx.realize(manager.getattr(cx, f"_{name}")).const() for name in KINDS}
    around = _set(cx) or cx.snapshot(guarded_query(cx, numpy_arrays.errors))
    if (variable := numpy_arrays.errors_variable()) is None:
        raise Break(
            "skipped-call", "numpy.errstate.__enter__ of a NumPy version without a context variable for its error state"
        )
    state = Const(cx.evaluate_raw(numpy_arrays.errors_within, around, wanted))
    token = cx.call_builtin(ContextVar.set, [cx.wrap(variable, const_source(variable)), state], {})
    manager.setattr(cx, "_token", token)
    return Const(None)


LATE_BUILTINS[MODULE, "errstate.__enter__"] = enter
