"""Softmax and layer normalisation, forward and backward, as several loops that fuse into one kernel.

In: one ATen operator.  Out: folds and pointwise loops; half precision is computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycompiler.ir.expr import Expr
from pycompiler.lowering import values
from pycompiler.lowering.body import Val, compute_dtype
from pycompiler.lowering.elementwise import folded, folded_all, lazy, stored
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.promotion import as_float
from pycompiler.lowering.reductions import divided_by
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, normal_dim, product

aten = torch.ops.aten


def _empty(x: Value) -> bool:
    return any(n == 0 for n in x.shape)


@lowering(aten._softmax.default)
def softmax(low: Lowering, x: Value, dim: int, half_to_float: bool) -> Any:
    if _empty(x) or not x.dtype.is_floating_point:
        return NotImplemented
    compute, dims = compute_dtype(x.dtype), [normal_dim(dim, x.rank)] if x.rank else []
    top = folded(low, "max", lazy(lambda v: v, x, dtype=compute), dims)
    e = stored(low, lazy(lambda v, m: (v - m).op("exp"), x, top, dtype=compute))
    total = folded(low, "sum", e, dims)
    return stored(low, lazy(lambda v, s: v / s, e, total, dtype=compute), low.fake)


@lowering(aten._log_softmax.default)
def log_softmax(low: Lowering, x: Value, dim: int, half_to_float: bool) -> Any:
    if _empty(x) or not x.dtype.is_floating_point:
        return NotImplemented
    compute, dims = compute_dtype(x.dtype), [normal_dim(dim, x.rank)] if x.rank else []
    top = folded(low, "max", lazy(lambda v: v, x, dtype=compute), dims)
    total = folded(low, "sum", lazy(lambda v, m: (v - m).op("exp"), x, top, dtype=compute), dims)
    log_total = stored(low, lazy(lambda s: s.op("log"), total, dtype=compute))
    return stored(low, lazy(lambda v, m, s: v - m - s, x, top, log_total, dtype=compute), low.fake)


@lowering(aten._softmax_backward_data.default)
def softmax_backward(low: Lowering, grad: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Any:
    if _empty(grad):
        return NotImplemented
    compute, dims = compute_dtype(grad.dtype), [normal_dim(dim, grad.rank)] if grad.rank else []
    total = folded(low, "sum", lazy(lambda g, y: g * y, grad, output, dtype=compute), dims)
    return stored(low, lazy(lambda g, y, s: (g - s) * y, grad, output, total, dtype=compute), low.fake)


@lowering(aten._log_softmax_backward_data.default)
def log_softmax_backward(low: Lowering, grad: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Any:
    if _empty(grad):
        return NotImplemented
    compute, dims = compute_dtype(grad.dtype), [normal_dim(dim, grad.rank)] if grad.rank else []
    total = folded(low, "sum", lazy(lambda g: g, grad, dtype=compute), dims)
    return stored(low, lazy(lambda g, y, s: g - y.op("exp") * s, grad, output, total, dtype=compute), low.fake)


# -- layer norm ------------------------------------------------------------------------------------------------------


def normalised(low: Lowering, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    """(mean, 1/sqrt(variance + eps)) over dims, in the computation dtype, the dims kept."""
    compute = compute_dtype(x.dtype)
    mean, m2 = folded_all(low, "welford", lazy(lambda v: v, x, dtype=compute), dims, 2)
    scale = divided_by(product([x.shape[d] for d in dims]))
    return mean, stored(low, lazy(lambda v: (scale(v) + eps).op("rsqrt"), m2, dtype=compute))


def given(low: Lowering, v: Value, fake: torch.Tensor) -> Value:
    """A statistic as a result: reshaped, converted and laid out as `fake`."""
    v = values.reshape(v, fake.shape)
    if v.dtype == fake.dtype and v.buffer is not None:
        return v
    return stored(low, v, fake)


@lowering(aten.native_layer_norm.default)
def layer_norm(low: Lowering, x: Value, shape: Sequence[Any], weight: Value | None, bias: Value | None,
               eps: float) -> Any:  # fmt: skip
    if _empty(x) or not shape:
        return NotImplemented
    dims = range(x.rank - len(shape), x.rank)
    compute = compute_dtype(x.dtype)
    mean, rstd = normalised(low, x, dims, eps)
    out, fake_mean, fake_rstd = low.fake
    affine = [v for v in (weight, bias) if v is not None]

    def tree(v: Val, m: Val, r: Val, *rest: Val) -> Val:
        y, parameters = (v - m) * r, iter(rest)
        y = y if weight is None else y * next(parameters)
        return y if bias is None else y + next(parameters)

    result = stored(low, lazy(tree, x, mean, rstd, *affine, dtype=compute), out)
    return result, given(low, mean, fake_mean), given(low, rstd, fake_rstd)


@lowering(aten.native_layer_norm_backward.default)
def layer_norm_backward(low: Lowering, grad: Value, x: Value, shape: Sequence[Any], mean: Value, rstd: Value,
                        weight: Value | None, bias: Value | None, mask: Sequence[bool]) -> Any:  # fmt: skip
    if _empty(x) or not shape:
        return NotImplemented
    compute = compute_dtype(x.dtype)
    split = x.rank - len(shape)
    dims, outer = range(split, x.rank), range(split)
    scaled = [] if weight is None else [weight]
    fakes = low.fake

    def of_x() -> Value:
        def weighted(g: Val, *w: Val) -> Val:
            return g * w[0] if w else g

        def projected(g: Val, v: Val, m: Val, r: Val, *w: Val) -> Val:
            return weighted(g, *w) * ((v - m) * r)

        average = divided_by(product([x.shape[d] for d in dims]))
        first = folded(low, "sum", lazy(weighted, grad, *scaled, dtype=compute), dims)
        second = folded(low, "sum", lazy(projected, grad, x, mean, rstd, *scaled, dtype=compute), dims)

        def tree(g: Val, v: Val, m: Val, r: Val, a: Val, b: Val, *w: Val) -> Val:
            return r * (weighted(g, *w) - average(a) - (v - m) * r * average(b))

        return stored(low, lazy(tree, grad, x, mean, rstd, first, second, *scaled, dtype=compute), fakes[0])

    def of_parameter(tree: Callable[..., Val], fake: torch.Tensor, *operands: Value) -> Value:
        v = lazy(tree, *operands, dtype=compute)
        return given(low, folded(low, "sum", v, outer) if split else v, fake)

    return (
        of_x() if mask[0] else None,
        of_parameter(lambda g, v, m, r: g * ((v - m) * r), fakes[1], grad, x, mean, rstd) if mask[1] else None,
        of_parameter(lambda g: g, fakes[2], grad) if mask[2] else None,
    )


@lowering(aten.native_group_norm.default)
def group_norm(low: Lowering, x: Value, weight: Value | None, bias: Value | None, n: Any, c: Any, hw: Any, group: int,
               eps: float) -> Any:  # fmt: skip
    if _empty(x):
        return NotImplemented
    out, fake_mean, fake_rstd = low.fake
    compute = compute_dtype(x.dtype)
    batch, channels = values.to_expr(n), values.to_expr(c)
    per_group = channels // group
    grouped = (batch, Expr.of(group), per_group, values.to_expr(hw))
    parameters = [values.reshape(v, (1, group, per_group, 1)) for v in (weight, bias) if v is not None]
    v = values.reshape(x, grouped)
    mean, rstd = normalised(low, v, (2, 3), eps)

    def tree(e: Val, m: Val, r: Val, *rest: Val) -> Val:
        y, left = (e - m) * r, iter(rest)
        y = y if weight is None else y * next(left)
        return y if bias is None else y + next(left)

    result = lazy(tree, v, mean, rstd, *parameters, dtype=compute)
    return stored(low, values.reshape(result, x.shape), out), given(low, mean, fake_mean), given(low, rstd, fake_rstd)


@lowering(aten._fused_rms_norm.default)
def rms_norm(low: Lowering, x: Value, shape: Sequence[Any], weight: Value | None, eps: float | None) -> Any:
    if _empty(x) or not shape or not x.dtype.is_floating_point:
        return NotImplemented
    compute = compute_dtype(as_float(x.dtype))
    epsilon = torch.finfo(compute).eps if eps is None else eps
    dims = range(x.rank - len(shape), x.rank)
    average = divided_by(product([x.shape[d] for d in dims]))
    total = folded(low, "sum", lazy(lambda v: v * v, x, dtype=compute), dims)
    rstd = stored(low, lazy(lambda s: (average(s) + epsilon).op("rsqrt"), total, dtype=compute))
    out, fake_rstd = low.fake
    scaled = [] if weight is None else [weight]
    tree: Callable[..., Val] = lambda v, r, *w: v * r * w[0] if w else v * r  # noqa: E731
    return stored(low, lazy(tree, x, rstd, *scaled, dtype=compute), out), given(low, rstd, fake_rstd)
