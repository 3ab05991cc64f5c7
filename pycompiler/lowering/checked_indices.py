"""Indices that are data: checked, and counted from the end where eager does so, before they are used."""

from __future__ import annotations

import torch

from pycompiler.ir.expr import Expr
from pycompiler.ir.loops import INDEX_RULES
from pycompiler.lowering.body import Body, Val

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def position(body: Body, index: Val, size: Expr, rule: str, dim: int = 0) -> Expr:
    """An index value into dimension `dim` as an expression, checked against `size` by a row of INDEX_RULES."""
    known = index.constant
    if (
        known is not None
        and size.is_const
        and (-size.as_int() if INDEX_RULES[rule].wraps else 0) <= known < size.as_int()
    ):
        return Expr.of(int(known) % size.as_int())
    return body.emit("wrap_index", (index.to(torch.int64),), torch.int64, (size, rule, dim)).expr
