"""Copies and conversions of dtype, device and memory format."""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.lowering.body import Number
from pycompiler.lowering.body import converted as in_dtype
from pycompiler.lowering.elementwise import broadcast_load
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value

aten, prims = torch.ops.aten, torch.ops.prims


def converted(low: Lowering, x: Value) -> Any:
    """x with the fake result's dtype and strides, in fresh memory."""
    fake = low.fake
    if fake.device != x.device:
        return NotImplemented
    number = None if x.number is None else in_dtype(x.number, x.dtype, fake.dtype)
    if number is not None:
        return Value.constant(number, x.shape, fake.dtype, fake.device)
    return low.pointwise(lambda b, i: x.load(b, i).to(fake.dtype), low.buffer_for(fake, like=[x]))


@lowering(aten.clone.default, aten.lift_fresh_copy.default)
def clone(low: Lowering, x: Value, *, memory_format: Any = None) -> Any:
    return converted(low, x)


@lowering(aten._to_copy.default)
def to_copy(low: Lowering, x: Value | Number, **options: Any) -> Any:
    if not isinstance(x, Value):  # a number passed to an operator on tensors
        fake = low.fake
        return Value.constant(x, (), fake.dtype, fake.device) if type(x) in (bool, int, float) else NotImplemented
    return converted(low, x)


@lowering(prims.convert_element_type.default)
def convert_element_type(low: Lowering, x: Value, dtype: torch.dtype) -> Any:
    return converted(low, x)


@lowering(aten.copy.default)
def copy(low: Lowering, x: Value, source: Value, non_blocking: bool = False) -> Any:
    if x.device != source.device:
        return NotImplemented
    buffer = low.buffer_for(low.fake)
    return low.pointwise(lambda b, i: broadcast_load(source, b, i, buffer.shape).to(buffer.dtype), buffer)
