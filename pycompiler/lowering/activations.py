"""Activations that are not decomposed: a table of trees over the computation dtype.

In: an activation's operands and parameters.  Out: one Loop.  A row's tree takes the tensors first, then the parameters
in the order of ATen's schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.lowering.body import Val
from pycompiler.lowering.elementwise import elementwise
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.pointwise import least
from pycompiler.lowering.promotion import rounded
from pycompiler.lowering.registry import lowering, register

aten = torch.ops.aten
Tree = Callable[..., Val]


def elu(x: Val, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Val:
    return (x > 0).where(x * scale, (x * input_scale).op("expm1") * (alpha * scale))


def hardtanh(x: Val, low: float = -1, high: float = 1) -> Val:
    return x.like(high).op("minimum", x.like(least(x.dtype, low)).op("maximum", x))


_SQRT_HALF = math.sqrt(0.5)
_BETA = math.sqrt(2.0 / math.pi)
_KAPPA = 0.044715


def gelu(x: Val, *, approximate: str = "none") -> Val:
    if approximate == "tanh":
        return x * 0.5 * (((x + x * x * x * _KAPPA) * _BETA).op("tanh") + 1.0)
    return x * 0.5 * (x * _SQRT_HALF).op("one_plus_erf")


def gelu_backward(grad: Val, x: Val, *, approximate: str = "none") -> Val:
    if approximate == "tanh":
        squared = x * x
        th = ((x + x * squared * _KAPPA) * _BETA).op("tanh")
        left = (th + 1.0) * 0.5
        right = (1.0 - th * th) * (x * 0.5) * ((squared * (3.0 * _KAPPA) + 1.0) * _BETA)
    else:
        left = (x * _SQRT_HALF).op("one_plus_erf") * 0.5
        right = x * (x * x * -0.5).op("exp") * (_BETA * 0.5)
    return grad * (left + right)


# ATen operator -> (number of tensors, tree(tensors..., parameters...))
TABLE: dict[Any, tuple[int, Tree]] = {
    aten.hardtanh.default: (1, hardtanh),
    aten.leaky_relu.default: (1, lambda x, slope=0.01: (x > 0).where(x, x * slope)),
    aten.elu.default: (1, elu),
    aten.gelu.default: (1, gelu),
    aten.gelu_backward.default: (2, gelu_backward),
    aten.sigmoid_backward.default: (2, lambda g, y: g * (1.0 - y) * y),
    aten.tanh_backward.default: (2, lambda g, y: g * (1.0 - y * y)),
}


def _row(tensors: int, tree: Tree) -> Callable[..., Any]:
    def handler(low: Lowering, *args: Any, **parameters: Any) -> Any:
        rest = args[tensors:]
        return elementwise(low, lambda *vals: tree(*vals, *rest, **parameters), args[:tensors])

    return handler


for _op, (_tensors, _tree) in TABLE.items():
    register(_op, _row(_tensors, _tree))


@lowering(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def shrink_backward(low: Lowering, grad: Any, x: Any, lambd: Any = 0.5) -> Any:
    bound = rounded(lambd, grad.dtype)
    if low.fake.device.type == "cuda":  # also the gradient of a NaN
        return elementwise(low, lambda g, v: ((v >= -bound) & (v <= bound)).where(0.0, g), (grad, x))
    return elementwise(low, lambda g, v: ((v < -bound) | (v > bound)).where(g, 0.0), (grad, x))
