"""Arrays that a program makes of constants: NumPy itself says what is in them, while nobody has written them.

In: a call of NumPy's on constants and such arrays.  Out: what it gives; its elements are constants.  A tensor is made where it is
wanted: by the graph where it can, else of what NumPy gave, anew in each call.
Example: of ``np.linspace(0, 1, 4)`` the elements that a loop takes are numbers, and ``np.cumsum([1, 2])[-1]`` is 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pycompiler.capture import numpy_calls, numpy_numbers
from pycompiler.capture.breaks import Break
from pycompiler.capture.values.array import WRITES, Array, is_wrapped
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.sequences import List, Slice, Tuple
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import arrays

MOST = 4096  # elements that are kept
LARGEST = 1024  # of a number that may be a size, where nothing tells the size before
PLAIN = (int, float, complex, bool, str, type(None), type(Ellipsis))


class Unknown(Exception):
    """What is no constant is among the values."""


def call_function(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy's."""
    if name == "where" and len(args) == 1:
        return folded(cx, arrays.numpy().nonzero, "nonzero", args, kwargs)  # type: ignore[union-attr]

    def ordinary() -> Value:
        return numpy_numbers.call_function(cx, fn, name, args, kwargs)

    if type(getattr(fn, "nin", None)) is int and len(args) > fn.nin:  # the last is written
        return ordinary()
    return _computed(cx, fn, args, kwargs, ordinary)


def folded(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy's that no graph calls, of constants."""

    def ordinary() -> Value:
        raise Break("skipped-call", f"numpy.{name}")

    return _computed(cx, fn, [_settled(cx, a) for a in args], kwargs, ordinary)


def of_ufunc(cx: Capture, method: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A method of a ufunc, of an array; None of what is no function by another name."""
    ufunc, *given = args
    found = arrays.of_ufunc(method, getattr(ufunc, "fn", None))
    array = cx.realize(given[0]) if given else None
    if found is None or len(given) > 2 or kwargs.keys() - {"axis", "keepdims"}:
        return None
    if not isinstance(array, Array) or array.scalar or not array.tensor.fake.dim():
        return None
    axis = given[1] if len(given) > 1 else kwargs.get("axis", Const(0))
    return call_function(cx, *found, [array], {**kwargs, "axis": axis})


def _settled(cx: Capture, value: Value) -> Value:
    """A number of NumPy's that calls know as a constant."""
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
    """What a method of a number gives, of which calls know the value: one whose value is asked for where torch takes it."""
    try:
        given, named = _constants(cx, args), dict(zip(kwargs, _constants(cx, kwargs.values()), strict=True))
    except Unknown:
        return made
    if not isinstance(made, Array) or not made.scalar:
        return made

    def known() -> Value | None:
        number = owner.number()
        if number is None:
            return None
        real = owner.python_type()(number.settle("as a number of NumPy's").const())
        return Const(cx.evaluate_raw(method, real, *given, **named).item())

    return Array.number_of(made.python_type(), lambda: made.tensor, known)


def binary(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """`left <op> right` or a comparison, where an array is known; None of others."""
    found = numpy_numbers.binary(cx, op, left, right)
    if found is not None or op not in numpy_calls.OPERATORS:
        return found

    def ordinary() -> Value:
        return numpy_calls.binary(cx, op, "", left, right)

    return _computed(cx, numpy_calls.PYTHONS[numpy_calls.OPERATORS[op]], [left, right], {}, ordinary)


def _computed(
    cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], ordinary: Callable[[], Value]
) -> Value:
    """What a call gives: an array that is known where its arguments are."""
    try:
        if "out" in kwargs:
            raise Unknown
        given, named = _constants(cx, args), dict(zip(kwargs, _constants(cx, kwargs.values()), strict=True))
    except Unknown:
        return ordinary()

    def evaluate() -> Any:
        with arrays.as_errors():
            return fn(*given, **named)

    try:
        made = ordinary()
    except Break:
        found = _plain(evaluate) if not any(map(_is_large, (*given, *named.values()))) else None
        made_now = None if found is None else _constant(cx, found, given)
        if made_now is None:
            raise
        return made_now
    if not isinstance(made, Array) or (not made.scalar and made.tensor.fake.numel() > MOST):
        return made
    if not made.scalar:
        made.knows(evaluate)
        if not is_wrapped(cx) or made.tensor.fake.dim():
            return made
    found = _plain(evaluate)
    cls = made.python_type() if made.scalar else arrays.dtype_of(made.tensor.fake.dtype).type
    return cx.make(found) if arrays.is_number(found) and type(found) is cls else made


def _plain(evaluate: Callable[[], Any]) -> Any:
    """What NumPy gives; None where it raises, or warns, which is left to the program's call."""
    try:
        return evaluate()
    except Exception:
        return None


def _constant(cx: Capture, found: Any, given: list[Any]) -> Value | None:
    """A number, or an array that no call but this one has; None of what else there may be, and in memory of those `given`."""
    if type(found) is tuple:
        items = [_constant(cx, v, given) for v in found]
        known = [v for v in items if v is not None]
        return Tuple(known) if len(known) == len(items) else None
    if arrays.is_number(found) or type(found) in PLAIN:
        return cx.make(found)
    if type(found) is list and not _has_arrays(found):
        return cx.make(found)
    device = cx.device or torch.get_default_device()
    if (
        not arrays.is_array(found)
        or not (found.flags.writeable and found.flags.forc)
        or arrays.shares(found, given)
        or found.size > MOST
        or cx.graph.is_inner
        or device.type != "cpu"
    ):
        return None
    kept = found.copy("K")
    try:
        real = arrays.tensor_of(kept)
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
    """The object that a value is, which nobody has changed; raises Unknown where that is not known."""
    value = cx.realize(value)
    if isinstance(value, Array) and not value.scalar and (known := value.known()) is not None:
        return known
    if isinstance(value, Const) and (type(value.value) in PLAIN or arrays.is_constant(value.value)):
        return value.value
    if isinstance(value, Const) and isinstance(value.value, (slice, type)):
        return value.value
    if isinstance(value, Class) and (value.cls in arrays.PLAIN_DTYPES or arrays.is_of_numpy(value.cls)):
        return value.cls
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list, torch.Size):
        return value.cls(_constants(cx, value.items))
    if isinstance(value, Slice):
        return slice(*_constants(cx, value.parts))
    raise Unknown


def _is_large(given: Any) -> bool:
    if isinstance(given, (tuple, list)):
        return len(given) > MOST or any(map(_is_large, given))
    return isinstance(given, (int, float)) and not -LARGEST <= given <= LARGEST
