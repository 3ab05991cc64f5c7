"""What pointwise lowerings share: promotion, broadcasting, one Loop.

In: the operands and a tree (a function of `Val`s in the computation dtype).  Out: a value over a fresh buffer.

    elementwise(low, lambda x, y: x * y.sigmoid(), (x, y), Kind.DEFAULT)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch

from pycompiler.ir.expr import ZERO, Expr
from pycompiler.lowering.body import Body, Val, compute_dtype
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.promotion import as_float, promoted
from pycompiler.lowering.values import Exprs, Value


class Kind(Enum):
    """How the computation dtype follows from the promoted one; the result's dtype is the fake tensor's."""

    DEFAULT = "promoted"
    FLOAT = "promoted, integers become the default float"


def computation_dtype(args: Sequence[Any], kind: Kind) -> torch.dtype:
    dtype = promoted(args)
    return compute_dtype(as_float(dtype) if kind is Kind.FLOAT else dtype)


def broadcast_load(v: Value, body: Body, index: Sequence[Expr], shape: Exprs) -> Val:
    """v's element at `index` of a shape that v broadcasts to."""
    own = index[len(shape) - v.rank :]
    return v.load(body, [ZERO if n == 1 else i for n, i in zip(v.shape, own, strict=True)])


def elementwise(low: Lowering, tree: Callable[..., Val], args: Sequence[Any], kind: Kind = Kind.DEFAULT,
                dtype: torch.dtype | None = None) -> Value:  # fmt: skip
    """tree(args) for every element.  args: values, numbers (constants of the computation dtype) or None (passed on).

    dtype: the computation dtype, when promotion does not give it.
    """
    buffer = low.buffer_for(low.fake)
    compute = dtype or computation_dtype(args, kind)
    args = [low.on_device(a, buffer.device) if isinstance(a, Value) else a for a in args]

    def emit(body: Body, index: list[Expr]) -> Val:
        vals = [broadcast_load(a, body, index, buffer.shape).to(compute) if isinstance(a, Value)
                else None if a is None else body.const(a, compute) for a in args]  # fmt: skip
        return tree(*vals)

    return low.pointwise(emit, buffer)


def mixed(low: Lowering, tree: Callable[..., Val], values: Sequence[Value]) -> Value:
    """As elementwise, but each operand comes in its own dtype."""
    buffer = low.buffer_for(low.fake)
    values = [low.on_device(v, buffer.device) for v in values]
    return low.pointwise(lambda b, i: tree(*(broadcast_load(v, b, i, buffer.shape) for v in values)), buffer)
