"""Normalisations as variance, mean and arithmetic, and their gradients; statistics are float32 for half types.

In: ``aten.native_layer_norm(x, [n], w, b, eps)``. Out: ``var_mean`` and pointwise work that fuses with its neighbours.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pycompiler.autograd.decomp.registry import contiguous, like, rule, wide

aten = torch.ops.aten
Tensor = torch.Tensor


def _moments(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, variance, 1 / deviation) over `dims`, kept as dimensions of size 1."""
    var, mean = aten.var_mean.correction(x, dims, correction=0, keepdim=True)
    return mean, var, torch.rsqrt(var + eps)


@rule(aten.native_layer_norm.default, partial=True)
def layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    if x.numel() == 0:
        return NotImplemented
    w = wide(x)
    mean, _, rstd = _moments(w, list(range(x.dim() - len(shape), x.dim())), eps)
    out = (w - mean) * rstd
    out = out if weight is None else out * wide(weight)
    out = out if bias is None else out + wide(bias)
    return contiguous(like(out, x.dtype)), mean, rstd


@rule(aten.native_layer_norm_backward.default, partial=True)
def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: list[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    inner = list(range(x.dim() - len(shape), x.dim()))
    outer = list(range(x.dim() - len(shape)))
    g, w, mean, rstd = wide(grad), wide(x), wide(mean), wide(rstd)
    normal = (w - mean) * rstd
    dx = dw = db = None
    if mask[0]:
        scaled = g if weight is None else g * wide(weight)
        n = math.prod(shape)
        first = aten.sum.dim_IntList(scaled, inner, True)
        second = aten.sum.dim_IntList(scaled * normal, inner, True)
        dx = like((scaled - (first + normal * second) * (1.0 / n)) * rstd, x.dtype)
    if mask[1] and weight is not None:
        product = g * normal
        dw = like(aten.sum.dim_IntList(product, outer) if outer else product, weight.dtype)
    if mask[2] and bias is not None:
        db = like(aten.sum.dim_IntList(g, outer) if outer else g, bias.dtype)
    return dx, dw, db


# -- batch norm: dimension 1 is the channel ---------------------------------------------------------------------------


def _channels(x: Tensor) -> tuple[list[int], list[int], int]:
    """(reduced dimensions, shape that broadcasts one value per channel, values per channel)."""
    dims = [d for d in range(x.dim()) if d != 1]
    shape = [1] * x.dim()
    shape[1] = x.shape[1]
    return dims, shape, x.numel() // max(1, x.shape[1])


def _affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int]) -> Tensor:
    out = normal if weight is None else normal * aten.view.default(wide(weight), shape)
    return out if bias is None else out + aten.view.default(wide(bias), shape)


def _train(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output, mean, variance, 1 / deviation), statistics of shape (channels,)."""
    dims, shape, _ = _channels(x)
    w = wide(x)
    mean, var, rstd = _moments(w, dims, eps)
    out = _with_kernel_layout(like(_affine((w - mean) * rstd, weight, bias, shape), x.dtype), x)
    flat = [x.shape[1]]
    return out, aten.view.default(mean, flat), aten.view.default(var, flat), aten.view.default(rstd, flat)


def _infer(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    _, shape, _ = _channels(x)
    rstd = torch.rsqrt(wide(var) + eps)
    normal = (wide(x) - aten.view.default(wide(mean), shape)) * aten.view.default(rstd, shape)
    return _with_kernel_layout(like(_affine(normal, weight, bias, shape), x.dtype), x)


def _with_kernel_layout(out: Tensor, x: Tensor) -> Tensor:
    """The kernels return two layouts: channels last if `x` has it, else contiguous."""
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return out if last else contiguous(out)


def _empty(x: Tensor) -> Any:
    return aten.full.default([0], 0, dtype=x.dtype, device=x.device, pin_memory=False)


@rule(aten._native_batch_norm_legit_functional.default, partial=True)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    if not training:
        out = _infer(x, weight, bias, running_mean, running_var, eps)
        return out, _empty(x), _empty(x), running_mean, running_var
    n = _channels(x)[2]
    out, mean, var, rstd = _train(x, weight, bias, eps)
    unbiased = var * (n / (n - 1)) if n > 1 else var * math.nan
    new_mean = like(wide(running_mean) * (1.0 - momentum) + mean * momentum, running_mean.dtype)
    new_var = like(wide(running_var) * (1.0 - momentum) + unbiased * momentum, running_var.dtype)
    return out, mean, rstd, new_mean, new_var


@rule(aten._native_batch_norm_legit.no_stats, partial=True)
def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    if x.numel() == 0 or not training:
        return NotImplemented
    out, mean, _, rstd = _train(x, weight, bias, eps)
    return out, mean, rstd


@rule(aten._native_batch_norm_legit_no_training.default, partial=True)
def batch_norm_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    return _infer(x, weight, bias, running_mean, running_var, eps), _empty(x), _empty(x)


@rule(aten.native_batch_norm_backward.default, partial=True)
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_rstd: Tensor | None,
    train: bool,
    eps: float,
    mask: list[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    dims, shape, n = _channels(x)
    if train:
        assert save_mean is not None
        assert save_rstd is not None
        mean, rstd = wide(save_mean), wide(save_rstd)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = wide(running_mean), torch.rsqrt(wide(running_var) + eps)
    mean, rstd = aten.view.default(mean, shape), aten.view.default(rstd, shape)
    g, w = wide(grad), wide(x)
    normal = (w - mean) * rstd
    sum_g = aten.sum.dim_IntList(g, dims)
    sum_gn = aten.sum.dim_IntList(g * normal, dims)
    dx = dw = db = None
    if mask[0]:
        scale = rstd if weight is None else rstd * aten.view.default(wide(weight), shape)
        if train:
            correction = (aten.view.default(sum_g, shape) + normal * aten.view.default(sum_gn, shape)) * (1.0 / n)
            dx = like((g - correction) * scale, x.dtype)
        else:
            dx = like(g * scale, x.dtype)
    parameter = x.dtype if weight is None else weight.dtype
    if mask[1]:
        dw = like(sum_gn, parameter)
    if mask[2]:
        db = like(sum_g, parameter)
    return dx, dw, db


# -- group norm -------------------------------------------------------------------------------------------------------


@rule(aten.native_group_norm.default, partial=True)
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, size: int, groups: int, eps: float
) -> Any:
    if x.numel() == 0 or not x.is_contiguous():
        return NotImplemented
    w = aten.view.default(wide(x), [n, groups, channels // groups * size])
    mean, _, rstd = _moments(w, [2], eps)
    shape = [1] * x.dim()
    shape[1] = channels
    out = _affine(aten.view.default((w - mean) * rstd, list(x.shape)), weight, bias, shape)
    return like(out, x.dtype), aten.view.default(mean, [n, groups]), aten.view.default(rstd, [n, groups])


@rule(aten.native_group_norm_backward.default, partial=True)
def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    mask: list[bool],
) -> Any:
    if x.numel() == 0 or not (x.is_contiguous() and grad.is_contiguous()):
        return NotImplemented
    per_group = channels // groups
    shape = [n, groups, per_group, size]
    g, w = aten.view.default(wide(grad), shape), aten.view.default(wide(x), shape)
    normal = (w - aten.view.default(wide(mean), [n, groups, 1, 1])) * aten.view.default(wide(rstd), [n, groups, 1, 1])
    dx = dw = db = None
    if mask[0]:
        scaled = g if weight is None else g * aten.view.default(wide(weight), [1, groups, per_group, 1])
        first = aten.sum.dim_IntList(scaled, [2, 3], True)
        second = aten.sum.dim_IntList(scaled * normal, [2, 3], True)
        inner = scaled - (first + normal * second) * (1.0 / (per_group * size))
        dx = inner * aten.view.default(wide(rstd), [n, groups, 1, 1])
        dx = like(aten.view.default(dx, list(x.shape)), x.dtype)
    parameter = x.dtype if weight is None else weight.dtype
    if mask[1]:
        dw = like(aten.view.default(aten.sum.dim_IntList(g * normal, [0, 3]), [channels]), parameter)
    if mask[2]:
        db = like(aten.view.default(aten.sum.dim_IntList(g, [0, 3]), [channels]), parameter)
    return dx, dw, db
