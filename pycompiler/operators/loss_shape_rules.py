"""Shape rules (see `symbolic_shape_rules.py`) for losses, gathers, casts and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.operators.symbolic_shape_rules import (
    Layout,
    dims_of,
    doubt_unless,
    equal,
    is_packed,
    like,
    packed,
)


def to_copy(x: torch.Tensor, *, memory_format: Any = None, non_blocking: bool = False, **options: Any) -> list[Layout]:
    doubt_unless(options.keys() <= {"dtype"})
    if memory_format is torch.contiguous_format:
        return [packed(x.shape)]
    doubt_unless(memory_format in (None, torch.preserve_format) and is_packed(x))
    return [like(x)]


def drawn(x: torch.Tensor, p: float, *, generator: None = None) -> list[Layout]:
    doubt_unless(is_packed(x))
    return [like(x)]


def gather(x: torch.Tensor, dim: int, index: torch.Tensor) -> list[Layout]:
    doubt_unless(x.dim() == index.dim() > 0)
    (along,) = dims_of(x.dim(), dim)
    for d in range(x.dim()):
        if d != along:
            equal(x.shape[d], index.shape[d])
    return [packed(index.shape)]


def scatter(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> list[Layout]:
    gather(x, dim, index)
    (along,) = dims_of(x.dim(), dim)
    doubt_unless(type(index.shape[along]) is int and index.shape[along] == 1)
    doubt_unless(type(x.shape[along]) is int and x.shape[along] > 0)
    return [packed(x.shape)]


# losses -----------------------------------------------------------------------------------------------------------
def _of_classes(x: torch.Tensor, target: torch.Tensor, weight: Any) -> None:
    doubt_unless(x.dim() == 2 and target.dim() == 1 and weight is None)
    equal(x.shape[0], target.shape[0])


def nll_loss(x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: Any) -> list[Layout]:
    _of_classes(x, target, weight)
    return [packed((x.shape[0],)) if reduction == 0 else ((), ()), ((), ())]


def nll_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: Any, total: Any
) -> list[Layout]:
    _of_classes(x, target, weight)
    doubt_unless(total.dim() == 0 and grad.dim() == (reduction == 0))
    if reduction == 0:
        equal(grad.shape[0], x.shape[0])
    return [packed(x.shape)]


# gradients --------------------------------------------------------------------------------------------------------
def embedding_backward(grad: torch.Tensor, indices: torch.Tensor, rows: Any, padding: Any, scale: bool) -> list[Layout]:
    doubt_unless(grad.dim() == indices.dim() + 1)
    for a, b in zip(grad.shape, indices.shape, strict=False):
        equal(a, b)
    return [packed((rows, grad.shape[-1]))]


def max_pool_backward(grad: torch.Tensor, x: torch.Tensor, *window: Any) -> list[Layout]:
    doubt_unless(grad.dim() == x.dim() and is_packed(x) and is_packed(grad))
    return [packed(x.shape)]


def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **flags: Any
) -> list[Layout]:
    """The gradients have the memory layout (batch, length, heads, size)."""
    doubt_unless(q.dim() == k.dim() == v.dim() == 4 and flags.get("attn_mask") is None)
    return [_heads_inside(t.shape) for t in (q, k, v)]


def _heads_inside(shape: Sequence[Any]) -> Layout:
    batch, heads, length, size = shape
    _, strides = packed((batch, length, heads, size))
    return (batch, heads, length, size), (strides[0], strides[2], strides[1], strides[3])
