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

from pycompiler.operators.operator_facts import facts_of


def of_numbers(holds: Callable[..., bool]) -> Callable[..., bool]:
    """`holds` for calls whose arguments after the first are all known numbers; True for other calls."""
    return lambda *args, **_: not all(type(a) in (int, float) for a in args[1:]) or holds(*args)


def has_dimension(x: torch.Tensor, dim: Any = -1, *_: Any, **flags: Any) -> bool:
    dim, rank = flags.get("dim", dim), max(x.dim(), 1)
    return bool(-rank <= dim < rank)


def fits(view: torch.Tensor, written: torch.Tensor) -> bool:
    return view.dim() == written.dim() and all(bool(m == n) for m, n in zip(view.shape, written.shape, strict=True))


def fits_slice(x: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any) -> bool:
    return fits(torch.ops.aten.slice.Tensor(x, *where, **named), source)


def reaches(t: torch.Tensor, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> bool:
    """Whether a strided view stays in its memory.

    Meta tensors have no memory to check, and a kernel never reads a view that is not used.
    """
    if not all(type(n) is int for n in (*shape, *stride)) or 0 in shape:
        return True
    start = t.storage_offset() if offset is None else offset
    reach = start + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
    return bool(reach * t.element_size() <= t.untyped_storage().nbytes())


def reaches_to_write(
    x: torch.Tensor, source: torch.Tensor, shape: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> bool:
    return list(source.shape) == list(shape) and reaches(x, shape, stride, offset)


def broadcasts_into(x: torch.Tensor, other: torch.Tensor, *_: Any, **flags: Any) -> bool:
    pairs = zip(reversed(other.shape), reversed(x.shape), strict=False)
    return other.dim() <= x.dim() and all(bool(n == 1) or bool(n == m) for n, m in pairs)


def has_windows(
    x: torch.Tensor, kernel: Sequence[Any], stride: Any = (), padding: Sequence[Any] = (0,), *_: Any
) -> bool:
    pads = [*padding] * (len(kernel) if len(padding) == 1 else 1)
    return all(bool(k > 0) for k in kernel) and all(0 <= 2 * p <= k for k, p in zip(kernel, pads, strict=False))


def has_places(x: torch.Tensor, grid: torch.Tensor, *_: Any) -> bool:
    return all(bool(n != 0) for n in x.shape[2:])


def has_targets(x: torch.Tensor, dim: int, index: torch.Tensor, *_: Any) -> bool:
    return x.dim() == 0 or bool(x.shape[dim] != 0) or any(bool(n == 0) for n in index.shape)


def has_parts(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any, **flags: Any) -> bool:
    return source.dim() == 0 or bool(index.numel() == source.shape[dim])


def has_vectors(x: torch.Tensor, *given: Any, **_: Any) -> bool:
    """For batch norm: weight, bias and running statistics are vectors."""
    return all(t.dim() == 1 for t in given if isinstance(t, torch.Tensor))


def is_finite(number: Any) -> bool:
    most = torch.finfo(torch.float64).max
    return not isinstance(number, (float, torch.SymFloat)) or bool(-most <= number <= most)


def holds_number(x: torch.Tensor, number: Any = None, *_: Any, **named: Any) -> bool:
    """Whether the number fits into the dtype of `x`, in which the kernel computes."""
    most = torch.finfo(x.dtype).max if x.dtype.is_floating_point else math.inf
    number = next((named[name] for name in ("ord", "eps", "lambd") if name in named), number)
    if type(number) is float:
        return not most < abs(number) < math.inf
    return not isinstance(number, torch.SymFloat) or bool(-most <= number <= most)


def check_arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises if an operator refuses these arguments."""
    holds = facts_of(op).accepts
    if holds is not None and not holds(*args, **kwargs):
        raise RuntimeError(f"{op} does not take {[a for a in args if not isinstance(a, torch.Tensor)]} here")
