"""`torch.tensor`, `torch.as_tensor` and `torch.asarray` of numbers that change from call to call, or are in tensors.

In: the call.
Out: the same tensor as in eager mode, built by operators that take symbols and tensors, one number each, stacked.
None if the numbers shall become constants of the original call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, Symbolic, compute, symbols_in
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import numpy_arrays

MOST = 64  # numbers; constants give a better graph for more
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def stacked(cx: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """The tensor of changing numbers, see the module docstring; `fn` is torch.tensor, torch.as_tensor or
    torch.asarray."""
    data, names = args[0] if args else None, {k for k, v in kwargs.items() if not cx.is_none(v)}
    if data is None or len(args) > 1 or not names <= {"dtype", "device"} or (shape := _shape(cx, data)) is None:
        return None
    numbers = list(_leaves(cx, data))
    kinds = {n.python_type() for n in numbers}
    if len(numbers) != math.prod(shape) or not 0 < len(numbers) <= MOST or not kinds <= {int, float}:
        return None
    if not any(isinstance(n, Symbolic) for n in numbers) or cx.functions.concerns(numbers, {}):
        return None
    dtype = torch.get_default_dtype() if float in kinds else torch.int64
    if "dtype" in names:
        dtype = kwargs["dtype"].const()
    made = _converted(cx, numbers, dtype)
    if made is None:
        return None
    given = {"dtype": Const(dtype), **({"device": kwargs["device"]} if "device" in names else {})}
    parts = [cx.graph.call_function(torch.scalar_tensor, [n], given) for n in made]
    for part, number in zip(parts, numbers, strict=True):
        if isinstance(part, Tensor) and isinstance(number, Symbolic):
            part.node.meta["numbers"] = symbols_in(number.sym)
    if not shape:
        return parts[0]
    whole: Value = cx.graph.call_function(torch.stack, [List(parts)], {})
    return whole if len(shape) == 1 else cx.graph.call_method("view", [whole, *map(Const, shape)], {})


def of_tensors(cx: Capture, fn: Any, args: Args, kwargs: Kwargs) -> Value | None:
    """The tensor of zero-dimensional tensors, whose numbers eager reads and stores again.

    None if eager may refuse a number, warns, or reads from another device.
    """
    names = {k for k, v in kwargs.items() if not cx.is_none(v)}
    wanted = kwargs["dtype"].const() if "dtype" in names else None
    if fn is torch.asarray or len(args) > 1 or not names <= {"dtype", "device"} or cx.graph.levels:
        return None
    numbers = [_tensor_of(v, scalars=wanted is not None) for v in _leaves(cx, args[0])]
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers) or not 0 < len(known) <= MOST or cx.functions.concerns([*known], {}):
        return None
    if any(n.rank or n.requires_grad or n.device.type != "cpu" for n in known):
        return None
    dtypes = [n.dtype for n in known]
    dtype = functools.reduce(torch.promote_types, dtypes) if wanted is None else wanted
    if not all(_keeps(d, dtype) for d in dtypes):
        return None
    whole = _stack(cx, args[0], dtype)
    return cx.graph.call_method("to", [whole, kwargs["device"]], {}) if whole and "device" in names else whole


def dtype_of_numbers(cx: Capture, data: Value) -> Value | None:
    """The dtype that torch infers for numbers with NumPy scalars among them; None without NumPy scalars.

    A NumPy scalar has a dtype; a graph has Python numbers.
    """
    leaves = [*_leaves(cx, cx.realize(data))]
    if not any(isinstance(v, Const) and numpy_arrays.is_number(v.value) for v in leaves):
        return None
    if not all(isinstance(v, Const) for v in leaves):
        raise Break("unsupported-operation", "a tensor of NumPy scalars and numbers that are not constants")
    return Const(cx.evaluate_raw(torch.tensor, cx.snapshot(data)).dtype)


def _tensor_of(value: Value, *, scalars: bool) -> Tensor | None:
    """The tensor that holds a number; `scalars`: the number of a NumPy scalar is stored unchanged."""
    if isinstance(value, Array) and value.scalar and scalars:
        return value.tensor
    return value if isinstance(value, Tensor) and not value.is_special else None


def _keeps(number: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether storing a number of one dtype as another gives the same value as the conversion operator."""
    if number.is_floating_point and not dtype.is_complex:
        return dtype in (torch.float32, torch.float64) or dtype == number
    return dtype == number or (dtype is torch.int64 and not number.is_complex)


def _stack(cx: Capture, data: Value, dtype: torch.dtype) -> Value | None:
    """Nested lists as a tensor; None if their lengths differ."""
    data = cx.realize(data)
    if not isinstance(data, (List, Tuple)):
        tensor = _tensor_of(data, scalars=True)
        assert tensor is not None
        return cx.graph.call_method("to", [tensor, Const(dtype)], {})
    parts = [_stack(cx, item, dtype) for item in data.items]
    known = [part for part in parts if isinstance(part, Tensor)]
    if data.cls not in (list, tuple) or len(known) < len(parts) or len({p.shape for p in known}) != 1:
        return None
    return cx.graph.call_function(torch.stack, [List([*known])], {})


def _converted(cx: Capture, numbers: list[Value], dtype: torch.dtype) -> list[Value] | None:
    """The numbers, converted so that `scalar_tensor` stores them as `torch.tensor` does; floating-point dtypes convert
    from a double."""
    if dtype is torch.int64:
        whole = all(
            n.python_type() is int and (isinstance(n, Symbolic) or -(2**63) <= n.const() < 2**63) for n in numbers
        )
        return numbers if whole else None
    if dtype not in FLOATS:
        return None
    doubles = [
        compute(cx, torch.sym_float, [n]) if isinstance(n, Symbolic) else _double(n.const(), dtype) for n in numbers
    ]
    return None if any(d is None for d in doubles) else doubles  # type: ignore[return-value]


def _double(number: int | float, dtype: torch.dtype) -> Value | None:
    """A constant as a float; None if `scalar_tensor` refuses it."""
    if type(number) is int and abs(number) > 2**53 or torch.finfo(dtype).max < abs(number) < math.inf:
        return None
    return Const(float(number))


def _leaves(cx: Capture, data: Value) -> Iterator[Value]:
    if isinstance(data, (List, Tuple)):
        for item in data.items:
            yield from _leaves(cx, cx.realize(item))
    else:
        yield data


def _shape(cx: Capture, data: Value) -> tuple[int, ...] | None:
    """The shape of numbers in nested lists and tuples; None for any other value."""
    if not isinstance(data, (List, Tuple)):
        return () if isinstance(data, PLAIN_VALUES) else None
    if data.cls not in (list, tuple, torch.Size):
        return None
    inner = {_shape(cx, cx.realize(item)) for item in data.items}
    found = next(iter(inner)) if len(inner) == 1 else None
    return None if found is None else (len(data.items), *found)
