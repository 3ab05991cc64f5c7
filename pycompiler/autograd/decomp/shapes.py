"""Views and copies in few forms: permute, view, slice, select, expand, pad.

In: ``aten.t(x)``. Out: ``aten.permute(x, [1, 0])``.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.autograd.decomp.registry import is_canonical, rule
from pycompiler.autograd.recorder import is_dense

aten = torch.ops.aten
Tensor = torch.Tensor


@rule(aten.t.default)
def t(x: Tensor) -> Tensor:
    return x if x.dim() < 2 else aten.permute.default(x, [1, 0])


@rule(aten.transpose.int)
def transpose(x: Tensor, dim0: int, dim1: int) -> Any:
    rank = x.dim()
    if rank == 0:
        return x
    dims = list(range(rank))
    dim0, dim1 = dim0 % rank, dim1 % rank
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return aten.permute.default(x, dims)


@rule(aten.detach.default, partial=True)  # the partition creates aliases
@rule(aten.alias.default, aten.lift.default)
def identity(x: Tensor) -> Tensor:
    return x


@rule(aten._unsafe_view.default, aten._reshape_alias.default)
def unsafe_view(x: Tensor, size: list[int], stride: list[int] | None = None) -> Any:
    return aten.view.default(x, size)


@rule(aten.expand.default, partial=True)
def expand(x: Tensor, size: list[int], implicit: bool = False) -> Any:
    if list(x.shape) == list(size):
        return x
    return aten.expand.default(x, size) if implicit else NotImplemented


@rule(aten.clone.default, partial=True)
def clone(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Any:
    """A copy with the same strides is the value itself: a functional graph cannot distinguish them."""
    if memory_format is torch.contiguous_format:
        return x if is_canonical(x) else NotImplemented
    return x if memory_format in (None, torch.preserve_format) and is_dense(x) else NotImplemented


@rule(aten.slice.Tensor, partial=True)
def slice_(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    whole = start in (None, 0) and (end is None or end >= x.shape[dim]) and step == 1
    return x if whole else NotImplemented


@rule(aten.split.Tensor, partial=True)
def split(x: Tensor, size: int, dim: int = 0) -> Any:
    length = x.shape[dim]
    if length == 0 or size == 0:
        return NotImplemented
    return [aten.slice.Tensor(x, dim, i, min(i + size, length)) for i in range(0, length, size)]


@rule(aten.split_with_sizes.default)
def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0) -> Any:
    parts, at = [], 0
    for size in sizes:
        parts.append(aten.slice.Tensor(x, dim, at, at + size))
        at += size
    return parts


@rule(aten.unbind.int)
def unbind(x: Tensor, dim: int = 0) -> Any:
    return [aten.select.int(x, dim, i) for i in range(x.shape[dim])]


@rule(aten.copy.default, partial=True)
def copy(dst: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    if src.device != dst.device:
        return NotImplemented
    if src.shape != dst.shape:
        src = aten.expand.default(src, list(dst.shape))
    if src.dtype != dst.dtype:
        src = aten._to_copy.default(src, dtype=dst.dtype)
    if src.stride() == dst.stride():
        return src
    if dst.is_contiguous():
        return aten.clone.default(src, memory_format=torch.contiguous_format)
    return NotImplemented


@rule(aten.select_backward.default)
def select_backward(grad: Tensor, sizes: list[int], dim: int, index: int) -> Any:
    rank = len(sizes)
    dim %= rank
    index %= sizes[dim]
    return _pad(aten.unsqueeze.default(grad, dim), rank, dim, index, sizes[dim] - index - 1)


@rule(aten.slice_backward.default)
def slice_backward(grad: Tensor, sizes: list[int], dim: int, start: int, end: int, step: int) -> Any:
    dim %= len(sizes)
    length = sizes[dim]
    start = min(max(start + length if start < 0 else start, 0), length)
    if step != 1:
        zero = aten.full.default(sizes, 0, dtype=grad.dtype, device=grad.device)
        return aten.slice_scatter.default(zero, grad, dim, start, min(end, length), step)
    return _pad(grad, len(sizes), dim, start, length - start - grad.shape[dim])


def _pad(x: Tensor, rank: int, dim: int, before: int, after: int) -> Any:
    if before == 0 and after == 0:
        return x
    pads = [0] * (2 * (rank - dim))
    pads[-2], pads[-1] = before, after
    return aten.constant_pad_nd.default(x, pads, 0)
