"""Fills: every tensor with a single value is an ``aten.full``.

In: ``aten.zeros_like(x)``. Out: ``aten.full(shape, 0, dtype=…, device=…)``, permuted if `x` is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from pycompiler.autograd.decomp.registry import rule
from pycompiler.autograd.recorder import is_dense
from pycompiler.symbolic.symbols import hint_of

aten = torch.ops.aten
Tensor = torch.Tensor
Dtype: TypeAlias = torch.dtype | None
Layout: TypeAlias = torch.layout | None
Device: TypeAlias = torch.device | None
Pinned: TypeAlias = bool | None
Format: TypeAlias = torch.memory_format | None


def filled(size: list[int], value: Any, dtype: Dtype, device: Device) -> Any:
    dtype = torch.get_default_dtype() if dtype is None else dtype
    device = torch.device("cpu") if device is None else device
    return aten.full.default(list(size), value, dtype=dtype, device=device, pin_memory=False)


def filled_like(
    x: Tensor,
    value: Any,
    dtype: Dtype,
    layout: Layout,
    device: Device,
    memory_format: Format,
) -> Any:
    if layout not in (None, torch.strided) or x.layout is not torch.strided:
        return NotImplemented
    dtype, device = dtype or x.dtype, device or x.device
    if memory_format is torch.contiguous_format or x.is_contiguous():
        return filled(list(x.shape), value, dtype, device)
    if memory_format not in (None, torch.preserve_format):
        return NotImplemented
    # Preserve format: dense inputs keep their strides; other inputs keep the order of their dimensions.
    if not is_dense(x):
        return NotImplemented
    strides: tuple[int, ...] = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-hint_of(strides[d]), -hint_of(x.shape[d])))
    inverse = [order.index(d) for d in range(x.dim())]
    return aten.permute.default(filled([x.shape[d] for d in order], value, dtype, device), inverse)


def fresh(value: int) -> Callable[..., Any]:
    def made(
        size: list[int], *, dtype: Dtype = None, layout: Layout = None, device: Device = None, pin_memory: Pinned = None
    ) -> Any:
        return NotImplemented if layout not in (None, torch.strided) else filled(size, value, dtype, device)

    return made


@rule(aten._efficientzerotensor.default)
def zero_tensor(size: list[int], *, dtype: Dtype = None, device: Device = None, **ignored: Any) -> Any:
    """Autograd's zero tensor without memory, whose address a kernel cannot read."""
    return filled(size, 0, dtype, device)


@rule(aten.new_full.default)
def new_full(
    x: Tensor, size: list[int], fill_value: Any, *, dtype: Dtype = None, device: Device = None, **ignored: Any
) -> Any:
    return filled(size, fill_value, dtype or x.dtype, device or x.device)


@rule(aten.full_like.default, partial=True)
def full_like(
    x: Tensor,
    fill_value: Any,
    *,
    dtype: Dtype = None,
    layout: Layout = None,
    device: Device = None,
    pin_memory: Pinned = None,
    memory_format: Format = None,
) -> Any:
    return filled_like(x, fill_value, dtype, layout, device, memory_format)


for value, makes, new, like in (
    (0, aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default),
    (1, aten.ones.default, aten.new_ones.default, aten.ones_like.default),
):
    rule(makes, partial=True)(fresh(value))
    # after the trace, zeros with gaps are built from it
    rule(new, partial=value == 0)(partial(new_full, fill_value=value))
    rule(like, partial=True)(partial(full_like, fill_value=value))


@rule(aten.fill.Scalar, partial=True)
def fill(x: Tensor, value: Any) -> Any:
    return filled_like(x, value, None, None, None, None)


@rule(aten.zero.default, partial=True)
def zero(x: Tensor) -> Any:
    return filled_like(x, 0, None, None, None, None)
