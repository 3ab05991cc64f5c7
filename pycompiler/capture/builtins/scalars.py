"""Operators whose argument is a number, called with a tensor that holds one: eager reads it, a graph computes with the tensor.

In: the call.  Out: the same values by operators on tensors, where dtypes say that they are the same; else the call as it
is written, which breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers import List, Tuple
from pycompiler.capture.values.tensor import Tensor


def _number(value: Value | None) -> torch.Tensor | None:
    """The fake of a tensor without dimensions whose gradient nobody wants: eager's number has none."""
    fake = value.fake if isinstance(value, Tensor) else None
    return fake if fake is not None and fake.dim() == 0 and not fake.requires_grad else None


def _alike(cx: Capture, number: Value, *lists: Value) -> bool:
    """Whether all these are lists of floating-point tensors of the number's dtype and device."""
    one = _number(number)
    if one is None or not one.dtype.is_floating_point or not all(isinstance(v, (List, Tuple)) for v in lists):
        return False
    tensors = [cx.realize(item) for v in lists for item in v.iterate(cx)]
    return all(isinstance(t, Tensor) and (t.fake.dtype, t.fake.device) == (one.dtype, one.device) for t in tensors)


@builtin(torch._foreach_pow)
def foreach_pow(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 2 or kwargs or not _alike(cx, args[0], args[1]):
        return cx.graph.call_function(torch._foreach_pow, args, kwargs)
    made = [cx.graph.call_function(torch.pow, [args[0], e], {}) for e in args[1].iterate(cx)]
    return cx.sequence(made, tuple)


def _lerp(fn: Any, single: Callable[[Capture, list[Value]], Value], cls: type) -> None:
    @builtin(fn)
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 3 or kwargs or not _alike(cx, args[2], args[0], args[1]):
            return cx.graph.call_function(fn, args, kwargs)
        starts, ends = ([*v.iterate(cx)] for v in args[:2])
        if len(starts) != len(ends):
            return cx.graph.call_function(fn, args, kwargs)
        return cx.sequence([single(cx, [a, b, args[2]]) for a, b in zip(starts, ends, strict=True)], cls)


_lerp(torch._foreach_lerp, lambda cx, given: cx.graph.call_function(torch.lerp, given, {}), tuple)
_lerp(torch._foreach_lerp_, lambda cx, given: cx.graph.call_method("lerp_", given, {}), list)

# What `full` makes of a number of a kind: the default dtype of floating-point ones is asked for.
_KINDS: dict[torch.dtype, torch.dtype] = {torch.bool: torch.bool} | dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.int64
)


@builtin(torch.full)
def full(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Of a tensor on the host: its value, spread over the size."""
    given = dict(zip(("size", "fill_value"), args, strict=False)) | kwargs
    number = _number(given.get("fill_value"))
    if (found := cx.functions.ask(torch.full, args, kwargs)) is not None:
        return found
    plain = given.keys() <= {"size", "fill_value", "dtype"} and len(args) <= 2
    if number is None or not plain or number.dtype.is_complex or torch.get_default_device() != number.device:
        return cx.graph.call_function(torch.full, args, kwargs)
    dtype = given.get("dtype", Const(None))
    if cx.is_none(dtype):
        dtype = Const(_KINDS.get(number.dtype, torch.get_default_dtype()))
    made = cx.graph.call_function(torch.empty, [given["size"]], {"dtype": dtype})
    return cx.graph.call_method("fill_", [made, given["fill_value"]], {})
