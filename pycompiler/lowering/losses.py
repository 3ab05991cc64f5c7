"""The negative log likelihood, forward and backward: a gather and a fold, so that cross-entropy fuses into one kernel.

In: log-probabilities [N, C] or [C], class numbers.  Out: the loss and the total weight; the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.ir.checked import within
from pycompiler.ir.expr import ZERO, Expr
from pycompiler.lowering.body import Body, Val, compute_dtype
from pycompiler.lowering.elementwise import folded, stored
from pycompiler.lowering.graph import Lowering
from pycompiler.lowering.indexing import position
from pycompiler.lowering.normalization import given
from pycompiler.lowering.registry import lowering
from pycompiler.lowering.values import Value

aten = torch.ops.aten
MEAN, SUM = 1, 2


@lowering(within)
def checked_within(low: Lowering, x: Value, rule: str) -> Any:
    def emit(body: Body, i: list[Expr]) -> Val:
        v = x.load(body, i)
        wide = v.to(compute_dtype(x.dtype))
        inside = wide.test("ge", 0) & wide.test("le", 1)
        place = inside.where(body.const(0, torch.int64), 1)
        checked = body.emit("wrap_index", (place,), torch.int64, (Expr.of(1), rule, 0))
        return checked.eq(0).where(v, 0)

    return low.pointwise(emit, low.buffer_for(low.fake))


class Classes:
    """The target's element, checked: `valid` (it is not ignored), its position among the classes, and its weight."""

    def __init__(
        self, target: Value, weight: Value | None, ignore_index: int, classes: Expr, dtype: torch.dtype
    ) -> None:
        self.target, self.weight, self.ignore, self.classes, self.dtype = target, weight, ignore_index, classes, dtype

    def at(self, body: Body, i: list[Expr]) -> tuple[Val, Expr]:
        label = self.target.load(body, i[: self.target.rank]).to(torch.int64)
        valid = label.ne(self.ignore)
        return valid, position(body, valid.where(label, 0), self.classes, "target", 1)

    def weight_at(self, body: Body, i: list[Expr]) -> Val:
        valid, place = self.at(body, i)
        one = body.const(1.0, self.dtype) if self.weight is None else self.weight.load(body, [place]).to(self.dtype)
        return valid.where(one, 0.0)


@lowering(aten.nll_loss_forward.default)
def nll_loss_forward(
    low: Lowering, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> Any:
    if x.rank not in (1, 2) or any(n == 0 for n in x.shape) or x.rank != target.rank + 1:
        return NotImplemented
    out, total = low.fake
    compute = compute_dtype(x.dtype)
    labels = Classes(target, weight, ignore_index, x.shape[-1], compute)

    def term(body: Body, i: list[Expr]) -> Val:
        _, place = labels.at(body, i)
        return -(x.load(body, [*i[: target.rank], place]).to(compute) * labels.weight_at(body, i))

    def ignored(body: Body, i: list[Expr]) -> Val:
        valid, _ = labels.at(body, i)
        return valid.where(term(body, i), 0.0)

    terms = Value(target.shape, compute, x.device, emit=lambda b, i: ignored(b, list(i)))
    weights = Value(target.shape, compute, x.device, emit=lambda b, i: labels.weight_at(b, list(i)))
    if reduction not in (MEAN, SUM):
        none = Value.constant(0, (), total.dtype, x.device)
        return stored(low, terms, out), none
    dims = range(target.rank)
    loss, count = ((folded(low, "sum", v, dims) if target.rank else stored(low, v)) for v in (terms, weights))
    if reduction == SUM:
        return given(low, loss, out), given(low, count, total)

    def mean(body: Body, i: list[Expr]) -> Val:
        at = [ZERO] * target.rank
        return loss.load(body, at) / count.load(body, at)

    return low.pointwise(mean, low.buffer_for(out)), given(low, count, total)


@lowering(aten.nll_loss_backward.default)
def nll_loss_backward(low: Lowering, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int,
                      ignore_index: int, total_weight: Value) -> Any:  # fmt: skip
    if x.rank not in (1, 2) or any(n == 0 for n in x.shape) or x.rank != target.rank + 1:
        return NotImplemented
    compute = compute_dtype(x.dtype)
    labels = Classes(target, weight, ignore_index, x.shape[-1], compute)
    each = reduction not in (MEAN, SUM)

    def emit(body: Body, i: list[Expr]) -> Val:
        _, place = labels.at(body, i)
        g = grad.load(body, i[: target.rank] if each else []).to(compute)
        value = -(g * labels.weight_at(body, i))
        if reduction == MEAN:
            value = value / total_weight.load(body, []).to(compute)
        hit = body.index(i[-1]).eq(body.index(place)) & labels.at(body, i)[0]
        return hit.where(value, 0.0)

    return low.pointwise(emit, low.buffer_for(low.fake))
