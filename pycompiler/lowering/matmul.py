"""Small matrix products as loops: cheaper than a call of ATen's kernel, and fused with their neighbours.

In: mm, bmm, addmm with at most SMALL multiply-adds.  Out: a folding Loop.  Larger products stay ATen calls.  If a loop
reads their result, the loop adds the bias: ATen's kernel would first write it to every row of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from pycompiler.lowering.body import compute_dtype
from pycompiler.lowering.elementwise import broadcast_load, lazy
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.reductions import finished
from pycompiler.lowering.registry import LOWERINGS, lowering
from pycompiler.lowering.values import Value, product, unsqueeze

aten = torch.ops.aten
SMALL = 4096
_PRODUCTS = (aten.mm, aten.bmm, aten.addmm)


def total(low: Lowering, x: Value, y: Value) -> Any:
    """x @ y over the last two dimensions, in the computation dtype; NotImplemented if it is not small."""
    dtype = low.fake.dtype
    work = product([*x.shape, y.shape[-1]])
    if work.const is None or not 0 < work.as_int() <= SMALL or not dtype.is_floating_point:
        return NotImplemented
    compute = compute_dtype(dtype)
    pairs = lazy(lambda a, b: a * b, unsqueeze(x, x.rank), unsqueeze(y, y.rank - 2), dtype=compute)
    (result,) = low.reduce("sum", pairs, (x.rank - 1,), lambda v: v, [low.buffer_for(low.fake, compute)])
    return result


@lowering(aten.mm, aten.bmm)
def mm(low: Lowering, x: Value, y: Value) -> Any:
    sums = total(low, x, y)
    if sums is NotImplemented or sums.dtype == low.fake.dtype:
        return sums
    return finished(low, sums, low.fake, lambda v: v)


@lowering(aten.addmm)
def addmm(low: Lowering, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Any:
    if alpha == 0 or beta == 0:
        return NotImplemented  # ATen omits the term, including its NaN and infinities
    sums = total(low, x, y)
    if sums is NotImplemented:
        if alpha != 1 or beta != 1 or not loop_adds_bias(low, bias):
            return sums
        sums = low.call(aten.mm.default, [low.placed(node).ref() for node in factors(low.node)], {}, low.fake)
    buffer = low.buffer_for(low.fake)

    def emit(body: Any, index: Any) -> Any:
        value = sums.load(body, index)
        added = broadcast_load(bias, body, index, buffer.shape).to(value.dtype)
        return (value if alpha == 1 else value * alpha) + (added if beta == 1 else added * beta)

    return low.pointwise(emit, buffer)


def factors(node: Any) -> list[fx.Node]:
    """The two matrices of an addmm."""
    return list(node.args[1:3])


def loop_adds_bias(low: Lowering, bias: Value) -> bool:
    """Whether a loop reads the sum and can add the bias without loss: a product in half precision would be rounded once
    more."""
    exact = low.fake.dtype in (torch.float32, torch.float64)
    return exact and low.fake.device.type == "cpu" and bias.rank == 1 and any(map(_is_loop, readers(low.node)))


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read its elements, through views."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            yield from readers(user)
        else:
            yield user


def _is_loop(node: fx.Node) -> bool:
    return node.target in LOWERINGS and getattr(node.target, "overloadpacket", None) not in _PRODUCTS
