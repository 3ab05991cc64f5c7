"""Queries about sizes that torch's own Python functions make: `guard_or_false` and its kin.

In: calls of functions of `torch.fx.experimental.symbolic_shapes` in inlined code of torch, with our numbers.
Out: constants.  The truth of a comparison of symbols is decided by the hints and guarded, as in an `if`.

Example: `all_gather_tensor` calls `guard_or_false(shape[0] == group_size)` to choose between a view and a copy.
"""

from __future__ import annotations

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs
from pycompiler.capture.library.gradients.function_transforms import arguments, items_of, late_handler
from pycompiler.capture.semantics import operators
from pycompiler.capture.semantics.signatures import constant_arguments
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Sequence
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, NestedInt, Symbolic, is_unbacked
from pycompiler.capture.values.tensor import Tensor
from pycompiler.symbolic.symbols import is_symbolic

MODULE = "torch.fx.experimental.symbolic_shapes"


@late_handler(MODULE, "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true")
def truth(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    (value,) = arguments(cx, "a", args, kwargs)
    return Const(value.truth(cx))


@late_handler(MODULE, "sym_and")
def all_true(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(all([cx.realize(a).truth(cx) for a in args]))


@late_handler(MODULE, "sym_or")
def any_true(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(any([cx.realize(a).truth(cx) for a in args]))


@late_handler(MODULE, "sym_eq")
def equal(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Torch's function compares nested sequences without guards; here an entry has the answer of its sizes."""
    a, b = arguments(cx, "x y", args, kwargs)
    return Const(operators.compare(cx, "==", a, b).truth(cx))


@late_handler(MODULE, "is_nested_int")
def nested_int(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    (value,) = arguments(cx, "s", args, kwargs)
    return Const(isinstance(value, NestedInt))


@late_handler(MODULE, "guard_int", "guarding_hint_or_throw")
@constant_arguments("as a constant in a function of torch")
def number(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    (value,) = arguments(cx, "a", args, kwargs)
    return value


@late_handler(MODULE, "has_free_unbacked_symbols")
def has_free_unbacked_symbols(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    (value,) = arguments(cx, "x", args, kwargs)
    sizes = value.shape if isinstance(value, Tensor) else [v.sym for v in _numbers(cx, value)]
    return Const(any(is_symbolic(n) and is_unbacked(n) for n in sizes))


def _numbers(cx: Capture, value: Value) -> list[Symbolic]:
    found = items_of(cx, value) if isinstance(value, Sequence) else [value]
    if not all(isinstance(v, PLAIN_VALUES) for v in found):
        raise Break("skipped-call", f"has_free_unbacked_symbols of {value.describe()}")
    return [v for v in found if isinstance(v, Symbolic)]
