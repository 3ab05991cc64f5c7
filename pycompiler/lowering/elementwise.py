"""The common part of pointwise lowerings: promotion, broadcasting, one Loop.

In: the operands and a tree (a function of `Val`s in the computation dtype).  Out: a value over a fresh buffer.

    elementwise(low, lambda x, y: x * y.sigmoid(), (x, y), Kind.DEFAULT)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Any

import torch

from pycompiler.lowering.body import BodyBuilder, Val, compute_dtype
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.promotion import as_float, promoted, rounded
from pycompiler.lowering.values import Exprs, Value, contiguous_strides, is_broadcast
from pycompiler.symbolic.expr import ZERO, Expr
from pycompiler.symbolic.symbolic_node import Real

INTEGERS = {d: torch.iinfo(d) for d in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)}


class Kind(Enum):
    """How the computation dtype follows from the promoted one; the result's dtype is the fake tensor's."""

    DEFAULT = "promoted"
    FLOAT = "promoted, integers become the default float"


def computation_dtype(args: Sequence[Any], kind: Kind) -> torch.dtype:
    dtype = promoted(args)
    return compute_dtype(as_float(dtype) if kind is Kind.FLOAT else dtype)


def broadcast_load(v: Value, body: BodyBuilder, index: Sequence[Expr], shape: Exprs) -> Val:
    """v's element at `index` of a shape that v broadcasts to."""
    own = zip(v.shape, shape[len(shape) - v.rank :], index[len(shape) - v.rank :], strict=True)
    return v.load(body, [ZERO if is_broadcast(n, wide) else i for n, wide, i in own])


def elementwise(low: Lowering, tree: Callable[..., Val], args: Sequence[Any], kind: Kind = Kind.DEFAULT,
                dtype: torch.dtype | None = None, exact: Collection[int] = ()) -> Value:  # fmt: skip
    """tree(args) for every element.

    - args: values, numbers (constants of the computation dtype) or None (passed on).
    - dtype: the computation dtype, when promotion does not give it.
    - exact: positions of scalars that ATen's half precision kernels use unrounded (see `operand_dtype`).
    """
    buffer = low.buffer_for(low.fake, like=[a for a in args if isinstance(a, Value)])
    compute = dtype or computation_dtype(args, kind)
    common = as_float(promoted(args)) if kind is Kind.FLOAT else promoted(args)
    given = [operand_dtype(a, common, buffer.device, k in exact) for k, a in enumerate(args)]
    args = [low.on_device(a, buffer.device) if isinstance(a, Value) else a for a in args]

    def emit(body: BodyBuilder, index: list[Expr]) -> Val:
        vals = [broadcast_load(a, body, index, buffer.shape).to(d).to(compute) if isinstance(a, Value)
                else None if a is None else number(body, a, d).to(compute)
                for a, d in zip(args, given, strict=True)]  # fmt: skip
        return tree(*vals)

    return low.pointwise(emit, buffer)


def number(body: BodyBuilder, a: Any, dtype: torch.dtype) -> Val:
    """A number operand, possibly symbolic, as torch converts it to `dtype`."""
    if isinstance(a, Real):
        return body.real(a).to(dtype)
    if isinstance(a, Expr) and a.const is None:
        return body.index(a).to(dtype)
    value = rounded(a.const if isinstance(a, Expr) else a, dtype)
    if type(value) is int and dtype in INTEGERS and not INTEGERS[dtype].min <= value <= INTEGERS[dtype].max:
        value = torch.tensor(value).to(dtype).item()  # wraps around
    return body.const(value, compute_dtype(dtype))


def operand_dtype(a: Any, dtype: torch.dtype, device: torch.device, exact: bool) -> torch.dtype:
    """The dtype in which ATen's kernel of `dtype` receives an operand.

    Half precision kernels compute in float, but their operands are rounded (`x == 0.3` finds the bfloat16 nearest to
    0.3). Exceptions: some scalars (`exact`), and on CUDA all scalars on the CPU.
    """
    scalar = not isinstance(a, Value) or a.rank == 0
    host = not isinstance(a, Value) or a.device.type == "cpu"
    unrounded = scalar and host and (exact or device.type != "cpu")
    return compute_dtype(dtype) if unrounded else dtype


def mixed(low: Lowering, tree: Callable[..., Val], values: Sequence[Value]) -> Value:
    """As elementwise, but each operand comes in its own dtype."""
    buffer = low.buffer_for(low.fake, like=values)
    values = [low.on_device(v, buffer.device) for v in values]
    return low.pointwise(lambda b, i: tree(*(broadcast_load(v, b, i, buffer.shape) for v in values)), buffer)


# -- compositions: lowerings of several loops ------------------------------------------------------------------------


def lazy(tree: Callable[..., Val], *operands: Value, dtype: torch.dtype) -> Value:
    """tree of the operands (each converted to `dtype` first), not stored: each load computes the element."""
    shape = broadcast_shape([v.shape for v in operands])

    def emit(body: BodyBuilder, index: Sequence[Expr]) -> Val:
        return tree(*(broadcast_load(v, body, index, shape).to(dtype) for v in operands))

    return Value(shape, dtype, operands[0].device, emit=emit)


def broadcast_shape(shapes: Sequence[Exprs]) -> Exprs:
    rank = max(len(s) for s in shapes)
    result = [Expr.of(1)] * rank
    for s in shapes:
        for d, n in enumerate(s, start=rank - len(s)):
            if n != 1 and (result[d] == 1 or not is_broadcast(n, result[d])):
                result[d] = n
    return tuple(result)


def stored(low: Lowering, v: Value, fake: torch.Tensor | None = None) -> Value:
    """v's elements in a fresh buffer, with the layout and dtype of `fake`, or contiguous."""
    if fake is not None:
        return low.pointwise(v.load, low.buffer_for(fake))
    return low.pointwise(v.load, low.fresh(v.dtype, v.shape, contiguous_strides(v.shape), v.device))


def folded(low: Lowering, kind: str, v: Value, dims: Sequence[int]) -> Value:
    """v folded over `dims`, which stay with size 1; v is in the accumulator's dtype."""
    return folded_all(low, kind, v, dims, 1)[0]


def folded_all(low: Lowering, kind: str, v: Value, dims: Sequence[int], results: int) -> tuple[Value, ...]:
    shape = tuple(Expr.of(1) if d in dims else n for d, n in enumerate(v.shape))
    outs = [low.fresh(v.dtype, shape, contiguous_strides(shape), v.device) for _ in range(results)]
    return low.reduce(kind, v, dims, lambda e: e, outs, keepdim=True)
