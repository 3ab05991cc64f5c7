"""View operators: index arithmetic on values, no code.

In: a value.  Out: a value over the same memory (or over the same `emit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.lowering import values
from pycompiler.lowering.graph import Lowering, LoweringError
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, normal_dim, to_expr, to_exprs
from pycompiler.symbolic.expr import ONE, ZERO, Expr

aten, prims = torch.ops.aten, torch.ops.prims


@lowering(aten.view.default, any_dtype=True)
def view(low: Lowering, x: Value, size: Sequence[Any], stride: Any = None) -> Value:
    return values.reshape(x, size)


@lowering(aten.permute, any_dtype=True)
def permute(low: Lowering, x: Value, dims: Sequence[int]) -> Value:
    return values.permute(x, dims)


@lowering(aten.expand, any_dtype=True)
def expand(low: Lowering, x: Value, size: Sequence[Any], *, implicit: bool = False) -> Value:
    return values.expand(x, size)


@lowering(aten.detach, aten.lift_fresh, any_dtype=True)
def alias(low: Lowering, x: Value) -> Value:
    return x


@lowering(aten._conj.default)
def conj(low: Lowering, x: Value) -> Value:
    """The conjugate of real numbers."""
    return x


@lowering(aten.squeeze, any_dtype=True)
def squeeze(low: Lowering, x: Value, dim: Any = None) -> Value:
    if dim is None:
        dim = range(x.rank)
    return values.squeeze(x, dim if isinstance(dim, Sequence) else [dim])


@lowering(aten.unsqueeze, any_dtype=True)
def unsqueeze(low: Lowering, x: Value, dim: int) -> Value:
    return values.unsqueeze(x, dim)


def wrapped(low: Lowering, index: Any, size: Expr) -> Expr:
    """A position counted from the end when negative."""
    e = to_expr(index)
    return e if low.at_least(e, 0) else size + e


def clamped(low: Lowering, bound: Any, size: Expr, default: Expr) -> Expr:
    """A slice bound as Python clamps it."""
    if bound is None:
        return default
    if isinstance(bound, int) and bound >= 2**62:
        return size
    e = wrapped(low, bound, size)
    return low.least(e, size) if low.at_least(e, 0) else ZERO


def slice_of(low: Lowering, x: Value, dim: int, start: Any, end: Any, step: int) -> tuple[Expr, Expr]:
    """(first position, number of positions) of a slice."""
    size = x.shape[normal_dim(dim, x.rank)]
    first, last = clamped(low, start, size, ZERO), clamped(low, end, size, size)
    return first, (last - first + (step - 1)) // step if low.at_least(last, first) else ZERO


@lowering(aten.slice.Tensor, any_dtype=True)
def slice_tensor(low: Lowering, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    first, length = slice_of(low, x, dim, start, end, step)
    return values.slice_dim(x, dim, first, length, step)


@lowering(aten.select.int, any_dtype=True)
def select(low: Lowering, x: Value, dim: int, index: Any) -> Value:
    return values.select(x, dim, wrapped(low, index, x.shape[normal_dim(dim, x.rank)]))


def parts(x: Value, lengths: Sequence[Any], dim: int) -> tuple[Value, ...]:
    result, start = [], ZERO
    for n in lengths:
        result.append(values.slice_dim(x, dim, start, to_expr(n)))
        start = start + to_expr(n)
    return tuple(result)


@lowering(aten.split.Tensor, any_dtype=True)
def split(low: Lowering, x: Value, size: Any, dim: int = 0) -> tuple[Value, ...]:
    return parts(x, [f.shape[normal_dim(dim, x.rank)] for f in low.fake], dim)


@lowering(aten.diagonal.default, any_dtype=True)
def diagonal(low: Lowering, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return values.diagonal(x, offset, dim1, dim2, to_expr(low.fake.shape[-1]))


@lowering(aten.unfold.default, any_dtype=True)
def unfold(low: Lowering, x: Value, dim: int, size: int, step: int) -> Value:
    count = to_expr(low.fake.shape[normal_dim(dim, x.rank)]) if x.rank else ONE
    if (
        x.buffer is None and step < size
    ):  # overlapping windows are views of memory; without memory each window would be copied
        source = low.node.args[0]
        assert isinstance(source, fx.Node)
        x = low.placed(source)
    return values.unfold(x, dim, size, step, count)


@lowering(aten.as_strided.default, any_dtype=True)
def as_strided(low: Lowering, x: Value, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    """A view with strides of the storage.  The value must have the layout of the trace; the offset counts from the
    storage's start."""
    argument: Any = low.node.args[0]
    base = low.placed(argument)
    assert base.buffer is not None
    buffer = low.program.buffers[base.buffer]
    own = to_expr(low.fake_of(0).storage_offset())
    start = base.offset if storage_offset is None else base.offset + to_expr(storage_offset) - own
    view = values.restrided(base, to_exprs(size), to_exprs(stride), start)
    end = start + values.extent(view.shape, view.stride)
    inside = end - values.extent(buffer.shape, buffer.stride)
    if start.const is None or inside.const is None or start.const < 0 or inside.const > 0:
        if all(b is None or b.name != base.buffer for b in low.program.inputs):
            raise LoweringError(f"{low.node.format_node()} reads elements outside of its memory")
        return NotImplemented  # elements of the storage outside of the input
    return view


@lowering(aten.view.dtype)
def view_dtype(low: Lowering, x: Value, dtype: torch.dtype) -> Any:
    if x.dtype == dtype:
        return x
    if x.dtype.itemsize != dtype.itemsize or torch.bool in (x.dtype, dtype) or dtype not in _INTEGERS | _FLOATS:
        return NotImplemented
    return Value(x.shape, dtype, x.device, emit=lambda b, i: b.emit("bitcast", (x.load(b, i),), dtype))


_INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@lowering(aten.sym_size.int)
def sym_size(low: Lowering, x: Value, dim: int) -> Expr:
    return x.shape[normal_dim(dim, x.rank)]


@lowering(aten.sym_stride.int)
def sym_stride(low: Lowering, x: Value, dim: int) -> Expr:
    return to_expr(low.fake_of(0).stride(dim))


@lowering(aten.sym_numel.default)
def sym_numel(low: Lowering, x: Value) -> Expr:
    return x.numel
