"""Torch's type promotion on lowered values.

In: values and Python numbers.  Out: the dtype torch promotes them to.  Example: (bf16 tensor, 2.5) -> bf16,
(i64 tensor, 2.5) -> the default dtype, (i32 tensor, f64 0-dim tensor) -> f64.
https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.lowering.values import Value
from pycompiler.symbolic.symbolic_node import Real


def promoted(args: Any) -> torch.dtype:
    """The result type of values (tensors of rank > 0 win over rank 0, those over numbers, within a category)."""
    ranked: torch.dtype | None = None
    zero: torch.dtype | None = None
    number: torch.dtype | None = None
    for a in args:
        if isinstance(a, Value):
            if a.rank:
                ranked = _join(ranked, a.dtype)
            else:
                zero = _join(zero, a.dtype)
        elif a is not None:
            number = _join(number, _number_dtype(a))
    found = _combine(ranked, _combine(zero, number))
    if found is None:
        raise TypeError("type promotion of no operands")
    return found


def _number_dtype(a: object) -> torch.dtype:
    if isinstance(a, bool):
        return torch.bool
    if isinstance(a, float | Real):
        return torch.get_default_dtype()
    if isinstance(a, complex):
        return torch.complex64
    return torch.int64


def _join(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None or a == b else torch.promote_types(a, b)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return torch.promote_types(higher, lower) if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def as_float(dtype: torch.dtype) -> torch.dtype:
    """The result dtype of an operator that converts integers to floats."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def rounded(number: Any, dtype: torch.dtype) -> Any:
    """The number after torch's rounding to half precision.  Loops compute in all other dtypes themselves."""
    return torch.tensor(number, dtype=dtype).item() if dtype in (torch.bfloat16, torch.float16) else number
