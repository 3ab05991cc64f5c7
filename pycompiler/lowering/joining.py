"""Joining, padding and rearranging: cat, stack, pad, slice_scatter, flip, roll, repeat.

In: values.  Out: one Loop with masked loads; for most cats one Loop per part, each filling its slice of one buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.ir.loops import Buffer, Loop
from pycompiler.lowering import values
from pycompiler.lowering.body import BodyBuilder, Val
from pycompiler.lowering.elementwise import stored
from pycompiler.lowering.graph import Lowering, loop_space
from pycompiler.lowering.partial_updates import updated
from pycompiler.lowering.readers import is_pointwise, readers
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, mapped, normal_dim, to_exprs
from pycompiler.lowering.views import slice_of, wrapped
from pycompiler.symbolic.expr import ZERO, Expr

aten = torch.ops.aten

MASKED = frozenset({"cuda"})  # devices on which one loop chooses among the parts of a cat
MOST_MASKED = 4  # parts of such a cat


@lowering(aten.cat.default)
def cat(low: Lowering, tensors: Sequence[Value], dim: int = 0) -> Value:
    d = normal_dim(dim, low.fake.dim())
    parts = [v for v in tensors if all(n != 0 for n in v.shape)]
    if low.fake.device.type in MASKED and 1 < len(parts) <= MOST_MASKED and all(map(is_pointwise, readers(low.node))):
        return _masked_parts(low, parts, d)
    return fill_parts(low, tensors, d)


def _masked_parts(low: Lowering, parts: Sequence[Value], dim: int) -> Value:
    """The parts one after the other along `dim`, as one Loop that chooses a part for each element.

    For pointwise readers, scheduling puts the choice into their kernels, so the joined value is never stored.
    """
    parts = [v if v.number is not None else low.realised(v) for v in parts]
    buffer = low.buffer_for(low.fake, like=parts)

    def emit(body: BodyBuilder, index: list[Expr]) -> Val:
        found, end = body.const(0, buffer.dtype), buffer.shape[dim]
        for k in reversed(range(len(parts))):
            part, start = parts[k], end - parts[k].shape[dim] if k else ZERO
            mask = inside(body, index[dim], start, end, buffer.shape[dim])
            at = [i - start if d == dim else i for d, i in enumerate(index)]
            found, end = masked_load(low, part, body, at, mask, found), start
        return found

    return low.pointwise(emit, buffer)


def fill_parts(low: Lowering, parts: Sequence[Value], dim: int) -> Value:
    """The parts one after the other along `dim`, in the fake result's dtype and strides.  Empty ones may have another rank."""
    buffer = low.buffer_for(low.fake, like=parts)
    parts = [v for v in parts if all(n != 0 for n in v.shape)]
    if len(parts) <= 1:
        if parts:
            return low.pointwise(parts[0].load, buffer)
        return low.pointwise(lambda b, _: b.const(0, buffer.dtype), buffer)
    start = ZERO
    for k, part in enumerate(parts):
        fill_part(low, part, buffer, [start if d == dim else ZERO for d in range(part.rank)], first=k == 0)
        start = start + part.shape[dim]
    return low.value_of(buffer)


def fill_part(low: Lowering, part: Value, buffer: Buffer, start: Sequence[Expr], *, first: bool) -> None:
    """A Loop that writes `part` into `buffer`, from the position `start` on.  `first`: this Loop creates the buffer."""
    index, names, ranges = loop_space(part.shape, buffer.stride)
    body = BodyBuilder(dict(zip(names, ranges, strict=True)))
    result = part.load(body, index).to(buffer.dtype)
    at = sum(((i + lead) * s for i, lead, s in zip(index, start, buffer.stride, strict=True)), ZERO)
    low.add(Loop((buffer,), names, ranges, tuple(body.ops), (result.at,), (at,), init=None if first else buffer.name,
                 origin=(low.node.name,)))  # fmt: skip


def masked_load(low: Lowering, v: Value, body: BodyBuilder, index: Sequence[Expr], mask: Val, other: Val) -> Val:
    """v's element at `index` where the mask is true, else `other`.  The index may be out of range where the mask is false."""
    if mask.constant is not None:
        return v.load(body, index).to(other.dtype) if mask.constant else other
    if v.number is not None:
        return mask.where(body.const(v.number, v.dtype).to(other.dtype), other)
    if v.buffer is None:
        raise ValueError("a masked load needs memory: realise the value first")
    own = other.to(v.dtype)
    loaded = body.emit("masked_load", (mask, own), v.dtype, (v.buffer, v.flat(index)))
    return loaded if other.dtype == v.dtype else mask.where(loaded.to(other.dtype), other)


def inside(body: BodyBuilder, i: Expr, low_end: Expr, end: Expr, size: Expr) -> Val:
    """low_end <= i < end, for 0 <= i < size; comparisons that always hold are left out."""
    test = body.const(True, torch.bool)
    if low_end != 0:
        test = body.index(i) >= body.index(low_end)
    if end != size:
        below = body.index(i) < body.index(end)
        test = below if test.constant else test & below
    return test


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(low: Lowering, x: Value, pad: Sequence[Any], value: Any = 0) -> Any:
    before, after = [ZERO] * x.rank, [ZERO] * x.rank
    for k in range(len(pad) // 2):
        before[x.rank - 1 - k], after[x.rank - 1 - k] = values.to_expr(pad[2 * k]), values.to_expr(pad[2 * k + 1])
    return padded(low, x, before, value)


def padded(low: Lowering, x: Value, before: Sequence[Expr], value: Any) -> Value:
    """x at the offset `before` in the fake result's shape, `value` around it; a negative offset crops."""
    return fill_padded(low, x, before, value, low.buffer_for(low.fake, like=[x]))


def fill_padded(low: Lowering, x: Value, before: Sequence[Expr], value: Any, buffer: Buffer) -> Value:
    """`padded` in a given buffer."""
    if any(n == 0 for n in x.shape):
        return low.pointwise(lambda b, _: b.const(value, buffer.dtype), buffer)
    source = x if x.number is not None else low.realised(x)

    def emit(body: BodyBuilder, index: list[Expr]) -> Val:
        mask = body.const(True, torch.bool)
        for i, n, lead, size in zip(index, x.shape, before, buffer.shape, strict=True):
            mask = both(mask, inside(body, i, lead.max(0), (lead + n).min(size), size))
        return masked_load(low, source, body, [i - b for i, b in zip(index, before, strict=True)], mask,
                           body.const(value, buffer.dtype))  # fmt: skip

    return low.pointwise(emit, buffer)


def _edge(reflect: bool) -> Any:
    """Padding with the mirrored inside, or with the outermost element, as index arithmetic."""

    def place(i: Expr, n: Expr) -> Expr:
        if not reflect:
            return i.max(0).min(n - 1)
        mirrored = i.max(-i)
        return (n - 1) - ((n - 1) - mirrored).max(mirrored - (n - 1))

    def handler(low: Lowering, x: Value, padding: Sequence[Any]) -> Any:
        if any(n == 0 for n in x.shape) or not all(isinstance(p, int) and p >= 0 for p in padding):
            return NotImplemented
        lead = [ZERO] * (x.rank - len(padding) // 2) + [Expr.of(p) for p in padding[::2]][::-1]
        padded_dims = range(x.rank - len(padding) // 2, x.rank)

        def index(i: Sequence[Expr]) -> list[Expr]:
            return [place(k - lead[d], x.shape[d]) if d in padded_dims else k for d, k in enumerate(i)]

        return stored(low, mapped(x, to_exprs(low.fake.shape), index), low.fake)

    return handler


lowering(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)(
    _edge(reflect=True)
)
lowering(aten.replication_pad2d.default, aten.replication_pad3d.default)(_edge(reflect=False))


def both(a: Val, b: Val) -> Val:
    if a.constant is not None:
        return b if a.constant else a
    return a if b.constant else a & b


@lowering(aten.slice_scatter.default)
def slice_scatter(low: Lowering, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None,
                  step: int = 1) -> Any:  # fmt: skip
    done = updated(low, x)
    return scattered(low, x, source, dim, start, end, step) if done is None else done


def scattered(low: Lowering, x: Value, source: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    """x with `source` in place of a slice."""
    d = normal_dim(dim, x.rank)
    first, length = slice_of(low, x, d, start, end, step)
    buffer = low.buffer_for(low.fake)
    if length == 0:
        return low.pointwise(x.load, buffer)
    kept = source if source.number is not None else low.realised(source)

    def emit(body: BodyBuilder, index: list[Expr]) -> Val:
        i = index[d]
        mask = inside(body, i, first, first + (length - 1) * step + 1, x.shape[d])
        if step != 1:
            offset = body.index(i - first)
            mask = both(mask, offset.op("mod", step).eq(0))
        at = i - first if step == 1 else (i - first) // step
        return masked_load(
            low, kept, body, [*index[:d], at, *index[d + 1 :]], mask, x.load(body, index).to(buffer.dtype)
        )

    return low.pointwise(emit, buffer)


@lowering(aten.select_scatter.default)
def select_scatter(low: Lowering, x: Value, source: Value, dim: int, index: Any) -> Any:
    done = updated(low, x)
    return _select_scatter(low, x, source, dim, index) if done is None else done


def _select_scatter(low: Lowering, x: Value, source: Value, dim: int, index: Any) -> Value:
    at = wrapped(low, index, x.shape[normal_dim(dim, x.rank)])
    source = values.unsqueeze(low.realised(source) if source.number is None else source, normal_dim(dim, x.rank))
    buffer = low.buffer_for(low.fake)
    d = normal_dim(dim, x.rank)

    def emit(body: BodyBuilder, where: list[Expr]) -> Val:
        mask = body.const(True, torch.bool) if x.shape[d] == 1 else body.index(where[d]).eq(body.index(at))
        other = x.load(body, where).to(buffer.dtype)
        return masked_load(low, source, body, [*where[:d], ZERO, *where[d + 1 :]], mask, other)

    return low.pointwise(emit, buffer)


@lowering(aten.flip.default)
def flip(low: Lowering, x: Value, dims: Sequence[int]) -> Value:
    flipped = {normal_dim(d, x.rank) for d in dims} if x.rank else set()
    view = mapped(x, x.shape, lambda i: [n - 1 - k if d in flipped and n != 1 else k
                                         for d, (k, n) in enumerate(zip(i, x.shape, strict=True))])  # fmt: skip
    return stored(low, view, low.fake)


@lowering(aten.roll.default)
def roll(low: Lowering, x: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    if any(n == 0 for n in x.shape) or any(s < -(2**62) for s in shifts):  # torch treats it as a symbol, and raises
        return NotImplemented
    if not dims:
        flat = values.reshape(x, [-1])
        return stored(low, values.reshape(_rolled(flat, {0: int(shifts[0])}), x.shape), low.fake)
    amount: dict[int, int] = {}
    for s, d in zip(shifts, dims, strict=True):
        amount[normal_dim(d, x.rank)] = amount.get(normal_dim(d, x.rank), 0) + int(s)
    return stored(low, _rolled(x, amount), low.fake)


def _rolled(x: Value, amount: dict[int, int]) -> Value:
    def index(i: Sequence[Expr]) -> list[Expr]:
        return [(k + Expr.of(-amount[d]) % n) % n if d in amount and n != 1 else k
                for d, (k, n) in enumerate(zip(i, x.shape, strict=True))]  # fmt: skip

    return mapped(x, x.shape, index)


@lowering(aten.repeat.default)
def repeat(low: Lowering, x: Value, repeats: Sequence[Any]) -> Value:
    lead = len(repeats) - x.rank
    shape = to_exprs(low.fake.shape)

    def index(i: Sequence[Expr]) -> list[Expr]:
        return [ZERO if n == 1 else k if n == whole else k % n
                for k, n, whole in zip(i[lead:], x.shape, shape[lead:], strict=True)]  # fmt: skip

    return stored(low, mapped(x, shape, index), low.fake)
