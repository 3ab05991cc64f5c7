"""In-place writes of inputs: `aten.copy_(input, value)`, which autograd puts at the end of a graph.

In: the input and the value.  Out: a Loop that computes the value in the layout of the input, and the copy as an Extern
between two whole buffers.  Scheduling can remove the copy and let the loop write the input itself
(`scheduling/stores.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.ir.loops import Extern
from pycompiler.lowering.graph import Lowering, is_injective, same_strides
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value

COPY = torch.ops.aten.copy_.default


@lowering(COPY)
def copy_(low: Lowering, target: Value, value: Value, non_blocking: bool = False) -> Any:
    name = target.buffer
    if name is None or name not in low.given:
        return NotImplemented
    to = low.program.buffers[name]
    if not is_injective(to.shape, to.stride) or value.device != to.device or target.shape != value.shape:
        return NotImplemented
    if (value.dtype, target.dtype) != (to.dtype, to.dtype) or not same_strides(to.shape, target.stride, to.stride):
        return NotImplemented
    if not _is_fresh(low, value, target):
        value = low.pointwise(value.load, low.fresh(to.dtype, to.shape, to.stride, to.device))
    low.add(Extern(COPY, (target.ref(), value.ref()), {}, (None,), (name,), (low.node.name,)))
    return target


def _is_fresh(low: Lowering, value: Value, target: Value) -> bool:
    """Whether the value is a whole buffer that a loop fills only for this copy, with the layout of the input."""
    if value.buffer is None or value.offset != 0 or not same_strides(value.shape, value.stride, target.stride):
        return False
    made = low.program.buffers[value.buffer]
    if made.shape != value.shape or not same_strides(made.shape, made.stride, value.stride):
        return False
    source: Any = low.node.args[1]
    if any(u.op == "output" or (u.target is COPY and u is not low.node) for u in source.users):
        return False
    return made.name in low.filled
