"""Reductions: a folding Loop, then if needed a Loop that finishes (cast, division, root).

In: a value and dimensions.  Out: values over fresh buffers.  bf16/f16 are folded in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycompiler.ir.loops import Buffer
from pycompiler.lowering.body import Val, compute_dtype
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value, normal_dim, product
from pycompiler.symbolic.expr import Expr

aten, prims = torch.ops.aten, torch.ops.prims
Finish = Callable[[Val], Val]


def dims_of(v: Value, dim: Any) -> tuple[int, ...]:
    """Normalised dimensions; None or an empty list means all."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(v.rank))
    given = dim if isinstance(dim, Sequence) else [dim]
    return tuple(sorted({normal_dim(d, v.rank) for d in given})) if v.rank else ()


def finished(low: Lowering, v: Value, fake: torch.Tensor, finish: Finish) -> Value:
    return low.pointwise(lambda b, i: finish(v.load(b, i)), low.buffer_for(fake))


def fold(
    low: Lowering,
    kind: str,
    x: Value,
    dims: Sequence[int],
    keepdim: bool,
    *,
    compute: torch.dtype,
    prepare: Finish = lambda v: v,
    finish: Finish | None = None,
    fake: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """kind over prepare(x in `compute`), finished into the fake result's dtype.  `dtype`: x is converted to it first."""
    fake = low.fake if fake is None else fake
    accumulator = {"argmax": torch.int64, "argmin": torch.int64, "any": torch.bool, "all": torch.bool}.get(
        kind, compute
    )
    if any(x.shape[d] == 0 for d in dims) and kind not in ("sum", "prod", "any", "all"):
        return NotImplemented  # ATen raises, or has a special result
    direct = finish is None and accumulator == fake.dtype
    buffer = low.buffer_for(fake, accumulator)
    (result,) = low.reduce(
        kind, x, dims, lambda v: prepare((v if dtype is None else v.to(dtype)).to(compute)), [buffer], keepdim
    )
    if direct:
        return result
    return finished(low, result, fake, finish or (lambda v: v))


def accumulate_dtype(low: Lowering, x: Value) -> torch.dtype:
    return compute_dtype(low.fake.dtype)


@lowering(aten.sum.dim_IntList)
def sum_(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return fold(low, "sum", x, dims_of(x, dim), keepdim, compute=accumulate_dtype(low, x), dtype=dtype)


@lowering(aten.mean.dim)
def mean(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = dims_of(x, dim)
    count = divided_by(product([x.shape[d] for d in dims]))
    return fold(low, "sum", x, dims, keepdim, compute=accumulate_dtype(low, x), finish=count)


def divided_by(n: Expr) -> Finish:
    if n.const is not None:
        return lambda v: v / n.as_int()
    return lambda v: v / v.body.index(n).to(v.dtype)


@lowering(aten.prod)
def prod(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return fold(low, "prod", x, dims_of(x, dim), keepdim, compute=accumulate_dtype(low, x), dtype=dtype)


@lowering(aten.amax, aten.max.default)
def amax(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    return extreme(low, "max", x, dims_of(x, dim), keepdim)


@lowering(aten.amin, aten.min.default)
def amin(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    return extreme(low, "min", x, dims_of(x, dim), keepdim)


def extreme(low: Lowering, kind: str, x: Value, dims: Sequence[int], keepdim: bool, fake: Any = None) -> Any:
    if x.dtype == torch.bool:
        return fold(low, "any" if kind == "max" else "all", x, dims, keepdim, compute=torch.bool, fake=fake)
    return fold(low, kind, x, dims, keepdim, compute=compute_dtype(x.dtype), fake=fake)


def _with_indices(kind: str) -> Callable[..., Any]:
    def handler(low: Lowering, x: Value, dim: int, keepdim: bool = False) -> Any:
        values, indices = low.fake
        dims = dims_of(x, dim)
        if any(x.shape[d] == 0 for d in dims):
            return NotImplemented
        best = extreme(low, kind, x, dims, keepdim, values)
        return best, arg_fold(low, f"arg{kind}", x, dims, keepdim, indices)

    return handler


def arg_fold(low: Lowering, kind: str, x: Value, dims: Sequence[int], keepdim: bool, fake: Any) -> Any:
    compute = torch.uint8 if x.dtype == torch.bool else compute_dtype(x.dtype)
    return fold(low, kind, x, dims, keepdim, compute=compute, fake=fake)


lowering(aten.max.dim)(_with_indices("max"))
lowering(aten.min.dim)(_with_indices("min"))


def _arg(kind: str) -> Callable[..., Any]:
    def handler(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
        return arg_fold(low, kind, x, dims_of(x, dim), keepdim, low.fake)

    return handler


lowering(aten.argmax.default)(_arg("argmax"))
lowering(aten.argmin.default)(_arg("argmin"))


@lowering(aten.any)
def any_(low: Lowering, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    dims = () if isinstance(dim, Sequence) and not dim else dims_of(x, dim)  # an empty list means none here
    return fold(low, "any", x, dims, keepdim, compute=torch.bool)


# -- moments ---------------------------------------------------------------------------------------------------------


def moments_dtype(x: Value) -> torch.dtype:
    """The dtype of a mean and of squared distances to it: double on CPUs, where it costs little."""
    return torch.float64 if x.device.type == "cpu" else compute_dtype(x.dtype)


def moments(low: Lowering, x: Value, dims: Sequence[int], keepdim: bool, fake: torch.Tensor) -> tuple[Value, Value]:
    """(mean, sum of squared distances to it), in `moments_dtype`."""
    compute = moments_dtype(x)
    outs: list[Buffer] = [low.buffer_for(fake, compute), low.buffer_for(fake, compute)]
    mean, m2 = low.reduce("welford", x, dims, lambda v: v.to(compute), outs, keepdim)
    return mean, m2


def spread(low: Lowering, x: Value, dim: Any, correction: Any, keepdim: bool, root: bool, fakes: Any) -> Any:
    """Variance (or its root), and the mean when there are two fakes."""
    dims = dims_of(x, dim)
    count = product([x.shape[d] for d in dims])
    if not x.dtype.is_floating_point or count == 0:
        return NotImplemented
    correction = 1 if correction is None else correction
    if isinstance(correction, bool):
        correction = int(correction)
    mean, m2 = moments(low, x, dims, keepdim, fakes[0])

    def finish(v: Val) -> Val:
        divided = v / degrees(v, count, correction)
        return divided.op("sqrt") if root else divided

    result = finished(low, m2, fakes[0], finish)
    if len(fakes) == 1:
        return result
    return result, finished(low, mean, fakes[1], lambda v: v) if x.dtype != mean.dtype else mean


def degrees(v: Val, count: Expr, correction: float) -> Val | float:
    if count.const is not None:
        return max(count.as_int() - correction, 0)
    return (v.body.index(count).to(v.dtype) - correction).op("maximum", 0)


@lowering(aten.var.correction)
def var(low: Lowering, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return spread(low, x, dim, correction, keepdim, False, [low.fake])


@lowering(aten.std.correction)
def std(low: Lowering, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return spread(low, x, dim, correction, keepdim, True, [low.fake])


@lowering(aten.var_mean.correction)
def var_mean(low: Lowering, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return spread(low, x, dim, correction, keepdim, False, list(low.fake))


@lowering(aten.std_mean.correction)
def std_mean(low: Lowering, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return spread(low, x, dim, correction, keepdim, True, list(low.fake))


def _unbiased(root: bool, two: bool, has_dim: bool) -> Callable[..., Any]:
    def handler(low: Lowering, x: Value, *args: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        rest = list(args)
        dim = rest.pop(0) if has_dim else None
        unbiased = rest.pop(0) if rest else unbiased
        keepdim = rest.pop(0) if rest else keepdim
        return spread(low, x, dim, int(unbiased), keepdim, root, list(low.fake) if two else [low.fake])

    return handler


for _op, _root, _two, _dim in (
    *((aten.var.dim, False, False, True), (aten.std.default, True, False, False), (aten.std.dim, True, False, True)),
    *((aten.var_mean.default, False, True, False), (aten.var_mean.dim, False, True, True)),
    *((aten.std_mean.default, True, True, False), (aten.std_mean.dim, True, True, True)),
):
    lowering(_op)(_unbiased(_root, _two, _dim))
