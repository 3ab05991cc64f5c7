"""The table of decompositions, and the arithmetic that they share.

In: ``@rule(aten.silu.default)`` above a function of the operator's arguments. Out: an entry of `RULES`.

A `partial` rule may return NotImplemented: the operator then stays whole for these arguments.  A rule is also partial
if a later pass inserts its operator into graphs, so lowering gets the operator whole too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

RULES: dict[OpOverload, Callable[..., Any]] = {}
PARTIAL: set[OpOverload] = set()

_F = TypeVar("_F", bound=Callable[..., Any])

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def rule(*ops: OpOverload, partial: bool = False) -> Callable[[_F], _F]:
    """Register a decomposition for `ops`; a second one for the same operator is a mistake."""

    def register(fn: _F) -> _F:
        for op in ops:
            if op in RULES:
                raise ValueError(f"two decompositions for {op}")
            RULES[op] = fn
        PARTIAL.update(ops if partial else ())
        return fn

    return register


def wide(x: torch.Tensor) -> torch.Tensor:
    """`x` in the dtype that ATen's kernels compute in: half types are widened to float32."""
    dtype = _WIDE.get(x.dtype)
    return x if dtype is None else x.to(dtype)


def like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` in `dtype`."""
    return x if x.dtype == dtype else x.to(dtype)


def scalar(value: Any, x: torch.Tensor) -> Any:
    """`value` as a 0-d tensor with the dtype and device of `x`."""
    return torch.ops.aten.full.default([], value, dtype=x.dtype, device=x.device, pin_memory=False)


def where(condition: torch.Tensor, a: Any, b: Any) -> Any:
    """``torch.where`` in which one side may be a number; it takes the other side's dtype."""
    if not isinstance(a, torch.Tensor):
        a = scalar(a, b)
    if not isinstance(b, torch.Tensor):
        b = scalar(b, a)
    return torch.ops.aten.where.self(condition, a, b)


def is_canonical(x: torch.Tensor) -> bool:
    """Whether `x` has the strides of a fresh contiguous tensor, also in dimensions of one element."""
    expected = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(1, size)
    return True


def contiguous(x: torch.Tensor) -> Any:
    """`x` as a fresh contiguous tensor, as returned by kernels that ignore the layout of their arguments."""
    return x if is_canonical(x) else torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format)
