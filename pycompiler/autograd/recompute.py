"""Rules and costs of recomputing forward values in the backward graph.

In: nodes of a joint graph. Out: `is_cheap` (recomputed at almost no cost, fused into its readers), `recompute_cost`
(an order among the dear ones), `size_bytes`, and `decides` (a comparison of floats or similar).

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
from pycompiler.operators.operator_facts import facts_of
from pycompiler.symbolic.number_nodes import is_number
from pycompiler.symbolic.symbols import hint_of

aten = torch.ops.aten

SMALL = 1 << 20  # most bytes spent to raise exactly where eager raises


@cache
def _cheap_target(target: object) -> bool:
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    facts = facts_of(target)
    return not facts.ordered and (
        is_view_op(target) or torch.Tag.pointwise in target.tags or (facts.cheap and not facts.writes)
    )


def is_cheap(node: fx.Node) -> bool:
    """Pointwise work, views, casts and fills: recomputing reads no more than loading the result would."""
    return is_number(node.target) or _cheap_target(node.target)


def float_operands(node: fx.Node) -> list[fx.Node]:
    """The nodes of floating-point tensors that `node` reads."""
    return [n for n in node.all_input_nodes if _is_float(n)]


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


_CASTS = frozenset((aten._to_copy, torch.ops.prims.convert_element_type))


def decides(node: fx.Node) -> bool:
    """Whether the result of a cheap operator jumps when a float operand changes in its last bit.

    Examples: a comparison, a test, a cast to an integer, a rounding.  The backward uses the decision of the forward.
    """
    if node.op != "call_function" or not is_cheap(node) or not float_operands(node):
        return False
    packet, value = getattr(node.target, "overloadpacket", None), node.meta.get("val")
    if facts_of(node.target).jumps or (packet is aten.div and node.kwargs.get("rounding_mode") is not None):
        return True
    return isinstance(value, torch.Tensor) and not _is_float(node) and not is_view_op(node.target)


def is_exact(node: fx.Node) -> bool:
    """Whether a cheap operator only passes on, selects or widens numbers, so that recomputing cannot round differently."""
    if node.target is operator.getitem or is_view_op(node.target):
        return True
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _CASTS:
        before = [n.meta["val"].dtype for n in float_operands(node)]
        return all(torch.promote_types(d, node.meta["val"].dtype) == node.meta["val"].dtype for d in before)
    return facts_of(node.target).selects


def size_bytes(node: fx.Node) -> int:
    """Bytes of the tensor that `node` computes; 0 for other values."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return int(hint_of(value.numel())) * value.element_size()


def recompute_cost(node: fx.Node) -> float:
    """Work per byte of result: about the length of the inner loop."""
    packet = getattr(node.target, "overloadpacket", None)
    values = [a.meta["val"] for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    result = max(1, size_bytes(node))
    if facts_of(node.target).product and len(values) >= 2:
        return 2.0 * float(hint_of(values[-2].shape[-1]))
    read = sum(hint_of(v.numel()) * v.element_size() for v in values)
    if packet is aten.convolution and len(values) >= 2:
        return 2.0 * float(math.prod(map(hint_of, values[1].shape[1:])))
    return 1.0 + float(read) / result
