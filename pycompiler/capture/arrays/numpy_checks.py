"""Checks of calls where NumPy and the graph differ: a graph break, or NumPy's error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.array import READ_ONLY, Array, is_number
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import numpy_arrays, numpy_promotion
from pycompiler.symbolic.symbols import hint_of


def flat(cx: Capture, values: list[Value]) -> Iterator[Value]:
    for value in map(cx.realize, values):
        if isinstance(value, (Tuple, List)):
            yield from flat(cx, value.items)
        else:
            yield value


def steps_back(key: Value) -> bool:
    if isinstance(key, Tuple):
        return any(steps_back(k) for k in key.items)
    if isinstance(key, Const) and isinstance(key.value, slice):
        return key.value.step is not None and key.value.step < 0
    if not isinstance(key, Slice) or len(key.parts) < 3:
        return False
    step = key.parts[2].const("as the step of an array's slice")
    return step is not None and step <= 0


def ellipses(key: Value) -> int:
    if isinstance(key, Tuple):
        return sum(map(ellipses, key.items))
    return int(isinstance(key, Const) and key.value is Ellipsis)


def check_key(array: Array, key: Value, stored: Value | None = None) -> None:
    """Break if a key does not fit the array, or the stored value does not fit the key: torch raises another error."""
    shape = array.tensor.shape
    parts = key.items if isinstance(key, Tuple) else [key]
    places = [_place(part) for part in parts]
    if not _masks_fit(shape, parts):
        raise Break("unsupported-operation", "an array indexed by a mask of another shape")
    if None in places:
        return
    masks = any(isinstance(v, Array) and v.known() is None and v.tensor.dtype is torch.bool for v in parts)
    if not numpy_arrays.fits(
        _today(shape), tuple(p[0] for p in places if p is not None), () if masks else _shape_of(stored)
    ):
        raise Break(
            "unsupported-operation",
            "an array indexed by a key that does not fit its shape, or assigned a value of another shape",
        )


def _masks_fit(shape: torch.Size, parts: list[Value]) -> bool:
    """Whether masks have the sizes of the dimensions they mask; for symbolic sizes an assumption."""
    dim = 0
    for part in parts:
        if isinstance(part, Const) and part.value is Ellipsis:
            return True
        mask = part.tensor.fake if isinstance(part, Array) and part.tensor.dtype is torch.bool else None
        if mask is not None and mask.dim() and mask.shape != shape[dim : dim + mask.dim()]:
            return False
        dim += mask.dim() if mask is not None else not (isinstance(part, Const) and part.value is None)
    return True


def _place(part: Value) -> tuple[Any] | None:
    """A stand-in for a part of a key; None if it depends on data."""
    if isinstance(part, Const):
        return (part.value,)
    if isinstance(part, List) and all(isinstance(v, Const) for v in part.items):
        return ([v.const() for v in part.items],)
    if isinstance(part, Slice) and all(isinstance(v, Const) for v in part.parts):
        return (slice(*(v.const() for v in part.parts)),)
    if not isinstance(part, Array) or part.scalar:
        return None
    known, fake = part.known(), part.tensor.fake
    if known is not None:
        return (known,)
    return (numpy_arrays.no_places(_today(fake.shape), fake.dtype),)


def _shape_of(value: Value | None) -> tuple[int, ...]:
    return _today(value.tensor.shape) if isinstance(value, Array) else ()


def _today(shape: torch.Size) -> tuple[int, ...]:
    return tuple(map(hint_of, shape))


def check_options(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value], *, of_method: bool) -> None:
    """Break if a call specifies the memory or the order of its result."""
    given = {
        k: cx.realize(v) for k, v in numpy_arrays.options(name, of_method, args, kwargs).items() if isinstance(v, Value)
    }
    in_order = all(v.tensor.is_contiguous for v in flat(cx, args) if isinstance(v, Array))
    out, order, copy = (given.get(option, Const(None)) for option in ("out", "order", "copy"))
    wrong = {
        "out": isinstance(out, Array) or ("out" in kwargs and not cx.is_none(out)),
        "order": isinstance(order, Const) and isinstance(order.value, str) and not (order.value in "CK" and in_order),
        "copy": "copy" in given and not (isinstance(copy, Const) and copy.value is True),
    }
    for option in (k for k, v in wrong.items() if v):
        raise Break("unsupported-operation", f"numpy.{name}({option}=...)")


def check_vectors(name: str, args: list[Value]) -> None:
    if name == "cross" and any(v.tensor.shape[-1:] == (2,) for v in args if isinstance(v, Array)):
        raise Break("unsupported-operation", "numpy.cross of vectors with two elements, about which NumPy warns")


def part(array: Value | None, name: str, made: Value) -> Value:
    """The result computed from `array`.  The imaginary part of real numbers is a read-only array."""
    if name == "imag" and isinstance(array, Array) and isinstance(made, Array) and not made.scalar:
        if not array.tensor.dtype.is_complex:
            made.fixed = READ_ONLY
    return made


def check_squeezed(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> None:
    """NumPy raises for a squeeze of a dimension whose size is not 1; torch ignores it."""
    array = cx.realize(args[0]) if args else None
    axis = cx.realize(kwargs["axis"] if "axis" in kwargs else args[1] if len(args) > 1 else Const(None))
    if name != "squeeze" or cx.is_none(axis):
        return
    axes = axis.items if isinstance(axis, (Tuple, List)) else [axis]
    if not isinstance(array, Array) or not all(v.is_const() and type(v.const()) is int for v in map(cx.realize, axes)):
        raise Break(
            "unsupported-operation",
            "numpy.squeeze of an argument that is not an array, or of an axis that is not a constant int",
        )
    shape, places = array.tensor.shape, [cx.realize(v).const() for v in axes]
    if any(not -len(shape) <= d < len(shape) or int(shape[d]) != 1 for d in places):
        raise Break("unsupported-operation", "numpy.squeeze of a dimension that does not exist or does not have size 1")
    if len(places) > 1 and min(places) < 0:
        raise Break("unsupported-operation", "numpy.squeeze of several dimensions, some counted from the end")


def type_of(value: Value) -> str | None:
    """The name of the dtype of an array or NumPy scalar."""
    if isinstance(value, Array):
        known = numpy_arrays.dtype_name(value.python_type()) if value.scalar else None
        return known or str(numpy_arrays.dtype_of(value.tensor.dtype).name)
    return str(value.value.dtype.name) if isinstance(value, Const) and numpy_arrays.is_number(value.value) else None


def is_integer(value: Value) -> bool:
    return isinstance(value, Array) and (type_of(value) or "").startswith(("int", "uint"))


def check_weights(cx: Capture, weights: Value) -> None:
    """Assume that the sum of the weights is not zero: NumPy raises otherwise."""
    weights = cx.realize(weights)
    if cx.is_none(weights):
        return
    tensor = weights.tensor if isinstance(weights, Array) else None
    if tensor is None or tensor.rank != 1 or not _has_sum(cx, tensor):
        raise Break("data-dependent-value", "numpy.average with weights")


def _has_sum(cx: Capture, tensor: Tensor) -> bool:
    total = cx.graph.call_function(torch.sum, [tensor], {})
    held = cx.graph.call_function(torch.ne, [total, Const(0)], {})
    return isinstance(held, Tensor) and cx.graph.expect(held, True)


def check_write(cx: Capture, array: Array, args: list[Value]) -> None:
    """Break or raise where NumPy does not simply write."""
    if array.fixed:
        raise Break("unsupported-operation", f"a write into {array.fixed}")
    value = cx.realize(args[-1], "as a value stored in an array") if args else Const(0)
    if isinstance(value, Array) and value.scalar and (is_integer(array) and type_of(value) != type_of(array)):
        raise Break("unsupported-operation", f"{value.describe()} stored into an integer array of another dtype")
    if isinstance(value, Const) and is_number(value.value):
        cx.evaluate_raw(numpy_promotion.holds, array.tensor.dtype, value.value)
    elif len(args) == 2:
        keys = args[0].items if isinstance(args[0], Tuple) else [args[0]]
        one = len(keys) == array.tensor.rank and all(
            isinstance(k, PLAIN_VALUES) and k.python_type() is int for k in keys
        )
        if not isinstance(value, Array) or (one and value.tensor.rank > 0):
            raise Break("unsupported-operation", f"{value.describe()} stored into an array")
