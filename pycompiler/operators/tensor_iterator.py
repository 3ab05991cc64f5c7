"""The strides that ATen's `TensorIterator` gives to a fresh result; names follow ATen.

In: shapes and strides of the operands of a pointwise operator, in order; a number is an operand of shape ().
Out: the result's strides.

    fresh_strides([((2, 3), (1, 2)), ((), ())])     # (1, 2)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_ONE = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac isnan isposinf lgamma "
    "log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sgn sigmoid sign signbit silu sin sinh sqrt square tan "
    "tanh trunc gelu mish hardsigmoid hardswish softplus celu elu leaky_relu clamp clamp_min clamp_max bitwise_not "
    "angle hardshrink softshrink i0 isneginf selu special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr "
    "special_ndtri"
)
_TWO = (
    "add sub mul div eq ne lt le gt ge fmod remainder maximum minimum fmax fmin atan2 hypot copysign nextafter logaddexp "
    "heaviside xlogy floor_divide logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    "sigmoid_backward tanh_backward silu_backward hardsigmoid_backward hardswish_backward "
    "gelu_backward softplus_backward leaky_relu_backward logaddexp2 igamma igammac gcd lcm "
    "bitwise_left_shift bitwise_right_shift"
)
_OVERLOADS = ("default", "Tensor", "Scalar", "Scalar_Other")


def _overloads(name: str) -> Iterator[OpOverload]:
    """The overloads of the operator that take a tensor (others are for scripts)."""
    packet = getattr(aten, name)
    for op in (getattr(packet, o) for o in _OVERLOADS if o in packet.overloads()):
        if str(op._schema.arguments[0].type) == "Tensor":
            yield op


@cache
def iterated() -> frozenset[OpOverload]:
    """Operators whose CPU and CUDA kernels are known to lay out their results in this way.

    `tests/operators/test_tensor_iterator.py` tests each of them.
    """
    found = {
        *(op for name in f"{_ONE} {_TWO}".split() for op in _overloads(name)),
        *(aten.rsub.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.where.self, aten.where.ScalarOther),
        *(aten.lerp.Scalar, aten.lerp.Tensor, aten.addcmul.default, aten.addcdiv.default, aten.threshold.default),
        *(aten.threshold_backward.default, aten.hardtanh_backward.default, aten.elu_backward.default),
    }
    return frozenset(found - {aten.clamp.Tensor, aten.clamp_min.Tensor, aten.clamp_max.Tensor})


# Operators whose kernels iterate over their operands in reverse order.
REVERSED = frozenset((aten.threshold_backward.default, aten.leaky_relu_backward.default))
# Operators that start with `empty_like` of their first argument (LIKE), or with contiguous memory (CONTIGUOUS).
LIKE = frozenset(
    (aten.hardtanh.default, aten.relu6.default, aten.nan_to_num.default, aten.deg2rad.default, aten.rad2deg.default)
)
CONTIGUOUS = frozenset((aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.pow.Scalar, aten.mvlgamma.default))

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
    if op in LIKE:
        return dense_strides(tuple(args[0].shape), args[0].stride())
    if op in CONTIGUOUS:
        return contiguous(tuple(out.shape))
    if op not in iterated():
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
    found = list(_layouts(op, args, None if op.overloadpacket in _ANY_DTYPES else casts))
    return found[::-1] if op in REVERSED else found


_ANY_DTYPES = frozenset((aten.logical_and, aten.logical_or, aten.logical_xor, aten.logical_not))


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
