"""Indices read from data: checked before their use, and wrapped (counted from the end) if eager does so."""

from __future__ import annotations

import torch

from pycompiler.ir.loops import INDEX_RULES
from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.symbolic.expr import Expr

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def position(body: BodyBuilder, index: Val, size: Expr, rule: str, dim: int = 0) -> Expr:
    """An index value into dimension `dim` as an expression, checked against `size` by a row of INDEX_RULES."""
    known = index.constant
    if (
        known is not None
        and size.is_const
        and (-size.as_int() if INDEX_RULES[rule].wraps else 0) <= known < size.as_int()
    ):
        return Expr.of(int(known) % size.as_int())
    return body.emit("wrap_index", (index.to(torch.int64),), torch.int64, (size, rule, dim)).expr
