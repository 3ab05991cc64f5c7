"""Activations and their gradients in exp, tanh, where and arithmetic; half types compute in float32 as ATen's kernels do.

In: ``aten.silu(x)``. Out: ``x * sigmoid(x)``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pycompiler.autograd.decomp.registry import contiguous, like, rule, scalar, where, wide

aten = torch.ops.aten
Tensor = torch.Tensor


@rule(aten.silu.default)
def silu(x: Tensor) -> Tensor:
    w = wide(x)
    return like(w / (torch.exp(-w) + 1.0), x.dtype)


@rule(aten.silu_backward.default)
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    g, w = wide(grad), wide(x)
    s = torch.sigmoid(w)
    return like(g * s * (w * (1.0 - s) + 1.0), grad.dtype)


@rule(aten.sigmoid_backward.default, partial=True)
def sigmoid_backward(grad: Tensor, y: Tensor) -> Any:
    if grad.is_complex() or y.is_complex():
        return NotImplemented
    g, s = wide(grad), wide(y)
    return like(g * (s * (1.0 - s)), grad.dtype)


@rule(aten.tanh_backward.default, partial=True)
def tanh_backward(grad: Tensor, y: Tensor) -> Any:
    if grad.is_complex() or y.is_complex():
        return NotImplemented
    g, s = wide(grad), wide(y)
    return like(g * (1.0 - s * s), grad.dtype)


def _at_most(x: Tensor, threshold: Any) -> Any:
    """Whether `x` is at most the threshold, which CUDA's kernel rounds to the tensor's dtype and the CPU's does not."""
    return x <= scalar(threshold, x) if x.is_cuda else wide(x) <= threshold


@rule(aten.threshold.default)
def threshold(x: Tensor, threshold: Any, value: Any) -> Any:
    return where(_at_most(x, threshold), value, x)


@rule(aten.threshold_backward.default)
def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Any:
    return where(_at_most(x, threshold), 0, grad)


@rule(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, self_is_result: bool) -> Any:
    return where(x > 0, grad, grad * slope)


@rule(aten.hardtanh_backward.default)
def hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Any:
    w = wide(x)  # kernels compare with the bounds in float32
    if x.is_cuda:
        return where((w <= low) | (w >= high), 0, grad)  # also the gradient of a NaN
    return where((w > low) & (w < high), grad, 0)  # 0 for a NaN, as in ATen's vectorised code


@rule(aten.elu_backward.default)
def elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Any:
    g, w = wide(grad), wide(x)
    if is_result:
        below = g * input_scale * (w + alpha * scale)
    else:
        below = g * input_scale * (alpha * scale) * torch.exp(w * input_scale)
    # The two conditions differ at a NaN.
    return like(where(w <= 0, below, g * scale) if x.is_cuda else where(w > 0, g * scale, below), grad.dtype)


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * (mask.to(grad.dtype) * scale)


@rule(aten.mul.Scalar)
def mul_scalar(x: Tensor, other: Any) -> Any:
    return aten.mul.Tensor(x, other)


@rule(aten.div.Scalar)
def div_scalar(x: Tensor, other: Any) -> Any:
    return aten.div.Tensor(x, other)


@rule(aten.add.Scalar)
def add_scalar(x: Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.add.Tensor(x, other, alpha=alpha) if alpha != 1 else aten.add.Tensor(x, other)


_SIXTH = 0.1666666716337204  # ATen's constant is a float32, even in float64 kernels


def _sixth(x: Tensor, part: Tensor) -> Tensor:
    """A sixth of `part`: CPU kernels divide, CUDA kernels multiply."""
    return part * _SIXTH if x.device.type == "cuda" else part / 6


@rule(aten.hardsigmoid.default)
def hardsigmoid(x: Tensor) -> Tensor:
    w = wide(x)
    return like(_sixth(x, torch.clamp(w + 3, 0, 6)), x.dtype)


@rule(aten.hardswish.default)
def hardswish(x: Tensor) -> Tensor:
    w = wide(x)
    return like(_sixth(x, w * torch.clamp(w + 3, 0, 6)), x.dtype)


@rule(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Any:
    g, w = wide(grad), wide(x)
    return like(where((w > -3) & (w < 3), g * _SIXTH, 0.0), grad.dtype)


@rule(aten.hardswish_backward.default)
def hardswish_backward(grad: Tensor, x: Tensor) -> Any:
    g, w = wide(grad), wide(x)
    # On CUDA a division by a number is a product; its kernel divides.
    three = torch.full((), 3.0, dtype=w.dtype, device=w.device) if x.is_cuda else 3
    between = g * (w / three + 0.5)  # also for a NaN, except on CUDA
    sloped = where(w < 3, between, g) if x.is_cuda else where(w >= 3, g, between)
    return like(where(w <= -3, 0.0, sloped), grad.dtype)


@rule(aten.softshrink.default)
def softshrink(x: Tensor, lambd: Any = 0.5) -> Any:
    bound = scalar(lambd, x)
    inside = where(torch.isnan(x), x, 0.0)  # a zero has no sign
    return where(x > bound, x - bound, where(x < -bound, x + bound, inside))


def _logit_operand(x: Tensor) -> Tensor:
    """`x` in the dtype to which each step of the kernels of `logit` rounds."""
    return wide(x) if x.is_cuda else x


@rule(aten.logit.default)
def logit(x: Tensor, eps: Any = None) -> Any:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    w = _logit_operand(x)
    if eps is not None:
        low = scalar(eps, w)
        high = 1 - low
        w = where(w < low, low, where(w > high, high, w))  # outside of [0, 1] the result is NaN with or without bounds
    return like(torch.log(w / (1 - w)), x.dtype)


@rule(aten.logit_backward.default)
def logit_backward(grad: Tensor, x: Tensor, eps: Any = None) -> Any:
    g, w = _logit_operand(grad), _logit_operand(x)
    bounded = eps is not None and eps >= 0
    low = scalar(eps if bounded else 0, w)
    high, outside = 1 - low, 0.0 if bounded else math.nan
    slope = g / (w * (1 - w))
    if x.is_cuda:  # also for a NaN
        return like(where((w < low) | (w > high), outside, slope), grad.dtype)
    return like(where((w >= low) & (w <= high), slope, outside), grad.dtype)


@rule(aten.sub.Scalar)
def sub_scalar(x: Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.sub.Tensor(x, other, alpha=alpha) if alpha != 1 else aten.sub.Tensor(x, other)


@rule(aten.rsub.Scalar, partial=True)
def rsub_scalar(x: Tensor, other: Any, alpha: Any = 1) -> Any:
    if not x.is_floating_point() or isinstance(other, complex) or isinstance(alpha, complex):
        # unsigned dtypes have no negation; bools are refused; for complex numbers alpha multiplies infinities
        return NotImplemented
    return torch.neg(x) + other if alpha == 1 else NotImplemented


@rule(aten.rsub.Tensor)
def rsub_tensor(x: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    return torch.sub(other, x, alpha=alpha)


@rule(aten.sgn.default, partial=True)
def sgn(x: Tensor) -> Any:
    return NotImplemented if x.is_complex() else torch.sign(x)


@rule(aten.masked_fill.Scalar, partial=True)
def masked_fill_scalar(x: Tensor, mask: Tensor, value: Any) -> Any:
    if isinstance(value, complex) or (isinstance(value, float) and not (x.is_floating_point() or x.is_complex())):
        return NotImplemented
    return contiguous(where(mask, value, x))


@rule(aten.masked_fill.Tensor, partial=True)
def masked_fill_tensor(x: Tensor, mask: Tensor, value: Tensor) -> Any:
    if value.device != x.device:
        return NotImplemented
    return contiguous(aten.where.self(mask, like(value, x.dtype), x))
