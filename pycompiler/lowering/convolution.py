"""Convolutions of inference graphs on the CPU: oneDNN's operator, whose weight the plan packs once.

In: `aten.convolution` of a strided input and a weight that is an input of the graph.  Out: an Extern of
`mkldnn::_convolution_pointwise`, whose result is channels last.  All other convolutions stay ATen calls, as do all
convolutions of training graphs, whose weights differ in each step.

Poolings by ATen keep the layout of such a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler import config
from pycompiler.ir.loops import Extern, Ref
from pycompiler.lowering.graph import Lowering, is_dense
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, to_exprs
from pycompiler.operators import packed_weights

aten = torch.ops.aten


@lowering(aten.convolution)
def convolution(low: Lowering, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
                padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int],
                groups: int) -> Any:  # fmt: skip
    op = packed_weights.convolution()
    windows = [*stride, *padding, *dilation, groups]
    if op is None or transposed or not all(type(n) is int for n in windows) or not is_packable(low, x, weight, bias):
        return NotImplemented
    windows = [each(n, x.rank - 2) for n in (padding, stride, dilation)]
    given = [whole(low, x), *(None if n is None else low.placed(n).ref() for n in low.node.args[1:3])]
    return channels_last_call(low, op, [*given, *windows, groups, "none", [], None])


def each(numbers: Sequence[int], rank: int) -> list[int]:
    """One number for each dimension."""
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def is_packable(low: Lowering, x: Value, weight: Value, bias: Value | None) -> bool:
    """Whether oneDNN computes the convolution, and its weight is worth packing."""
    node: Any = low.node.args[1]
    if not (config.pack_weights and low.gm.meta.get("inference") and node.op == "placeholder"):
        return False
    if low.fake.device.type != "cpu" or not torch._C._get_mkldnn_enabled() or x.rank != packed_weights.RANK:
        return False
    if not packed_weights.takes(x.dtype) or {v.dtype for v in (x, weight, bias) if v is not None} != {x.dtype}:
        return False
    if not all(n.is_const and n != 0 for n in weight.shape):
        return False
    return all(low.at_least(n, 1) for n in (*x.shape, *to_exprs(low.fake.shape)))


def whole(low: Lowering, x: Value) -> Ref:
    """The image as it lies in memory, if it lies there without gaps."""
    return x.ref() if x.buffer is not None and is_dense(x.shape, x.stride) else low.copy(x).ref()


def channels_last_call(low: Lowering, op: Any, args: Sequence[Any]) -> Value:
    buffer = low.channels_last_buffer(low.fake)
    low.add(Extern(op, tuple(args), {}, (buffer,), origin=(low.node.name,)))
    return low.value_of(buffer)


@lowering(aten.avg_pool2d, aten._adaptive_avg_pool2d)
def average_pool(low: Lowering, x: Value, *options: Any) -> Any:
    if not low.keeps_channels_last(low.fake, [x]):
        return NotImplemented
    return channels_last_call(low, low.op, [x.ref(), *options])
