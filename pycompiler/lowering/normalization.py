"""Group normalisation, which is not decomposed: several loops that fuse into one kernel.

In: one ATen operator.  Out: folds and pointwise loops; half precision is computed in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycompiler.lowering import values
from pycompiler.lowering.body import Val, compute_dtype
from pycompiler.lowering.elementwise import folded_all, lazy, stored
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.reductions import divided_by, moments_dtype
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, product
from pycompiler.symbolic.expr import Expr

aten = torch.ops.aten


def normalised(low: Lowering, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    """(mean, 1/sqrt(variance + eps)) over dims, in the computation dtype, the dims kept."""
    compute, wide = compute_dtype(x.dtype), moments_dtype(x)
    mean, m2 = folded_all(low, "welford", lazy(lambda v: v, x, dtype=wide), dims, 2)
    scale = divided_by(product([x.shape[d] for d in dims]))
    variance = lazy(scale, m2, dtype=wide)
    rstd = lazy(lambda v: (v + eps).op("rsqrt"), variance, dtype=compute)
    return stored(low, lazy(lambda v: v, mean, dtype=compute)), stored(low, rstd)


def as_result(low: Lowering, v: Value, fake: torch.Tensor) -> Value:
    """A statistic as a result: reshaped, converted and laid out as `fake`."""
    v = values.reshape(v, fake.shape)
    if v.dtype == fake.dtype and v.buffer is not None:
        return v
    return stored(low, v, fake)


@lowering(aten.native_group_norm.default)
def group_norm(low: Lowering, x: Value, weight: Value | None, bias: Value | None, n: Any, c: Any, hw: Any, group: int,
               eps: float) -> Any:  # fmt: skip
    if any(n == 0 for n in x.shape):
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
    return (
        stored(low, values.reshape(result, x.shape), out),
        as_result(low, mean, fake_mean),
        as_result(low, rstd, fake_rstd),
    )
