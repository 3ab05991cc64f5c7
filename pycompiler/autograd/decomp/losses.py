"""Losses and their gradients.  The gradient of a picked class compares indices instead of scattering, so that it fuses.

In: ``aten.nll_loss_forward(log_p, target, None, mean, ignore)``. Out: gather, where and sums.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.autograd.decomp.registry import like, rule, scalar, where, wide
from pycompiler.operators.value_checks import pick, within

aten = torch.ops.aten
Tensor = torch.Tensor

_NONE, _MEAN = 0, 1


def _class_shape(x: Tensor) -> tuple[int, list[int]]:
    """(class dimension, shape in which one value per class broadcasts over `x`)."""
    dim = 0 if x.dim() < 2 else 1
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return dim, shape


def _weights(x: Tensor, safe: Tensor, weight: Tensor, dim: int, shape: list[int]) -> Any:
    """The weight of each target's class."""
    return aten.squeeze.dim(pick(aten.expand.default(aten.view.default(weight, shape), list(x.shape)), dim, safe), dim)


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int) -> Any:
    dim, shape = _class_shape(x)
    kept = target != ignore
    safe = aten.unsqueeze.default(where(kept, target, 0), dim)
    picked = -aten.squeeze.dim(pick(x, dim, safe), dim)
    if weight is not None:
        weights = _weights(x, safe, weight, dim, shape)
        picked = picked * weights
    losses = where(kept, picked, 0)
    if reduction == _NONE:
        return losses, aten.full.default([], 0, dtype=x.dtype, device=x.device, pin_memory=False)
    counted = kept.to(torch.float32) if weight is None else where(kept, weights, 0)
    total = wide(counted).sum()
    loss = wide(losses).sum()
    return like(loss / total if reduction == _MEAN else loss, x.dtype), like(total, x.dtype)


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int, total: Tensor
) -> Any:
    dim, shape = _class_shape(x)
    if reduction == _MEAN:
        grad = grad / like(total, grad.dtype)
    if reduction == _NONE and x.dim() > 1:
        grad = aten.unsqueeze.default(grad, dim)
    classes = aten.view.default(torch.arange(x.shape[dim], device=x.device), shape)
    wanted = aten.unsqueeze.default(target, dim)
    hit = (classes == wanted) & (wanted != ignore)
    value = -grad if weight is None else -grad * aten.view.default(weight, shape)
    return where(hit, value, 0)


@rule(aten.binary_cross_entropy.default)
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Any:
    x, target = within(x, "unit input"), within(target, "unit target")
    least = aten.full.default([], -100, dtype=x.dtype, device=x.device, pin_memory=False)
    no, yes = torch.maximum(torch.log1p(-x), least), torch.maximum(torch.log(x), least)
    losses = (target - 1) * no - target * yes
    return _reduced(losses if weight is None else losses * weight, reduction)


@rule(aten.mse_loss.default, partial=True)
def mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Any:
    if x.is_complex():
        return NotImplemented
    difference = x - target
    return _reduced(difference * difference, reduction)


@rule(aten.huber_loss.default, partial=True)
def huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Any:
    if x.dtype != target.dtype:
        return NotImplemented
    if x.dtype == torch.bfloat16 and not x.is_cuda:  # its kernel rounds each step
        apart, bound = (x - target).abs(), scalar(delta, x)
        return _reduced(where(apart < bound, apart * 0.5 * apart, (apart - bound * 0.5) * bound), reduction)
    if x.is_cuda:  # its kernels round the difference
        apart = wide(x - target).abs()
    else:
        apart = (wide(x) - wide(target)).abs()
    losses = where(apart < delta, apart * 0.5 * apart, (apart - 0.5 * delta) * delta)
    return _reduced(like(losses, x.dtype), reduction)


@rule(aten.smooth_l1_loss.default, partial=True)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Any:
    if x.dtype != target.dtype:
        return NotImplemented
    if beta == 0.0:
        return _reduced((x - target).abs(), reduction)
    if x.dtype == torch.float16 and not x.is_cuda:  # its kernel rounds each step
        apart, bound = (x - target).abs(), scalar(beta, x)
        return _reduced(where(apart < bound, apart * 0.5 * apart / bound, apart - bound * 0.5), reduction)
    apart = wide(x - target).abs() if x.is_cuda else (wide(x) - wide(target)).abs()
    losses = where(apart < beta, apart * 0.5 * apart / beta, apart - 0.5 * beta)
    return _reduced(like(losses, x.dtype), reduction)


def _share(x: Tensor, reduction: int) -> float:
    return 1.0 / x.numel() if reduction == _MEAN and x.numel() else 1.0


# Gradients follow the order of operations and the rounding of ATen's kernels, which differ on CUDA.


@rule(aten.mse_loss_backward.default)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    return (x - target) * scalar(2.0 * _share(x, reduction), x) * grad


@rule(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Any:
    if x.is_cuda:
        apart, share, bound = x - target, scalar(_share(x, reduction), x), scalar(beta, x)
        upper = where(apart > bound, grad * share, apart * share * grad / bound)
        return where(apart < -bound, -share * grad, upper)
    apart = wide(x) - wide(target)
    slope = where(apart.abs() >= beta, where(apart > 0, scalar(1.0, apart), -1.0), apart / beta)
    return like(slope * _share(x, reduction) * wide(grad), x.dtype)


@rule(aten.huber_loss_backward.default)
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Any:
    apart, share = x - target, scalar(_share(x, reduction), x)
    if x.is_cuda:
        bound = scalar(delta, x)
        upper = where(apart > bound, grad * share * bound, apart * share * grad)
        return where(apart < -bound, -share * grad * bound, upper)
    return torch.clamp(apart, -delta, delta) * share * grad


@rule(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    z = torch.exp(-target * x)  # infinite where eager's is
    return target * z * -_share(x, reduction) / (z + 1) * grad


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    if reduction == _NONE:
        return losses
    return losses.mean() if reduction == _MEAN else losses.sum()
