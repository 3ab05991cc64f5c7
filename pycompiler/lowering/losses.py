"""Checks of the arguments of losses (`operators/value_checks.py`); the losses themselves are decomposed.

In: a tensor whose elements must all lie between 0 and 1.  Out: the same, checked by the kernel that reads it.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.lowering.body import BodyBuilder, Val, compute_dtype
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value
from pycompiler.operators.value_checks import within
from pycompiler.symbolic.expr import Expr


@lowering(within)
def checked_within(low: Lowering, x: Value, rule: str) -> Any:
    def emit(body: BodyBuilder, i: list[Expr]) -> Val:
        v = x.load(body, i)
        wide = v.to(compute_dtype(x.dtype))
        inside = wide.test("ge", 0) & wide.test("le", 1)
        place = inside.where(body.const(0, torch.int64), 1)
        checked = body.emit("wrap_index", (place,), torch.int64, (Expr.of(1), rule, 0))
        return checked.eq(0).where(v, 0)

    return low.pointwise(emit, low.buffer_for(low.fake))
