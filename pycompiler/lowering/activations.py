"""Activations and their backwards, and pointwise losses: tables of trees over the computation dtype.

In: an activation's operands and parameters.  Out: one Loop.  A row's tree takes the tensors first, then the
parameters as ATen's schema orders them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.ir.expr import ZERO
from pycompiler.lowering import values
from pycompiler.lowering.body import Val, compute_dtype
from pycompiler.lowering.elementwise import broadcast_load, elementwise
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.pointwise import least
from pycompiler.lowering.promotion import rounded
from pycompiler.lowering.registry import lowering, register
from pycompiler.lowering.values import Value

aten = torch.ops.aten
Tree = Callable[..., Val]
SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def clip(x: Val, low: float, high: float) -> Val:
    return x.op("maximum", low).op("minimum", high)


def gelu(x: Val, approximate: str = "none") -> Val:
    if approximate == "tanh":
        inner = SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + inner.op("tanh"))
    return x * 0.5 * (1.0 + (x * SQRT_HALF).op("erf"))


def gelu_backward(g: Val, x: Val, approximate: str = "none") -> Val:
    if approximate == "tanh":
        square = x * x
        t = (SQRT_2_OVER_PI * (x + 0.044715 * (square * x))).op("tanh")
        left = 0.5 * x * (1.0 - t * t) * (SQRT_2_OVER_PI * (1.0 + 3 * 0.044715 * square))
        return g * (left + 0.5 * (1.0 + t))
    cdf = 0.5 * (1.0 + (x * SQRT_HALF).op("erf"))
    pdf = (x * x * -0.5).op("exp") * (1.0 / math.sqrt(2 * math.pi))
    return g * (cdf + x * pdf)


def silu(x: Val) -> Val:
    return x / (1.0 + (-x).op("exp"))


def silu_backward(g: Val, x: Val) -> Val:
    s = x.op("sigmoid")
    return g * s * (1.0 + x * (1.0 - s))


def log_sigmoid(x: Val) -> Val:
    return x.op("minimum", 0.0) - (-x.op("abs")).op("exp").op("log1p")


def log_sigmoid_backward(g: Val, x: Val) -> Val:
    z = (-x.op("abs")).op("exp")
    negative = x < 0
    derivative = negative.where(1.0, x.like(0.0))
    signed = negative.where(1.0, x.like(-1.0))
    return g * (derivative - signed * (z / (1.0 + z)))


def softplus(x: Val, beta: float = 1, threshold: float = 20) -> Val:
    return ((x * beta) > threshold).where(x, (x * beta).op("exp").op("log1p") / beta)


def softplus_backward(g: Val, x: Val, beta: float, threshold: float) -> Val:
    z = (x * beta).op("exp")
    return ((x * beta) > threshold).where(g, g * z / (z + 1.0))


def mish(x: Val) -> Val:
    return x * x.op("exp").op("log1p").op("tanh")


def mish_backward(g: Val, x: Val) -> Val:
    s, t = x.op("sigmoid"), softplus(x).op("tanh")
    return g * (t + x * s * (1.0 - t * t))


def elu(x: Val, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Val:
    return (x > 0).where(x * scale, (x * input_scale).op("expm1") * (alpha * scale))


def elu_backward(g: Val, alpha: float, scale: float, input_scale: float, is_result: bool, x: Val) -> Val:
    if is_result:
        return (x <= 0).where(g * input_scale * (x + alpha * scale), g * scale)
    return (x <= 0).where(g * (input_scale * alpha * scale) * (x * input_scale).op("exp"), g * scale)


def hardswish_backward(g: Val, x: Val) -> Val:
    return (x < -3).where(0.0, (x < 3).where(g * (x / 3.0 + 0.5), g))


def between(x: Val, low: float, high: float) -> Val:
    return (x > low) & (x < high)


def leaky_relu_backward(g: Val, x: Val, slope: float, is_result: bool) -> Val:
    return (x > 0).where(g, g * slope)


def logit_backward(g: Val, x: Val, eps: float | None = None) -> Val:
    inner = g / (x * (1.0 - x))
    low = 0.0 if eps is None else eps
    outside = (x < low) | (x > 1 - low)
    return outside.where(math.nan if eps is None else 0.0, inner)


def softshrink(x: Val, lambd: float = 0.5) -> Val:
    inside = (x >= -lambd) & (x <= lambd)
    return inside.where(x * 0.0, (x > lambd).where(x - lambd, x + lambd))


def hardshrink(x: Val, lambd: float = 0.5) -> Val:
    return ((x >= -lambd) & (x <= lambd)).where(0.0, x)


def shrink_backward(g: Val, x: Val, lambd: float) -> Val:
    return ((x >= -lambd) & (x <= lambd)).where(0.0, g)


# ATen operator -> (number of tensors, tree(tensors..., parameters...)); a tree may place tensors by position instead
TABLE: dict[Any, tuple[int, Tree]] = {
    aten.gelu.default: (1, gelu),
    aten.gelu_backward.default: (2, gelu_backward),
    aten.silu.default: (1, silu),
    aten.silu_backward.default: (2, silu_backward),
    aten.mish.default: (1, mish),
    aten.mish_backward.default: (2, mish_backward),
    aten.relu6.default: (1, lambda x: clip(x, 0, 6)),
    aten.hardtanh.default: (1, lambda x, low=-1, high=1: clip(x, least(x.dtype, low), high)),
    aten.hardtanh_backward.default: (2, lambda g, x, low, high: between(x, low, high).where(g, 0.0)),
    aten.hardsigmoid.default: (1, lambda x: clip(x + 3.0, 0, 6) / 6.0),
    aten.hardsigmoid_backward.default: (2, lambda g, x: between(x, -3, 3).where(g * (1.0 / 6), 0.0)),
    aten.hardswish.default: (1, lambda x: x * clip(x + 3.0, 0, 6) / 6.0),
    aten.hardswish_backward.default: (2, hardswish_backward),
    aten.leaky_relu.default: (1, lambda x, slope=0.01: (x > 0).where(x, x * slope)),
    aten.leaky_relu_backward.default: (2, leaky_relu_backward),
    aten.elu.default: (1, elu),
    aten.celu.default: (1, lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha)),
    aten.selu.default: (1, lambda x: elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)),
    aten.softplus.default: (1, softplus),
    aten.softplus_backward.default: (2, softplus_backward),
    aten.threshold.default: (1, lambda x, threshold, value: (x <= threshold).where(value, x)),
    aten.threshold_backward.default: (2, lambda g, x, threshold: (x <= threshold).where(0.0, g)),
    aten.sigmoid_backward.default: (2, lambda g, y: g * (1.0 - y) * y),
    aten.tanh_backward.default: (2, lambda g, y: g * (1.0 - y * y)),
    aten.logit_backward.default: (2, logit_backward),
    aten._prelu_kernel.default: (2, lambda x, w: (x > 0).where(x, x * w)),
    aten.native_dropout_backward.default: (2, lambda g, mask, scale: g * (mask * scale)),
}  # fmt: skip


def _row(tensors: int, tree: Tree) -> Callable[..., Any]:
    def handler(low: Lowering, *args: Any, **parameters: Any) -> Any:
        rest = args[tensors:]
        return elementwise(low, lambda *vals: tree(*vals, *rest, **parameters), args[:tensors])

    return handler


for _op, (_tensors, _tree) in TABLE.items():
    register(_op, _row(_tensors, _tree))


def _shrink(tensors: int, tree: Tree) -> Callable[..., Any]:
    def handler(low: Lowering, *args: Any) -> Any:
        tensor, (lambd,) = args[0], args[tensors:] or (0.5,)
        bound = rounded(lambd, tensor.dtype)
        return elementwise(low, lambda *vals: tree(*vals, bound), args[:tensors])

    return handler


register(aten.softshrink.default, _shrink(1, softshrink))
register(aten.softshrink_backward.default, _shrink(2, shrink_backward))
register(aten.hardshrink.default, _shrink(1, hardshrink))
register(aten.hardshrink_backward.default, _shrink(2, shrink_backward))


@lowering(aten.elu_backward.default)
def elu_backward_row(low: Lowering, grad: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool,
                     x: Value) -> Value:  # fmt: skip
    return elementwise(low, lambda g, v: elu_backward(g, alpha, scale, input_scale, is_result, v), (grad, x))


@lowering(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(low: Lowering, x: Value) -> Any:
    """The second result is a buffer that only ATen's own backward reads (empty on CUDA)."""
    output, scratch = low.fake
    out = low.pointwise(lambda b, i: log_sigmoid(x.load(b, i).to(_compute(x))), low.buffer_for(output))
    if scratch.numel() == 0:
        return out, low.value_of(low.buffer_for(scratch))
    return out, low.pointwise(lambda b, i: (-x.load(b, i).to(_compute(x)).op("abs")).op("exp"), low.buffer_for(scratch))


@lowering(aten.log_sigmoid_backward.default)
def log_sigmoid_backward_row(low: Lowering, grad: Value, x: Value, scratch: Value) -> Value:
    return elementwise(low, log_sigmoid_backward, (grad, x))


def _compute(x: Value) -> torch.dtype:
    return compute_dtype(x.dtype)


@lowering(aten._prelu_kernel_backward.default)
def prelu_backward(low: Lowering, grad: Value, x: Value, weight: Value) -> Any:
    grad_x, grad_weight = low.fake
    compute = _compute(x)

    def of_x(b: Any, i: Any) -> Val:
        g = grad.load(b, i).to(compute)
        w = broadcast_load(weight, b, i, x.shape).to(compute)
        return (x.load(b, i).to(compute) > 0).where(g, g * w)

    def of_weight(b: Any, i: Any) -> Val:
        v = x.load(b, i).to(compute)
        return (v > 0).where(0.0, grad.load(b, i).to(compute) * v)

    return low.pointwise(of_x, low.buffer_for(grad_x)), low.pointwise(of_weight, low.buffer_for(grad_weight))


@lowering(aten.glu.default)
def glu(low: Lowering, x: Value, dim: int = -1) -> Any:
    d = values.normal_dim(dim, x.rank)
    half = x.shape[d] // 2
    left, right = values.slice_dim(x, d, ZERO, half), values.slice_dim(x, d, half, half)
    return elementwise(low, lambda a, b: a * b.op("sigmoid"), (left, right))
