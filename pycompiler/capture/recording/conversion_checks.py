"""Symbolic numbers that an operator converts to a dtype which cannot hold all integers.

In: the target of a call and its arguments.  Out: the arguments.  Each such number is assumed to fit the dtype if it
does in this call; otherwise it becomes a constant.  Eager rejects or saturates numbers that kernels would wrap around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.capture.values.tensor import Tensor
from pycompiler.symbolic.symbols import expr_of

# torch specialises the numbers among data itself, and stores 32 bits of them.
DATA = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
BOUNDS = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "addcmul", "addcdiv"})
SCALARS = BOUNDS | {
    "add", "iadd", "radd", "sub", "isub", "rsub", "subtract", "mul", "imul", "rmul", "multiply", "div", "divide", "truediv",
    "itruediv", "true_divide", "floordiv", "ifloordiv", "floor_divide", "mod", "imod", "remainder", "fmod", "pow", "ipow",
    "rpow", "eq", "ne", "lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal", "not_equal",
    "masked_fill", "threshold", "fill", "index_fill", "where",
}  # fmt: skip
EXACT = 2**53
"""up to here a conversion by way of double equals the direct one"""
FLOATS = {torch.float32, torch.float64}
NARROW = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32}
INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def convert(
    cx: Capture, target: Any, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    if cx.sizes.symbols is None:
        return args, kwargs
    name = (target if isinstance(target, str) else str(getattr(target, "__name__", ""))).strip("_")
    if name in DATA:
        return [_constant(cx, a) for a in args], kwargs
    if name not in SCALARS:
        return args, kwargs
    limits = _limits(name, [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)])
    if limits is None:
        return args, kwargs
    low, high = limits

    def held(value: Value) -> Value:
        return _held(cx, value, low, high)

    return [held(a) for a in args], {k: held(a) for k, a in kwargs.items()}


def _limits(name: str, tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """The range of the narrowest operand dtype, if it matters to the operator."""
    found: list[tuple[int, int]] = []
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype is torch.float16:
            found.append((-65504, 65504))
        elif dtype in NARROW and name in BOUNDS:
            info = torch.iinfo(dtype)
            found.append((info.min, info.max))
    return (max(low for low, _ in found), min(high for _, high in found)) if found else None


def array_of(cx: Capture, number: Value, dtype: torch.dtype | None, device: torch.device) -> Tensor | None:
    """A symbolic number as NumPy stores it: a 0-dim tensor; None if no graph does that for all numbers."""
    if dtype in INTEGERS and number.python_type() is int:
        info = torch.iinfo(dtype)
        low, high = info.min, info.max
    elif dtype in FLOATS and number.python_type() in (int, float):
        low, high = -EXACT, EXACT
    else:
        return None
    if not isinstance(held := _held(cx, number, low, high), Symbolic):
        return None
    first = torch.float64 if dtype in FLOATS else dtype
    made = cx.graph.call_function(torch.full, [Tuple([]), held], {"dtype": Const(first), "device": Const(device)})
    made = made if first is dtype else cx.graph.call_method("to", [made, Const(dtype)], {})
    assert isinstance(made, Tensor)
    return made


def _held(cx: Capture, value: Value, low: int, high: int) -> Value:
    value = cx.realize(value)
    if not isinstance(value, Symbolic) or not isinstance(value.sym, torch.SymInt):
        return value
    symbols, expr = cx.sizes.known_symbols, expr_of(value.sym)
    inside = symbols.at_least(expr, low) and symbols.at_least(-expr, -high)
    return value if inside else cx.realize(value, "as a number beyond the range of a dtype")


def _constant(cx: Capture, value: Value) -> Value:
    value = cx.realize(value)
    if isinstance(value, Symbolic) and isinstance(value.sym, torch.SymInt):
        return cx.realize(value, "among the numbers from which a tensor is created")
    if type(value) in (List, Tuple) and any(_is_data(cx, v) for v in value.items):  # type: ignore[attr-defined]
        items = [_constant(cx, v) for v in value.items]  # type: ignore[attr-defined]
        return List(items) if isinstance(value, List) else Tuple(items)
    return value


def _is_data(cx: Capture, value: Value) -> bool:
    value = cx.realize(value)
    return isinstance(value, (Symbolic, List, Tuple))
