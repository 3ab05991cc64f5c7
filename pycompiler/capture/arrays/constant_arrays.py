"""Arrays that a program creates from constants: NumPy computes their contents, valid until they are written.

In: a NumPy call on constants and such arrays.  Out: its result, whose elements are constants.  A tensor is created on
demand: by the graph if possible, else from NumPy's result, anew in each call.
Example: the elements of ``np.linspace(0, 1, 4)`` in a loop are numbers, and ``np.cumsum([1, 2])[-1]`` is 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pycompiler.capture.arrays import numpy_calls, numpy_numbers
from pycompiler.capture.breaks import Break
from pycompiler.capture.values.array import WRITES, Array, is_wrapped
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import numpy_arrays

MOST = 4096  # elements that are stored
LARGEST = 1024  # of a number that may be a size, if the size is not known before the call
PLAIN = (int, float, complex, bool, str, type(None), type(Ellipsis))


class NotConstant(Exception):
    """Not all of the values are constants."""


def call_function(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy."""
    if name == "where" and len(args) == 1:
        return folded(cx, numpy_arrays.numpy().nonzero, "nonzero", args, kwargs)  # type: ignore[union-attr]

    def ordinary() -> Value:
        return numpy_numbers.call_function(cx, fn, name, args, kwargs)

    if type(getattr(fn, "nin", None)) is int and len(args) > fn.nin:  # the last one is written
        return ordinary()
    return _computed(cx, fn, args, kwargs, ordinary)


def folded(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A NumPy function on constants that has no graph version."""

    def ordinary() -> Value:
        raise Break("skipped-call", f"numpy.{name}")

    return _computed(cx, fn, [_settled(cx, a) for a in args], kwargs, ordinary)


def of_ufunc(cx: Capture, method: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A method of a ufunc on an array; None if the method equals no other NumPy function."""
    ufunc, *given = args
    found = numpy_arrays.of_ufunc(method, getattr(ufunc, "fn", None))
    array = cx.realize(given[0]) if given else None
    if found is None or len(given) > 2 or kwargs.keys() - {"axis", "keepdims"}:
        return None
    if not isinstance(array, Array) or array.scalar or not array.tensor.rank:
        return None
    axis = given[1] if len(given) > 1 else kwargs.get("axis", Const(0))
    return call_function(cx, *found, [array], {**kwargs, "axis": axis})


def _settled(cx: Capture, value: Value) -> Value:
    """A known NumPy scalar as a constant."""
    value = cx.realize(value)
    known = isinstance(value, Array) and value.scalar and value.number() is not None
    return Const(value.const()) if known else value


def call_method(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`args[0].<name>(*args[1:])` of an array."""

    def ordinary() -> Value:
        return numpy_calls.call_method(cx, name, args, kwargs)

    def method(self: Any, *rest: Any, **named: Any) -> Any:
        return getattr(self, name)(*rest, **named)

    owner = args[0]
    if isinstance(owner, Array) and owner.scalar and owner.may_be_known and not is_wrapped(cx):
        return _of_number(cx, method, owner, args[1:], kwargs, ordinary())
    if not isinstance(owner, Array) or owner.known() is None or name in WRITES or name.startswith("__i"):
        return ordinary()
    return _computed(cx, method, args, kwargs, ordinary)


def _of_number(
    cx: Capture, method: Any, owner: Array, args: list[Value], kwargs: dict[str, Value], made: Value
) -> Value:
    """The result of a method of a known scalar.  Its value is read only if torch uses it."""
    try:
        given, named = _constants(cx, args), dict(zip(kwargs, _constants(cx, kwargs.values()), strict=True))
    except NotConstant:
        return made
    if not isinstance(made, Array) or not made.scalar:
        return made

    def known() -> Value | None:
        number = owner.number()
        if number is None:
            return None
        real = owner.python_type()(number.const("as a NumPy number"))
        return Const(cx.evaluate_raw(method, real, *given, **named).item())

    return Array.number_of(made.python_type(), lambda: made.tensor, known)


def binary(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """`left <op> right` or a comparison with a known array; None otherwise."""
    found = numpy_numbers.binary(cx, op, left, right)
    if found is not None or op not in numpy_calls.OPERATORS:
        return found

    def ordinary() -> Value:
        return numpy_calls.binary(cx, op, "", left, right)

    return _computed(cx, numpy_calls.PYTHONS[numpy_calls.OPERATORS[op]], [left, right], {}, ordinary)


def _computed(
    cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], ordinary: Callable[[], Value]
) -> Value:
    """The result of a call: an array with known contents if all arguments are known."""
    try:
        if "out" in kwargs:
            raise NotConstant
        given, named = _constants(cx, args), dict(zip(kwargs, _constants(cx, kwargs.values()), strict=True))
    except NotConstant:
        return ordinary()

    def evaluate() -> Any:
        with numpy_arrays.as_errors():
            return fn(*given, **named)

    try:
        made = ordinary()
    except Break:
        found = _evaluate(evaluate) if not any(map(_is_large, (*given, *named.values()))) else None
        made_now = None if found is None else _constant(cx, found, given)
        if made_now is None:
            raise
        return made_now
    if not isinstance(made, Array) or (not made.scalar and made.tensor.numel > MOST):
        return made
    if not made.scalar:
        made.knows(evaluate)
        if not is_wrapped(cx) or made.tensor.rank:
            return made
    found = _evaluate(evaluate)
    cls = made.python_type() if made.scalar else numpy_arrays.dtype_of(made.tensor.dtype).type
    return cx.make(found) if numpy_arrays.is_number(found) and type(found) is cls else made


def _evaluate(evaluate: Callable[[], Any]) -> Any:
    """NumPy's result; None if it raises or warns, which is left to the program's call."""
    try:
        return evaluate()
    except Exception:
        return None


def _constant(cx: Capture, found: Any, given: list[Any]) -> Value | None:
    """A number, or a new array that no other call shares; None otherwise, and for memory of the arguments (`given`)."""
    if type(found) is tuple:
        items = [_constant(cx, v, given) for v in found]
        known = [v for v in items if v is not None]
        return Tuple(known) if len(known) == len(items) else None
    if numpy_arrays.is_number(found) or type(found) in PLAIN:
        return cx.make(found)
    if type(found) is list and not _has_arrays(found):
        return cx.make(found)
    device = cx.device or torch.get_default_device()
    if (
        not numpy_arrays.is_array(found)
        or not (found.flags.writeable and found.flags.forc)
        or numpy_arrays.shares(found, given)
        or found.size > MOST
        or cx.graph.is_inner
        or device.type != "cpu"
    ):
        return None
    kept = found.copy("K")
    try:
        real = numpy_arrays.tensor_of(kept)
    except (TypeError, ValueError):
        return None

    def make() -> Tensor:
        made = cx.graph.call_method("clone", [cx.graph.constant_tensor(real)], {})
        assert isinstance(made, Tensor)
        return made

    return Array.later(make, lambda: kept)


def _has_arrays(found: list[Any]) -> bool:
    return any(_has_arrays(v) if type(v) is list else type(v) not in PLAIN for v in found)


def _constants(cx: Capture, values: Iterable[Value]) -> list[Any]:
    return [_real(cx, v) for v in values]


def _real(cx: Capture, value: Value) -> Any:
    """The real object of a value that was not written; raises Unknown if it is not known."""
    value = cx.realize(value)
    if isinstance(value, Array) and not value.scalar and (known := value.known()) is not None:
        return known
    if isinstance(value, Const) and (type(value.value) in PLAIN or numpy_arrays.is_constant(value.value)):
        return value.value
    if isinstance(value, Const) and isinstance(value.value, (slice, type)):
        return value.value
    if isinstance(value, Class) and (value.cls in numpy_arrays.PLAIN_DTYPES or numpy_arrays.is_of_numpy(value.cls)):
        return value.cls
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list, torch.Size):
        return value.cls(_constants(cx, value.items))
    if isinstance(value, Slice):
        return slice(*_constants(cx, value.parts))
    raise NotConstant


def _is_large(given: Any) -> bool:
    if isinstance(given, (tuple, list)):
        return len(given) > MOST or any(map(_is_large, given))
    return isinstance(given, (int, float)) and not -LARGEST <= given <= LARGEST
