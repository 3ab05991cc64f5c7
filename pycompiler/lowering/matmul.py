"""Small matrix products as loops: a call of ATen's kernel costs more than they do, and loops fuse with their neighbours.

In: mm, bmm, addmm whose number of multiply-adds is at most SMALL.  Out: a folding Loop.  Larger ones stay ATen's.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.lowering.body import compute_dtype
from pycompiler.lowering.elementwise import broadcast_load, lazy
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.reductions import finished
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, product, unsqueeze

aten = torch.ops.aten
SMALL = 4096


def total(low: Lowering, x: Value, y: Value) -> Any:
    """x @ y over the last two dimensions, in the computation dtype; NotImplemented when it is not small."""
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
    sums = total(low, x, y)
    if sums is NotImplemented:
        return sums
    buffer = low.buffer_for(low.fake)

    def emit(body: Any, index: Any) -> Any:
        value = sums.load(body, index)
        added = broadcast_load(bias, body, index, buffer.shape).to(value.dtype)
        return (value if alpha == 1 else value * alpha) + (added if beta == 1 else added * beta)

    return low.pointwise(emit, buffer)
