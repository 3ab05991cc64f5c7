"""Indexing by tensors: embedding, gather, index_select, index, and the adding scatters that are their backwards.

In: values, index values.  Out: loops that load at `%n` (an index op of the body), or that add at such places. A
`wrap_index` op checks and wraps each index before its use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycompiler import config
from pycompiler.ir.loops import Loop
from pycompiler.lowering import values
from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.lowering.checked_indices import INTEGERS, position
from pycompiler.lowering.elementwise import broadcast_load, broadcast_shape, stored
from pycompiler.lowering.graph import Lowering, loop_space
from pycompiler.lowering.partial_updates import updated
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Exprs, Value, contiguous_strides, normal_dim, to_exprs
from pycompiler.operators import value_checks
from pycompiler.symbolic.expr import ZERO, Expr

aten = torch.ops.aten
_ADDED = (torch.float32, torch.float64, torch.int64, torch.int32)  # dtypes for which a store can add


@lowering(aten.embedding.default)
def embedding(low: Lowering, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Any:  # fmt: skip
    return _selected(low, weight, 0, indices)


@lowering(aten.index_select.default)
def index_select(low: Lowering, x: Value, dim: int, index: Value) -> Any:
    if x.rank == 0:
        return NotImplemented
    return _selected(low, x, normal_dim(dim, x.rank), values.reshape(index, [-1]))


def _selected(low: Lowering, x: Value, dim: int, indices: Value) -> Any:
    """x with dimension `dim` replaced by the dimensions of `indices`."""
    if x.shape[dim] == 0:  # any index is out of range, even if the result has no element to check it
        return NotImplemented
    end, rule = dim + indices.rank, "column" if (dim, x.rank) == (1, 2) else "row"

    def emit(body: BodyBuilder, i: list[Expr]) -> Val:
        at = position(body, indices.load(body, i[dim:end]), x.shape[dim], rule)
        return x.load(body, [*i[:dim], at, *i[end:]])

    return low.pointwise(emit, low.buffer_for(low.fake))


@lowering(aten.gather.default)
def gather(low: Lowering, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Any:
    return _gathered(low, x, dim, index, "element")


@lowering(value_checks.pick)
def pick(low: Lowering, x: Value, dim: int, classes: Value) -> Any:
    return _gathered(low, x, dim, classes, "target")


def _gathered(low: Lowering, x: Value, dim: int, index: Value, rule: str) -> Any:
    if x.rank == 0 or index.rank != x.rank:
        return NotImplemented
    d = normal_dim(dim, x.rank)

    def emit(body: BodyBuilder, i: list[Expr]) -> Val:
        at = position(body, index.load(body, i), x.shape[d], rule, d)
        return x.load(body, [*i[:d], at, *i[d + 1 :]])

    return low.pointwise(emit, low.buffer_for(low.fake))


class Advanced:
    """The geometry of x[indices] with index tensors: which dimension each result dimension comes from."""

    def __init__(self, x: Value, indices: Sequence[Value | None]) -> None:
        self.x = x
        self.indices = [*indices, *[None] * (x.rank - len(indices))]
        given = [d for d, v in enumerate(self.indices) if v is not None]
        self.joint = broadcast_shape([v.shape for v in self.indices if v is not None])
        adjacent = given[-1] - given[0] + 1 == len(given)
        self.start = given[0] if adjacent else 0  # the first of the joint dimensions in the result
        rest = [x.shape[d] for d in range(x.rank) if d not in given]
        self.shape: Exprs = (*rest[: self.start], *self.joint, *rest[self.start :])

    def source(self, body: BodyBuilder, i: Sequence[Expr]) -> list[Expr]:
        """The index into x of the result's element i."""
        end = self.start + len(self.joint)
        joint, rest = i[self.start : end], iter([*i[: self.start], *i[end:]])
        ordinal = itertools.count()  # eager's error numbers the indexed dimensions
        return [next(rest) if v is None else position(body, broadcast_load(v, body, joint, self.joint), n, "index",
                                                      next(ordinal))
                for v, n in zip(self.indices, self.x.shape, strict=True)]  # fmt: skip


def _by_integers(indices: Sequence[Value | None]) -> bool:
    given = [v for v in indices if v is not None]
    return bool(given) and all(v.dtype in INTEGERS for v in given)


@lowering(aten.index.Tensor)
def index(low: Lowering, x: Value, indices: Sequence[Value | None]) -> Any:
    if not _by_integers(indices) or any(n == 0 for n in x.shape):
        return NotImplemented
    where = Advanced(x, indices)
    return low.pointwise(lambda b, i: x.load(b, where.source(b, i)), low.buffer_for(low.fake))


# -- scatters --------------------------------------------------------------------------------------------------------


def may_add(low: Lowering, dtype: torch.dtype) -> bool:
    """Whether a loop may add at places.  The order of a GPU's threads is undefined, and sums of floats depend on it."""
    ordered = low.fake.device.type == "cpu" or not dtype.is_floating_point
    return dtype in _ADDED and (ordered or not (config.deterministic or torch.are_deterministic_algorithms_enabled()))


def added(
    low: Lowering, base: Value, shape: Exprs, emit: Callable[[BodyBuilder, list[Expr]], tuple[Sequence[Expr], Val]]
) -> Value:
    """A copy of base with a value added at a place for each index of `shape`.  `emit` returns (index into base, value)."""
    out = stored(low, base, low.fake)
    assert out.buffer is not None
    buffer = low.program.buffers[out.buffer]
    if any(n == 0 for n in (*shape, *base.shape)):
        return out
    at, names, ranges = loop_space(shape, contiguous_strides(shape))
    body = BodyBuilder(dict(zip(names, ranges, strict=True)))
    place, value = emit(body, at)
    value = value.to(buffer.dtype)
    low.add(Loop((buffer,), names, ranges, tuple(body.ops), (value.at,), (out.flat(place),), store_mode="add",
                 init=buffer.name, origin=(low.node.name,)))  # fmt: skip
    return out


@lowering(aten.scatter_add.default)
def scatter_add(low: Lowering, x: Value, dim: int, index: Value, source: Value) -> Any:
    if (done := updated(low, x)) is not None:
        return done
    if not may_add(low, x.dtype) or x.rank == 0:
        return NotImplemented
    d = normal_dim(dim, x.rank)

    def emit(body: BodyBuilder, i: list[Expr]) -> tuple[Sequence[Expr], Val]:
        place = [*i[:d], position(body, index.load(body, i), x.shape[d], "element", d), *i[d + 1 :]]
        return place, source.load(body, i)

    return added(low, x, index.shape, emit)


@lowering(aten.index_add.default)
def index_add(low: Lowering, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Any:
    if (done := updated(low, x)) is not None:
        return done
    if not may_add(low, x.dtype) or x.rank == 0 or alpha != 1:
        return NotImplemented
    d = normal_dim(dim, x.rank)
    index = values.reshape(index, [-1])

    def emit(body: BodyBuilder, i: list[Expr]) -> tuple[Sequence[Expr], Val]:
        at = position(body, index.load(body, [i[d]]), x.shape[d], "row" if x.rank == 1 else "element", d)
        return [*i[:d], at, *i[d + 1 :]], source.load(body, i)

    return added(low, x, source.shape, emit)


@lowering(aten.index_put.default)
def index_put(low: Lowering, x: Value, indices: Sequence[Value | None], source: Value, accumulate: bool = False) -> Any:
    if (done := updated(low, x)) is not None:
        return done
    if not accumulate or not may_add(low, x.dtype) or not _by_integers(indices):
        return NotImplemented  # with equal places, the kernel chooses the value that stays
    where = Advanced(x, indices)
    return added(low, x, where.shape,
                 lambda b, i: (where.source(b, i), broadcast_load(source, b, i, where.shape)))  # fmt: skip


@lowering(aten.index_copy.default)
def index_copy(low: Lowering, x: Value, dim: int, index: Value, source: Value) -> Any:
    done = updated(low, x)
    return NotImplemented if done is None else done


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(low: Lowering, grad: Value, indices: Value, num_weights: Any, padding_idx: int,
                             scale_grad_by_freq: bool) -> Any:  # fmt: skip
    if scale_grad_by_freq or not may_add(low, grad.dtype):
        return NotImplemented
    fake = low.fake
    zero = Value.constant(0, to_exprs(fake.shape), fake.dtype, fake.device)

    def emit(body: BodyBuilder, i: list[Expr]) -> tuple[Sequence[Expr], Val]:
        row = indices.load(body, i[:-1]).to(torch.int64)
        value = grad.load(body, i)
        if padding_idx >= 0:
            value = row.eq(padding_idx).where(0, value)
        return [position(body, row, zero.shape[0], "row"), i[-1]], value

    return added(low, zero, grad.shape, emit)


def _one_per_line(x: Value, dim: int, index: Value) -> bool:
    """Whether a scatter along `dim` sets exactly one element of each line of x."""
    return index.rank == x.rank and all(n == (1 if d == dim else m) for d, (n, m) in enumerate(
        zip(index.shape, x.shape, strict=True)))  # fmt: skip


@lowering(aten.scatter.value, aten.scatter.src)
def scatter(low: Lowering, x: Value, dim: int, index: Value, source: Any) -> Any:
    """One element per line is a comparison.  Otherwise, with equal places, the kernel chooses the value that stays."""
    if (done := updated(low, x)) is not None:
        return done
    if x.rank == 0 or not _one_per_line(x, normal_dim(dim, x.rank), index) or any(n == 0 for n in x.shape):
        return NotImplemented
    d = normal_dim(dim, x.rank)

    def emit(body: BodyBuilder, i: list[Expr]) -> Val:
        line = [*i[:d], ZERO, *i[d + 1 :]]
        place = body.index(position(body, index.load(body, line), x.shape[d], "element", d))
        value = source.load(body, line).to(x.dtype) if isinstance(source, Value) else body.const(source, x.dtype)
        return body.index(i[d]).eq(place).where(value, x.load(body, i))

    return low.pointwise(emit, low.buffer_for(low.fake))
