"""Softmax and similar functions as amax, exp and sum; whole-tensor reductions as reductions over all dimensions.

In: ``aten._softmax(x, -1, False)``. Out: ``exp(x - amax(x)) / sum(exp(x - amax(x)))``.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.autograd.decomp.registry import contiguous, like, rule, wide

aten = torch.ops.aten
Tensor = torch.Tensor


@rule(aten._softmax.default, partial=True)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if x.numel() == 0:
        return NotImplemented
    w = wide(x)
    e = torch.exp(w - aten.amax.default(w, [dim], True))
    out = contiguous(e / aten.sum.dim_IntList(e, [dim], True))
    return out if half_to_float else like(out, x.dtype)


@rule(aten._log_softmax.default, partial=True)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if x.numel() == 0:
        return NotImplemented
    w = wide(x)
    shifted = w - aten.amax.default(w, [dim], True)
    out = contiguous(shifted - torch.log(aten.sum.dim_IntList(torch.exp(shifted), [dim], True)))
    return out if half_to_float else like(out, x.dtype)


@rule(aten._softmax_backward_data.default)
def softmax_backward(grad: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    g, o = wide(grad), wide(out)
    weighted = g * o
    return like(weighted - o * aten.sum.dim_IntList(weighted, [dim], True), input_dtype)


@rule(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    g, o = wide(grad), wide(out)
    return like(g - torch.exp(o) * aten.sum.dim_IntList(g, [dim], True), input_dtype)


@rule(aten.sum.default)
def sum_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return aten.sum.dim_IntList(x, list(range(x.dim())), False, dtype=dtype)


@rule(aten.mean.default)
def mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return aten.mean.dim(x, list(range(x.dim())), False, dtype=dtype)
