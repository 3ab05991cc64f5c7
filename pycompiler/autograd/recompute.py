"""What may be computed again in the backward graph, and what that costs.

In: nodes of a joint graph. Out: `is_cheap` (again at almost no cost, fused into whatever reads it), `recompute_cost`
(an order among the dear ones), `size_bytes`.
Example: ``aten.add`` and ``aten.permute`` are cheap, ``aten.mm`` and ``aten.sum`` are not.
"""

from __future__ import annotations

import math
import operator
from functools import cache

import torch
from torch import fx
from torch._ops import OpOverload

from pycompiler.autograd.views import is_view_op
from pycompiler.ir.effects import ordered
from pycompiler.ir.numbers import is_number
from pycompiler.ir.symbols import hint_of

aten = torch.ops.aten

SMALL = 1 << 20  # bytes that it may cost to raise exactly where eager raises

_CHEAP_PACKETS = frozenset(
    (
        *(aten._to_copy, aten.clone, aten.copy, aten.where, aten.masked_fill, aten.tril, aten.triu),
        *(
            aten.full,
            aten.full_like,
            aten.zeros,
            aten.zeros_like,
            aten.ones,
            aten.ones_like,
            aten.new_zeros,
            aten.new_full,
        ),
        *(
            aten.arange,
            aten.scalar_tensor,
            aten.empty,
            aten.empty_like,
            aten.new_empty,
            aten.new_empty_strided,
            aten.empty_strided,
        ),
        *(aten.constant_pad_nd, aten.select_scatter, aten.slice_scatter, aten.flip, aten.eye),
        *(torch.ops.prims.convert_element_type, torch.ops.prims.iota, torch.ops.prims.broadcast_in_dim),
    )
)


@cache
def _cheap_target(target: object) -> bool:
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    if ordered(target):
        return False
    return is_view_op(target) or torch.Tag.pointwise in target.tags or target.overloadpacket in _CHEAP_PACKETS


def is_cheap(node: fx.Node) -> bool:
    """Pointwise work, views, casts and fills: recomputing reads no more than loading the result would."""
    return is_number(node.target) or (_cheap_target(node.target) and not _compares_floats(node))


def _compares_floats(node: fx.Node) -> bool:
    """Whether two computed floats are asked for being the same (an extreme and what it was found in): computed again, by
    another kernel, one of them may differ in its last bit."""
    if getattr(node.target, "overloadpacket", None) not in (aten.eq, aten.ne):
        return False
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return len(values) == 2 and all(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def size_bytes(node: fx.Node) -> int:
    """Bytes of the tensor that `node` computes; 0 for anything else."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return int(hint_of(value.numel())) * value.element_size()


_MATMUL = frozenset((aten.mm, aten.addmm, aten.bmm, aten.baddbmm))


def recompute_cost(node: fx.Node) -> float:
    """Work per byte of result: about the length of the inner loop."""
    packet = getattr(node.target, "overloadpacket", None)
    values = [a.meta["val"] for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    result = max(1, size_bytes(node))
    if packet in _MATMUL and len(values) >= 2:
        return 2.0 * float(hint_of(values[-2].shape[-1]))
    read = sum(hint_of(v.numel()) * v.element_size() for v in values)
    if packet is aten.convolution and len(values) >= 2:
        return 2.0 * float(math.prod(map(hint_of, values[1].shape[1:])))
    return 1.0 + float(read) / result
