"""Checks of values by kernels of ATen's that graphs take apart, as operators of their own.

In: what such a kernel looks at. Out: the same, or a gather from it; raises as eager does.
Example: the loss of a class that there is not is an IndexError that names it, though the loss is a gather in a graph.

On a GPU, where eager ends in a device-side assert, ATen's own gather does.
"""

from __future__ import annotations

import torch

from pycompiler.ir.loops import INDEX_RULES
from pycompiler.ir.shapes import Layout, demand_known, dims_of, like, packed, rule

aten = torch.ops.aten

_LIBRARY = torch.library.Library("pycompiler", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("pick(Tensor x, int dim, Tensor classes) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.define("within(Tensor x, str rule) -> Tensor")  # type: ignore[no-untyped-call]


def _pick(x: torch.Tensor, dim: int, classes: torch.Tensor) -> torch.Tensor:
    if x.device.type == "cpu" and bool((wrong := (classes < 0) | (classes >= x.shape[dim])).any()):
        rule = INDEX_RULES["target"]
        raise rule.error(rule.text.format(index=int(classes[wrong][0])))
    return aten.gather.default(x, dim, classes)  # type: ignore[no-any-return]


def _within(x: torch.Tensor, rule: str) -> torch.Tensor:
    inside = ((x >= 0) & (x <= 1)).all()
    if x.device.type == "cuda":
        aten._assert_async.msg(inside, INDEX_RULES[rule].text)
    elif x.device.type == "cpu" and not bool(inside):
        raise INDEX_RULES[rule].error(INDEX_RULES[rule].text)
    return x.clone()


for _key in ("CPU", "CUDA", "Meta"):
    _LIBRARY.impl("pick", _pick, _key)  # type: ignore[no-untyped-call]
    _LIBRARY.impl("within", _within, _key)  # type: ignore[no-untyped-call]

# Of `x` along `dim` the elements of `classes`, as `gather` with keepdim: a class that there is not is an IndexError.
pick = torch.ops.pycompiler.pick.default


@rule(pick)
def _picked(x: torch.Tensor, dim: int, classes: torch.Tensor) -> list[Layout]:
    dims_of(x.dim(), dim)
    demand_known(x.dim() == classes.dim() > 0)
    return [packed(classes.shape)]


# `x`, whose elements are between 0 and 1: others break the row `rule` of INDEX_RULES.
within = torch.ops.pycompiler.within.default


@rule(within)
def _same(x: torch.Tensor, rule: str) -> list[Layout]:
    return [like(x)]
