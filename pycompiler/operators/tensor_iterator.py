"""The strides that ATen's `TensorIterator` gives to a fresh result; names follow ATen.

In: shapes and strides of the operands of a pointwise operator, in order; a number is an operand of shape ().
Out: the result's strides.

    fresh_strides([((2, 3), (1, 2)), ((), ())])     # (1, 2)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.operators.operator_facts import facts_of


def is_iterated(op: OpOverload) -> bool:
    """Whether the operator's CPU and CUDA kernels are known to lay out their results in this way.

    `tests/operators/test_tensor_iterator.py` tests each of them.
    """
    return facts_of(op).strides in ("iterated", "reversed")


Ints = tuple[int, ...]
Layout = tuple[Ints, Ints]


def with_kernel_strides(op: OpOverload, args: Sequence[Any], out: torch.Tensor, *, copies: bool = True) -> torch.Tensor:
    """`out`, a result on meta tensors, with the strides of the real kernel.

    torch's Python meta kernels have rules of their own for dimensions of one element or none.
    `copies`: operands of another dtype than the operator computes in are copied first, without gaps (on the CPU).
    """
    if out.dim() == 1 and type(out.stride(0)) is int and out.stride(0) == 1:
        return out
    if out.numel() and 1 not in out.shape:
        return out
    if out.dim() == 0 or (strides := _strides(op, args, out, copies)) is None:
        return out
    return out if strides == out.stride() else torch.empty_strided(out.shape, strides, dtype=out.dtype, device="meta")


def _strides(op: OpOverload, args: Sequence[Any], out: torch.Tensor, copies: bool) -> Ints | None:
    kind = facts_of(op).strides
    if kind == "like":  # the kernel starts with `empty_like` of its first argument
        return dense_strides(tuple(args[0].shape), args[0].stride())
    if kind == "contiguous":
        return contiguous(tuple(out.shape))
    if not kind:
        return None
    return fresh_strides(operands(op, args, computes_in(args, out.dtype) if copies else None))


def computes_in(args: Sequence[Any], dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point or dtype.is_complex:
        return dtype
    dtypes = [a.dtype for a in args if isinstance(a, torch.Tensor)]
    return functools.reduce(torch.promote_types, dtypes) if dtypes else dtype


def operands(op: OpOverload, args: Sequence[Any], casts: torch.dtype | None = None) -> list[Layout]:
    """(shape, stride) of the operands that the operator's kernel iterates over, in its order.

    An operand whose dtype is not `casts` counts as a copy.
    """
    facts = facts_of(op)
    found = list(_layouts(op, args, None if facts.any_dtype else casts))
    return found[::-1] if facts.strides == "reversed" else found


def _layouts(op: OpOverload, args: Sequence[Any], casts: torch.dtype | None) -> Iterator[Layout]:
    for given, argument in zip(args, op._schema.arguments, strict=False):
        if isinstance(given, torch.Tensor):
            shape, stride = tuple(given.shape), tuple(given.stride())
            kept = casts in (None, given.dtype) or argument.name == "condition"
            yield shape, stride if kept else dense_strides(shape, stride)
        elif isinstance(given, int | float | complex) and (argument.name == "other" or str(argument.type) == "Tensor"):
            yield (), ()


def fresh_strides(layouts: Sequence[Layout]) -> Ints:
    shape = broadcast([shape for shape, _ in layouts])
    fast = _same_layout(layouts) if all(s == shape for s, _ in layouts) else None
    if fast is not None:
        return fast
    return strides_in_order(shape, layouts)


def broadcast(shapes: Sequence[Ints]) -> Ints:
    """The broadcast shape of fitting shapes; torch's own function imports sympy."""
    rank = max(map(len, shapes))
    found = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                found[d] = n
    return tuple(found)


def strides_in_order(shape: Ints, layouts: Sequence[Layout]) -> Ints:
    """The result's strides if the operands have different layouts, or symbolic sizes, whose order is then queried."""
    return _in_order(shape, _order(shape, [_broadcast(shape, *layout) for layout in layouts]))


def dense_strides(shape: Ints, stride: Sequence[int]) -> Ints:
    """The strides of a copy that keeps the memory format, as `empty_like` gives them."""
    if torch.ops.aten.is_non_overlapping_and_dense.default(torch.empty_strided(shape, stride, device="meta")):
        return tuple(stride)
    return _in_order(shape, _order(shape, [tuple(stride)]))


def _in_order(shape: Ints, order: Sequence[int]) -> Ints:
    """Strides without gaps, the first of `order` innermost."""
    if order == list(reversed(range(len(shape)))):
        return contiguous(shape)
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim], step = step, step * shape[dim]
    return tuple(strides)


def contiguous(shape: Ints) -> Ints:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _same_layout(layouts: Sequence[Layout]) -> Ints | None:
    """The result's strides if all operands have one layout; None if the dimensions must be sorted."""
    shape = layouts[0][0]
    metas = [torch.empty_strided(s, t, device="meta") for s, t in layouts]
    if all(m.is_contiguous() for m in metas):
        return contiguous(shape)
    if len(shape) == 4 and all(m.is_contiguous(memory_format=torch.channels_last) for m in metas):
        return tuple(torch.empty(shape, device="meta", memory_format=torch.channels_last).stride())
    dense = all(torch.ops.aten.is_non_overlapping_and_dense.default(m) for m in metas)
    if dense and all(t == layouts[0][1] for _, t in layouts):
        return layouts[-1][1]
    return None


def _broadcast(shape: Ints, own: Ints, stride: Ints) -> Ints:
    missing = len(shape) - len(own)
    there = zip(own, stride, shape[missing:], strict=True)
    return (0,) * missing + tuple(0 if n == 1 and m != 1 else s for n, s, m in there)


def _order(shape: Ints, spread: Sequence[Ints]) -> list[int]:
    """Dimensions, innermost first, by an insertion sort whose comparisons may be undecided."""
    order = list(reversed(range(len(shape))))
    for k in range(1, len(order)):
        at = k
        for before in reversed(range(k)):
            swap = _compare(shape, spread, order[before], order[at])
            if swap > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif swap < 0:
                break
    return order


def _compare(shape: Ints, spread: Sequence[Ints], a: int, b: int) -> int:
    for strides in spread:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0
