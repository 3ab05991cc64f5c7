"""Checks of numbers and sizes that kernels do and torch's shape functions do not.

In: an operator and its arguments (FakeTensors).
Out: nothing, or an exception if the kernel would refuse the arguments; the program's own call then reports the error.
Symbolic sizes are assumed to be valid.

Example: ``aten._softmax`` of dimension 3 of a vector has a fake result, so an unused result would hide the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


def _of_numbers(holds: Callable[..., bool]) -> Callable[..., bool]:
    """`holds` for calls whose arguments after the first are all known numbers; True for other calls."""
    return lambda *args, **_: not all(type(a) in (int, float) for a in args[1:]) or holds(*args)


def _has_dimension(x: torch.Tensor, dim: Any = -1, *_: Any, **flags: Any) -> bool:
    dim, rank = flags.get("dim", dim), max(x.dim(), 1)
    return bool(-rank <= dim < rank)


def _fits(view: torch.Tensor, written: torch.Tensor) -> bool:
    return view.dim() == written.dim() and all(bool(m == n) for m, n in zip(view.shape, written.shape, strict=True))


def reaches(t: torch.Tensor, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> bool:
    """Whether a strided view stays in its memory.

    Meta tensors have no memory to check, and a kernel never reads a view that is not used.
    """
    if not all(type(n) is int for n in (*shape, *stride)) or 0 in shape:
        return True
    start = t.storage_offset() if offset is None else offset
    reach = start + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
    return bool(reach * t.element_size() <= t.untyped_storage().nbytes())


def _reaches_to_write(
    x: torch.Tensor, source: torch.Tensor, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> bool:
    return list(source.shape) == list(shape) and reaches(x, shape, stride, offset)


def _broadcasts_into(x: torch.Tensor, other: torch.Tensor, *_: Any, **flags: Any) -> bool:
    pairs = zip(reversed(other.shape), reversed(x.shape), strict=False)
    return other.dim() <= x.dim() and all(bool(n == 1) or bool(n == m) for n, m in pairs)


def _has_windows(
    x: torch.Tensor, kernel: Sequence[Any], stride: Any = (), padding: Sequence[Any] = (0,), *_: Any
) -> bool:
    pads = [*padding] * (len(kernel) if len(padding) == 1 else 1)
    return all(bool(k > 0) for k in kernel) and all(0 <= 2 * p <= k for k, p in zip(kernel, pads, strict=False))


def _has_places(x: torch.Tensor, grid: torch.Tensor, *_: Any) -> bool:
    return all(bool(n != 0) for n in x.shape[2:])


def _has_targets(x: torch.Tensor, dim: int, index: torch.Tensor, *_: Any) -> bool:
    return x.dim() == 0 or bool(x.shape[dim] != 0) or any(bool(n == 0) for n in index.shape)


def _has_parts(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any, **flags: Any) -> bool:
    return source.dim() == 0 or bool(index.numel() == source.shape[dim])


def _has_vectors(x: torch.Tensor, *given: Any, **_: Any) -> bool:
    """For batch norm: weight, bias and running statistics are vectors."""
    return all(t.dim() == 1 for t in given if isinstance(t, torch.Tensor))


def _is_finite(number: Any) -> bool:
    most = torch.finfo(torch.float64).max
    return not isinstance(number, (float, torch.SymFloat)) or bool(-most <= number <= most)


def _holds_number(x: torch.Tensor, number: Any = None, *_: Any, **named: Any) -> bool:
    """Whether the number fits into the dtype of `x`, in which the kernel computes."""
    most = torch.finfo(x.dtype).max if x.dtype.is_floating_point else math.inf
    number = next((named[name] for name in ("ord", "eps", "lambd") if name in named), number)
    if type(number) is float:
        return not most < abs(number) < math.inf
    return not isinstance(number, torch.SymFloat) or bool(-most <= number <= most)


ARGUMENT_CHECKS: dict[OpOverload, Callable[..., bool]] = {
    # bounds of a range, or a probability, for operators that draw random numbers
    aten.uniform_.default: _of_numbers(lambda x, low=0.0, high=1.0: low <= high),
    getattr(aten.random_, "from"): _of_numbers(lambda x, low, high: low < high),
    aten.random_.to: _of_numbers(lambda x, high: high > 0),
    aten.randint_like.default: _of_numbers(lambda x, high: high > 0),
    aten.randint_like.low_dtype: _of_numbers(lambda x, low, high: low < high),
    aten.bernoulli.p: _of_numbers(lambda x, p: 0 <= p <= 1),
    aten.bernoulli_.float: _of_numbers(lambda x, p=0.5: 0 <= p <= 1),
    # where a loss changes from quadratic to linear
    aten.smooth_l1_loss.default: lambda x, y, reduction=1, beta=1.0: bool(beta >= 0),
    aten.huber_loss.default: lambda x, y, reduction=1, delta=1.0: bool(delta > 0),
    # bounds of a range, which kernels and graphs compute from either end
    **dict.fromkeys((aten.linspace.default, aten.logspace.default), lambda *ends, **_: all(map(_is_finite, ends[:2]))),
    # a number in the dtype of the first argument
    **dict.fromkeys(
        (
            aten.hardshrink.default,
            aten.softshrink.default,
            aten.logit.default,
            aten.logit_.default,
            aten.linalg_vector_norm.default,
        ),
        _holds_number,
    ),
    # a dimension
    **dict.fromkeys(
        (aten._softmax.default, aten.sort.default, aten.sort.stable, aten.cummax.default, aten.cummin.default),
        _has_dimension,
    ),
    # a value that is written into a part
    aten.diagonal_scatter.default: lambda x, y, *where, **named: _fits(x.diagonal(*where, **named), y),
    aten.select_scatter.default: lambda x, y, dim, index: _fits(x.select(dim, index), y),
    aten.slice_scatter.default: lambda x, y, *where, **named: _fits(aten.slice.Tensor(x, *where, **named), y),
    aten.as_strided_scatter.default: _reaches_to_write,
    aten.as_strided_copy.default: reaches,
    aten.as_strided.default: reaches,
    # sizes
    aten.soft_margin_loss.default: _broadcasts_into,
    aten.bucketize.Tensor: lambda x, ends, **flags: ends.dim() == 1,
    aten.avg_pool1d.default: _has_windows,
    aten.avg_pool2d.default: _has_windows,
    aten.avg_pool3d.default: _has_windows,
    **dict.fromkeys((aten.scatter_add.default, aten.scatter_add_.default), _has_targets),
    **dict.fromkeys(
        (
            *(aten.native_batch_norm.default, aten._native_batch_norm_legit.default),
            *(aten._batch_norm_with_update.default, aten._native_batch_norm_legit_no_training.default),
        ),
        _has_vectors,
    ),
    aten.index_select.default: lambda x, dim, index: x.dim() != 0 or bool(index.numel() == 1),
    **dict.fromkeys((aten.index_reduce.default, aten.index_reduce_.default), _has_parts),
    aten.grid_sampler_2d.default: _has_places,
    aten.grid_sampler_3d.default: _has_places,
}


def check_arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises if an operator refuses these arguments."""
    holds = ARGUMENT_CHECKS.get(op)
    if holds is not None and not holds(*args, **kwargs):
        raise RuntimeError(f"{op} does not take {[a for a in args if not isinstance(a, torch.Tensor)]} here")
