"""Constants and ranges: values without memory, stored only on demand.

In: sizes and dtype, from the fake result.  Out: a value whose elements are emitted where they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.lowering.body import BodyBuilder, Number, Val
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, to_exprs
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbolic_node import Real

aten, prims = torch.ops.aten, torch.ops.prims


def filled(low: Lowering, number: Any) -> Any:
    fake = low.fake
    if isinstance(number, Real) and fake.dtype.is_floating_point:
        return Value(to_exprs(fake.shape), fake.dtype, fake.device, emit=lambda b, _: b.const(number, fake.dtype))
    if not isinstance(number, int | float):
        return NotImplemented
    return Value.constant(number, to_exprs(fake.shape), fake.dtype, fake.device)


@lowering(aten.full.default)
def full(low: Lowering, size: Any, value: Any, **options: Any) -> Any:
    return filled(low, value)


@lowering(aten.full_like.default)
def full_like(low: Lowering, x: Value, value: Any, **options: Any) -> Any:
    return filled(low, value)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(low: Lowering, value: Any, **options: Any) -> Any:
    return filled(low, value)


@lowering(aten.fill.Scalar)
def fill(low: Lowering, x: Value, value: Any) -> Any:
    return filled(low, value)


def _constant_row(number: Number) -> Any:
    return lambda low, *args, **options: filled(low, number)


def uninitialized(low: Lowering, *args: Any, **options: Any) -> Any:
    """The contents of uninitialised memory: zeros, or NaN / the largest integer if torch fills it (guarded global state)."""
    dtype = low.fake.dtype
    if not (torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()):
        return filled(low, 0)
    if dtype.is_floating_point or dtype.is_complex:
        return filled(low, math.nan)
    return filled(low, True if dtype is torch.bool else torch.iinfo(dtype).max)


lowering(
    *(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default),
    *(aten.new_empty_strided.default, aten.empty_permuted.default),
)(uninitialized)

for _number, _ops in {
    0: [aten.zeros_like.default, aten.new_zeros.default, aten.zero.default],
    1: [aten.ones_like.default],
}.items():  # fmt: skip
    lowering(*_ops)(_constant_row(_number))


def ramp(fake: torch.Tensor, start: int | Expr, step: int | Expr) -> Value:
    """start + i*step, computed in int64."""

    def emit(body: BodyBuilder, index: Sequence[Expr]) -> Val:
        return body.index(index[0] * step + start).to(fake.dtype)

    return Value(to_exprs(fake.shape), fake.dtype, fake.device, emit=emit)


@lowering(aten.arange.start_step)
def arange_step(low: Lowering, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    return (
        ramp(low.fake, start, step)
        if isinstance(start, int | Expr) and isinstance(step, int | Expr)
        else NotImplemented
    )


@lowering(aten.linspace.default)
def linspace(low: Lowering, start: Any, end: Any, steps: Any, **options: Any) -> Any:
    """The first half counts from the start, the second from the end, each point rounded once, as in ATen's kernels."""
    dtype = low.fake.dtype
    known = all(isinstance(n, int | float) for n in (start, end)) and isinstance(steps, int)
    if not known or steps < 2 or dtype not in (torch.float32, torch.float64):
        return NotImplemented
    first, last = torch.tensor(start, dtype=dtype), torch.tensor(end, dtype=dtype)
    step = ((last - first) / (steps - 1)).item()

    def emit(body: BodyBuilder, index: Sequence[Expr]) -> Val:
        i = body.index(index[0])
        up = i.to(dtype).op("fma", step, first.item())
        down = (body.index(steps - 1 - index[0])).to(dtype).op("fma", -step, last.item())
        early: Val = i < steps // 2
        return early.where(up, down)

    return Value(to_exprs(low.fake.shape), dtype, low.fake.device, emit=emit)


@lowering(prims.iota.default)
def iota(low: Lowering, length: Any, *, start: int, step: int, **options: Any) -> Value:
    return ramp(low.fake, start, step)


@lowering(aten.eye)
def eye(low: Lowering, *args: Any, **options: Any) -> Value:
    fake = low.fake
    return Value(to_exprs(fake.shape), fake.dtype, fake.device,
                 emit=lambda b, i: b.index(i[0]).eq(b.index(i[1])).to(fake.dtype))  # fmt: skip
