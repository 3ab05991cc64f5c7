"""Value checks of ATen kernels that graphs decompose, as operators of their own.

In: the tensor that such a kernel checks.  Out: the same tensor, or a gather from it; raises as eager does.

Example: a loss of a class that does not exist is an IndexError that names the class, although the graph computes a
gather.  On a GPU, where eager ends in a device-side assert, ATen's own gather does so too.
"""

from __future__ import annotations

import torch

from pycompiler.ir.loops import INDEX_RULES
from pycompiler.operators.operator_facts import row
from pycompiler.operators.static_shape_rules import of_first, of_request
from pycompiler.operators.symbolic_shape_rules import Layout, dims_of, doubt_unless, like, packed

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

# The elements `classes` of `x` along `dim`, as `gather` with keepdim: a class that does not exist is an IndexError.
pick = torch.ops.pycompiler.pick.default


def _picked(x: torch.Tensor, dim: int, classes: torch.Tensor) -> list[Layout]:
    dims_of(x.dim(), dim)
    doubt_unless(x.dim() == classes.dim() > 0)
    return [packed(classes.shape)]


# `x`, whose elements must be between 0 and 1; other elements violate the row `rule` of INDEX_RULES.
within = torch.ops.pycompiler.within.default


row("pycompiler::pick", raises="host", waits="never", layouts=_picked, dtypes=of_first)
row(
    "pycompiler::within",
    raises="host",
    waits="never",
    checks=True,
    layouts=lambda x, rule: [like(x)],
    dtypes=of_request,
)
