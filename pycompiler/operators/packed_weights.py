"""Operators that read a weight in a packed layout, and how the weight is packed: oneDNN's, and the engine's convolution.

In: a call of such an operator, with the sizes of its arguments.  Out: `Packing`: the position of the weight among the
arguments, the operator that packs it, and that operator's further arguments.

Example: `mkldnn::_convolution_pointwise` computes the same values from a plain weight and from the result of
`mkldnn::_reorder_convolution_weight`.  With the packed weight the call does not reorder it each time, which is 2 to 50 %
of a convolution's time.

The operators exist if torch was built with oneDNN (https://docs.pytorch.org/docs/stable/backends.html#torch-backends-mkldnn).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

RANK = 4  # (batch, channels, rows, columns)


@dataclass(frozen=True)
class Packing:
    """`op(weight, *args)` packs the argument at `position`."""

    position: int
    op: OpOverload
    args: tuple[Any, ...]


@cache
def convolution() -> OpOverload | None:
    """oneDNN's convolution with an optional packed weight; None if this torch has none."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_convolution_pointwise"):
        return None
    operator: OpOverload = torch.ops.mkldnn._convolution_pointwise.default
    return operator


def packing(op: OpOverload, args: Sequence[Any], hints: Mapping[str, int]) -> Packing | None:
    """The packing of a call's weight; None for an operator that takes no packed weight.

    The layout is chosen for the sizes of the first argument, with the values of symbols from `hints`.  Results for other
    sizes are right, too.
    """
    if op is not convolution():
        return None
    padding, stride, dilation, groups = args[3:7]
    sizes = [n.eval(hints) for n in args[0].shape]
    reorder = torch.ops.mkldnn._reorder_convolution_weight.default
    return Packing(1, reorder, (list(padding), list(stride), list(dilation), groups, sizes))


def panels(shape: Sequence[int], lanes: int) -> Packing:
    """The packing of a weight (filter, channel, row, column) for the engine (`guards-rs/src/ffi/convolution.rs`): for each
    `lanes` filters a panel, whose rows have one element of each."""
    filters, depth = shape[0], math.prod(shape[1:])
    sizes, strides = [filters // lanes, depth, lanes], [lanes * depth, 1, depth]
    return Packing(1, torch.ops.aten.as_strided_copy.default, (sizes, strides))


@cache
def takes(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN convolves the dtype without a detour through float32."""
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
