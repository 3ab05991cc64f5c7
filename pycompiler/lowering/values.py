"""Lowered tensors and their views.

In: shapes, strides, index lists.  Out: `Value`, a tensor as (shape, dtype, device) plus a way to read an element:
strided memory of a buffer, or any function that emits the element into a loop body (a constant, an arange, a view
that strides cannot express).  Views are index arithmetic on values; nothing is computed by making one.

    v = Value.strided("in0", shape=(8, 4), stride=(4, 1), ...)
    permute(v, (1, 0)).load(body, [i, j])     # load in0 [i + 4*j]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycompiler.ir.loops import Ref
from pycompiler.lowering.body import BodyBuilder, Number, Val
from pycompiler.symbolic.expr import ONE, ZERO, Expr, SymbolicError
from pycompiler.symbolic.hints import likely
from pycompiler.symbolic.symbols import expr_of, symbols_of

Exprs = tuple[Expr, ...]
Load = Callable[[BodyBuilder, Sequence[Expr]], Val]
IndexMap = Callable[[Sequence[Expr]], Sequence[Expr]]


def to_expr(size: Any) -> Expr:
    """A size of a fake tensor: an int, an Expr, or a SymInt, of ours or of torch's."""
    if isinstance(size, int | Expr):
        return Expr.of(size)
    if isinstance(size, torch.SymInt):
        return _from_sympy(size.node.expr) if symbols_of(size) is None else expr_of(size)
    raise TypeError(f"a size is an int or a SymInt, not {type(size).__name__} ({size!r})")


def hints_of(size: torch.SymInt) -> dict[str, int]:
    """The values of the size's symbols in this call, as far as they are known."""
    own, e = symbols_of(size), to_expr(size)
    if own is not None:
        return {name: own.hints[name] for name in e.symbols}
    hint = size.node.hint
    return {e.symbol: hint} if e.symbol is not None and isinstance(hint, int) else {}


def to_exprs(sizes: Sequence[Any]) -> Exprs:
    return tuple(to_expr(s) for s in sizes)


def _from_sympy(e: Any) -> Expr:
    if e.is_Integer:
        return Expr.of(int(e))
    if e.is_Symbol:
        if e.name.startswith("u"):
            raise NotImplementedError(f"the size {e} depends on data: no buffer can be planned for it")
        return Expr.sym(e.name)
    args = [_from_sympy(a) for a in e.args]
    kind = type(e).__name__
    if kind == "Add":
        return sum(args, ZERO)
    if kind == "Mul":
        return product(args)
    if kind == "Pow" and args[1].is_const and args[1] >= 0:
        return product([args[0]] * args[1].as_int())
    two = {"FloorDiv": Expr.__floordiv__, "CleanDiv": Expr.__floordiv__, "Mod": Expr.__mod__, "PythonMod": Expr.__mod__,
           "Min": Expr.min, "Max": Expr.max}.get(kind)  # fmt: skip
    if two is None or len(args) != 2:
        raise NotImplementedError(f"the size expression {e} ({kind}) has no counterpart in symbolic.expr")
    return two(args[0], args[1])


def product(sizes: Sequence[Expr]) -> Expr:
    total = ONE
    for n in sizes:
        total = total * n
    return total


def contiguous_strides(shape: Sequence[Expr]) -> Exprs:
    strides: list[Expr] = []
    step = ONE
    for n in reversed(shape):
        strides.insert(0, step)
        step = step * (n if n != 0 else 1)
    return tuple(strides)


def channels_last_strides(shape: Sequence[Expr]) -> Exprs:
    """Strides of an image (batch, channels, rows, columns) whose channels lie side by side."""
    batch, rows, columns, channels = contiguous_strides([shape[d] for d in (0, 2, 3, 1)])
    return (batch, channels, rows, columns)


def extent(shape: Sequence[Expr], stride: Sequence[Expr]) -> Expr:
    """Elements from the first to the last, both included; 0 for an empty tensor."""
    if any(n == 0 for n in shape):
        return ZERO
    return sum(((n - 1) * s for n, s in zip(shape, stride, strict=True)), ONE)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor.  Either `buffer` with stride and offset (strided memory), or `emit` (any other way to an element).

    `number`: the value of every element, when it is one known number.
    """

    shape: Exprs
    dtype: torch.dtype
    device: torch.device
    buffer: str | None = None
    stride: Exprs = ()
    offset: Expr = ZERO
    emit: Load | None = None
    number: Number | None = None

    @staticmethod
    def strided(buffer: str, shape: Exprs, stride: Exprs, dtype: torch.dtype, device: torch.device) -> Value:
        return Value(shape, dtype, device, buffer, stride)

    @staticmethod
    def constant(number: Number, shape: Exprs, dtype: torch.dtype, device: torch.device) -> Value:
        number = bool(number) if dtype == torch.bool else float(number) if dtype.is_floating_point else int(number)
        return Value(shape, dtype, device, emit=lambda b, _: b.const(number, dtype), number=number)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Expr:
        return product(self.shape)

    def load(self, body: BodyBuilder, index: Sequence[Expr]) -> Val:
        """Emits the element at `index` (one Expr per dimension)."""
        if self.emit is not None:
            return self.emit(body, index)
        assert self.buffer is not None
        return body.load(self.buffer, self.flat(index), self.dtype)

    def flat(self, index: Sequence[Expr]) -> Expr:
        """Position in the storage of `buffer`."""
        at = self.offset
        for i, s in zip(index, self.stride, strict=True):
            at = at + i * s
        return at

    def ref(self) -> Ref:
        if self.buffer is None:
            raise ValueError("only strided memory can be passed by reference: realise the value first")
        return Ref(self.buffer, self.shape, self.stride, self.offset)


def restrided(v: Value, shape: Exprs, stride: Exprs, offset: Expr) -> Value:
    return Value(shape, v.dtype, v.device, v.buffer, stride, offset)


def mapped(v: Value, shape: Exprs, index: IndexMap) -> Value:
    """The view whose element at i is v's element at index(i)."""
    if v.number is not None:
        return Value.constant(v.number, shape, v.dtype, v.device)
    return Value(shape, v.dtype, v.device, emit=lambda b, i: v.load(b, index(i)))


def normal_dim(dim: int, rank: int) -> int:
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"dimension {dim} of a tensor of rank {rank}")
    return dim % rank


def permute(v: Value, dims: Sequence[int]) -> Value:
    order = [normal_dim(d, v.rank) for d in dims]
    shape = tuple(v.shape[d] for d in order)
    if v.buffer is not None:
        return restrided(v, shape, tuple(v.stride[d] for d in order), v.offset)
    back = [order.index(d) for d in range(v.rank)]
    return mapped(v, shape, lambda i: [i[p] for p in back])


def is_broadcast(n: Expr, wide: Expr) -> bool:
    """Whether a dimension of `n` elements is broadcast to `wide`.

    The trace has assumed which of two symbolic sizes is 1; their hints show it.  SymbolicError if both are 1 in this
    call.
    """
    if n.const is not None or n == wide:
        return n == 1
    if likely(n) != 1:
        return False
    if wide.const is None and likely(wide) == 1:
        raise SymbolicError(f"broadcast sizes {n} and {wide}, which are both 1 in this call")
    return wide != 1


def expand(v: Value, shape: Sequence[Any]) -> Value:
    """Broadcasts; -1 keeps a size."""
    new = len(shape) - v.rank
    target = tuple(v.shape[d - new] if isinstance(n, int) and n == -1 else to_expr(n) for d, n in enumerate(shape))
    stretched = [is_broadcast(v.shape[d - new], target[d]) and target[d] != 1 for d in range(new, len(target))]
    if new == 0 and not any(stretched):
        return v
    if v.buffer is not None:
        stride = tuple(ZERO if s else t for s, t in zip(stretched, v.stride, strict=True))
        return restrided(v, target, (ZERO,) * new + stride, v.offset)
    return mapped(v, target, lambda i: [ZERO if s else x for s, x in zip(stretched, i[new:], strict=True)])


def select(v: Value, dim: int, index: Expr) -> Value:
    """Drops a dimension; `index` is not negative."""
    d = normal_dim(dim, v.rank)
    shape = v.shape[:d] + v.shape[d + 1 :]
    if v.buffer is not None:
        return restrided(v, shape, v.stride[:d] + v.stride[d + 1 :], v.offset + index * v.stride[d])
    return mapped(v, shape, lambda i: [*i[:d], index, *i[d:]])


def slice_dim(v: Value, dim: int, start: Expr, length: Expr, step: int = 1) -> Value:
    """Elements start, start + step, ... (`length` of them) along `dim`."""
    d = normal_dim(dim, v.rank)
    shape = (*v.shape[:d], length, *v.shape[d + 1 :])
    if v.buffer is not None:
        stride = (*v.stride[:d], v.stride[d] * step, *v.stride[d + 1 :])
        return restrided(v, shape, stride, v.offset + start * v.stride[d] if length != 0 else v.offset)
    return mapped(v, shape, lambda i: [*i[:d], start + i[d] * step, *i[d + 1 :]])


def unsqueeze(v: Value, dim: int) -> Value:
    d = dim % (v.rank + 1)
    shape = (*v.shape[:d], ONE, *v.shape[d:])
    if v.buffer is not None:
        step = v.shape[d] * v.stride[d] if d < v.rank else ONE
        return restrided(v, shape, (*v.stride[:d], step, *v.stride[d:]), v.offset)
    return mapped(v, shape, lambda i: [*i[:d], *i[d + 1 :]])


def squeeze(v: Value, dims: Sequence[int]) -> Value:
    gone = {d for d in (normal_dim(d, v.rank) for d in dims) if d < v.rank and v.shape[d] == 1}
    keep = [d for d in range(v.rank) if d not in gone]
    if not gone:
        return v
    shape = tuple(v.shape[d] for d in keep)
    if v.buffer is not None:
        return restrided(v, shape, tuple(v.stride[d] for d in keep), v.offset)

    def index(i: Sequence[Expr]) -> list[Expr]:
        left = iter(i)
        return [ZERO if d in gone else next(left) for d in range(v.rank)]

    return mapped(v, shape, index)


def diagonal(v: Value, offset: int, dim1: int, dim2: int, length: Expr) -> Value:
    a, b = normal_dim(dim1, v.rank), normal_dim(dim2, v.rank)
    keep = [d for d in range(v.rank) if d not in (a, b)]
    start_a, start_b = Expr.of(max(-offset, 0)), Expr.of(max(offset, 0))
    shape = (*(v.shape[d] for d in keep), length)
    if v.buffer is not None:
        start = v.offset + start_a * v.stride[a] + start_b * v.stride[b] if length != 0 else v.offset
        return restrided(v, shape, (*(v.stride[d] for d in keep), v.stride[a] + v.stride[b]), start)

    def index(i: Sequence[Expr]) -> list[Expr]:
        kept = iter(i[:-1])
        return [i[-1] + start_a if d == a else i[-1] + start_b if d == b else next(kept) for d in range(v.rank)]

    return mapped(v, shape, index)


def unfold(v: Value, dim: int, size: int, step: int, count: Expr) -> Value:
    d = normal_dim(dim, v.rank)
    if v.rank == 0:
        return mapped(v, (Expr.of(size),), lambda i: [])
    shape = (*v.shape[:d], count, *v.shape[d + 1 :], Expr.of(size))
    if v.buffer is not None:
        stride = (*v.stride[:d], v.stride[d] * step, *v.stride[d + 1 :], v.stride[d])
        return restrided(v, shape, stride, v.offset)
    return mapped(v, shape, lambda i: [*i[:d], i[d] * step + i[-1], *i[d + 1 : -1]])


def reshape(v: Value, sizes: Sequence[Any]) -> Value:
    """The same elements in row-major order in another shape; one size may be -1."""
    shape = _infer(v, sizes)
    if shape == v.shape:
        return v
    if v.buffer is not None:
        stride = view_strides(v.shape, v.stride, shape)
        if stride is not None:
            return restrided(v, shape, stride, v.offset)
    if v.number is not None:
        return Value.constant(v.number, shape, v.dtype, v.device)
    return Value(shape, v.dtype, v.device, emit=lambda b, i: v.load(b, delinearise(i, shape, v.shape, b.ranges)))


def _infer(v: Value, sizes: Sequence[Any]) -> Exprs:
    unknown = [d for d, n in enumerate(sizes) if isinstance(n, int) and n == -1]
    if not unknown:
        return to_exprs(sizes)
    known = product([to_expr(n) for d, n in enumerate(sizes) if d != unknown[0]])
    return tuple((v.numel // known if known != 0 else ZERO) if d == unknown[0] else to_expr(n)
                 for d, n in enumerate(sizes))  # fmt: skip


def view_strides(old: Exprs, stride: Exprs, new: Exprs) -> Exprs | None:
    """Strides of the shape `new` over the same memory, None when there are none (as at::detail::computeStride)."""
    if any(n == 0 for n in old):
        return stride if old == new else contiguous_strides(new)
    chunks: list[tuple[Expr, Expr]] = []  # (elements, innermost stride) of maximal runs that memory walks evenly
    for n, s in zip(old, stride, strict=True):
        if n == 1:
            continue
        if chunks and chunks[-1][1] == n * s:
            chunks[-1] = (chunks[-1][0] * n, s)
        else:
            chunks.append((n, s))
    result: list[Expr] = [ONE] * len(new)
    d = len(new) - 1
    for elements, inner in reversed(chunks):
        filled, step = ONE, inner
        while d >= 0 and filled != elements:
            result[d] = step
            filled, step = filled * new[d], step * new[d]
            d -= 1
        if filled != elements:
            return None
    while d >= 0:
        if new[d] != 1:
            return None
        result[d] = result[d + 1] * new[d + 1] if d + 1 < len(new) else ONE
        d -= 1
    return tuple(result)


def delinearise(index: Sequence[Expr], shape: Exprs, target: Exprs, ranges: Mapping[str, Expr]) -> list[Expr]:
    """The index into `target` of the element that is at `index` in `shape`, both row-major."""
    if any(n == 0 for n in shape):
        return [ZERO] * len(target)
    result: list[Expr] = []
    for dims, target_dims in _aligned(shape, target):
        flat = ZERO
        for d in dims:
            flat = flat * shape[d] + index[d]
        sizes = [target[d] for d in target_dims]
        for k, step in enumerate(contiguous_strides(sizes)):
            if sizes[k] == 1:
                result.append(ZERO)
                continue
            digit = flat // step
            whole = all(n == 1 for n in sizes[:k])
            result.append((digit if whole else digit % sizes[k]).simplify(ranges))
    return result


def _aligned(shape: Exprs, target: Exprs) -> list[tuple[list[int], list[int]]]:
    """Groups of dimensions of both shapes, in order, of equal numbers of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(target):
        left, right, a, b = [i] if i < len(shape) else [], [j] if j < len(target) else [], ONE, ONE
        a, b = (shape[i] if left else ONE), (target[j] if right else ONE)
        i, j = i + len(left), j + len(right)
        while a != b and (i < len(shape) or j < len(target)):
            grow_left = j >= len(target) or (i < len(shape) and (not (a.is_const and b.is_const) or a < b))
            if grow_left:
                left.append(i)
                a, i = a * shape[i], i + 1
            else:
                right.append(j)
                b, j = b * target[j], j + 1
        groups.append((left, right))
    return groups
