"""The strides that ATen's iterator over elements gives to a fresh result (`TensorIterator` of ATen, in its words).

In: shapes and strides of the operands of a pointwise operator, in order; a number is an operand of shape ().
Out: the result's strides.

    fresh_strides([((2, 3), (1, 2)), ((), ())])     # (1, 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_ONE = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac isnan isposinf lgamma "
    "log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sgn sigmoid sign signbit silu sin sinh sqrt square tan "
    "tanh trunc gelu mish hardsigmoid hardswish softplus celu elu leaky_relu clamp clamp_min clamp_max bitwise_not"
)
_TWO = (
    "add sub mul div eq ne lt le gt ge fmod remainder maximum minimum fmax fmin atan2 hypot copysign nextafter logaddexp "
    "heaviside xlogy floor_divide logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
    "sigmoid_backward tanh_backward silu_backward hardsigmoid_backward hardswish_backward"
)
_OVERLOADS = ("default", "Tensor", "Scalar", "Scalar_Other")


def _overloads(name: str) -> Iterator[OpOverload]:
    """Those of the operator that take a tensor (others are for scripts)."""
    packet = getattr(aten, name)
    for op in (getattr(packet, o) for o in _OVERLOADS if o in packet.overloads()):
        if str(op._schema.arguments[0].type) == "Tensor":
            yield op


@cache
def iterated() -> frozenset[OpOverload]:
    """Operators whose CPU and CUDA kernels are known to lay their results out so (`tests/ir/test_iterator.py` tries each)."""
    found = {
        *(op for name in f"{_ONE} {_TWO}".split() for op in _overloads(name)),
        *(aten.rsub.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.where.self, aten.where.ScalarOther),
        *(aten.lerp.Scalar, aten.lerp.Tensor, aten.addcmul.default, aten.addcdiv.default, aten.threshold.default),
        *(aten.threshold_backward.default, aten.hardtanh_backward.default, aten.elu_backward.default),
    }
    return frozenset(found - {aten.clamp.Tensor, aten.clamp_min.Tensor, aten.clamp_max.Tensor})


REVERSED = frozenset((aten.threshold_backward.default,))  # whose kernels see their operands in another order

Ints = tuple[int, ...]
Layout = tuple[Ints, Ints]


def as_the_kernel(op: OpOverload, args: Sequence[Any], out: torch.Tensor) -> torch.Tensor:
    """`out`, what the operator gives for meta tensors, with the strides that its real kernel gives: they differ in dimensions
    of one element, or none, for torch's meta kernels in Python have rules of their own."""
    if out.numel() and 1 not in out.shape:
        return out
    if out.dim() == 0 or op not in iterated():
        return out
    strides = fresh_strides(operands(op, args))
    return out if strides == out.stride() else torch.empty_strided(out.shape, strides, dtype=out.dtype, device="meta")


def operands(op: OpOverload, args: Sequence[Any]) -> list[Layout]:
    """(shape, stride) of what the operator's kernel iterates over, in its order."""
    found = list(_layouts(op, args))
    return found[::-1] if op in REVERSED else found


def _layouts(op: OpOverload, args: Sequence[Any]) -> Iterator[Layout]:
    for given, argument in zip(args, op._schema.arguments, strict=False):
        if isinstance(given, torch.Tensor):
            yield tuple(given.shape), tuple(given.stride())
        elif isinstance(given, int | float | complex) and (argument.name == "other" or str(argument.type) == "Tensor"):
            yield (), ()


def fresh_strides(layouts: Sequence[Layout]) -> Ints:
    shape: Ints = tuple(torch.broadcast_shapes(*(shape for shape, _ in layouts)))  # type: ignore[no-untyped-call]
    fast = _same_layout(layouts) if all(s == shape for s, _ in layouts) else None
    if fast is not None:
        return fast
    spread = [_broadcast(shape, *layout) for layout in layouts]
    order = _order(shape, spread)
    if order == list(reversed(range(len(shape)))):
        return contiguous(shape)
    strides, step = [0] * len(shape), 1
    for dim in order:  # innermost first
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
    """The result's strides where all operands have one layout, None where the dimensions must be put in order."""
    shape = layouts[0][0]
    metas = [torch.empty_strided(s, t, device="meta") for s, t in layouts]
    if all(m.is_contiguous() for m in metas):
        return contiguous(shape)
    if len(shape) == 4 and all(m.is_contiguous(memory_format=torch.channels_last) for m in metas):
        return tuple(torch.empty(shape, device="meta", memory_format=torch.channels_last).stride())
    if all(torch.ops.aten.is_non_overlapping_and_dense.default(m) for m in metas) and len({t for _, t in layouts}) == 1:
        return layouts[-1][1]
    return None


def _broadcast(shape: Ints, own: Ints, stride: Ints) -> Ints:
    missing = len(shape) - len(own)
    there = zip(own, stride, shape[missing:], strict=True)
    return (0,) * missing + tuple(0 if n == 1 and m != 1 else s for n, s, m in there)


def _order(shape: Ints, spread: Sequence[Ints]) -> list[int]:
    """Dimensions, innermost first, as an insertion sort finds them whose comparisons may be undecided."""
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
