"""The default table of decompositions: ATen operator → Python function in smaller operators.

In: an operator. Out: a function of its arguments, or None if the operator stays whole.

Example: ``default_decompositions().get(aten.silu.default)`` is `decomp.activations.silu`; for ``aten.mm.default`` it is None.

Order: our own rules (`decomp/`: few nodes, fast to trace); then operators that stay whole (random operators, ATen's
core set, and `WHOLE`); then torch's table of decompositions into that core set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.autograd import decomp  # noqa: F401  (fills RULES)
from pycompiler.autograd.decomp.foreach import foreach
from pycompiler.autograd.decomp.registry import RULES
from pycompiler.autograd.recorder import Decomposition
from pycompiler.operators.operator_effects import draws

aten = torch.ops.aten

# Not in the core set, but a library kernel or one of our own loops is faster than their parts.
WHOLE = frozenset(
    (
        *(aten.baddbmm, aten.addmv, aten.mv, aten.dot, aten.addbmm),
        *(aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward),
        *(aten.native_batch_norm, aten.cudnn_batch_norm, aten.cudnn_batch_norm_backward),
        *(aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.max_pool2d_with_indices, aten.max_unpool2d),
        *(
            aten.var_mean,
            aten.std,
            aten.std_mean,
            aten.empty_like,
            aten.new_empty,
            aten.new_empty_strided,
            aten.transpose,
            aten.squeeze,
        ),
        *(aten.roll, aten.lerp, aten.frac, aten.where, aten.clamp_min, aten.clamp_max, aten.isin, aten.logaddexp),
        *(aten.floor_divide, aten.special_erfcx, aten.lift_fresh, aten.index_add, aten.index_copy, aten.eye),
        *(aten.index_fill, aten.xlogy, aten.special_xlog1py, aten.gelu_backward),
        *(aten.addcmul, aten.addcdiv, aten.linspace, aten.linalg_cross),
        *(aten._linalg_det, aten.linalg_lu_factor, aten.lu_unpack, aten.renorm, aten.unfold, aten.unfold_backward),
    )
)


class DefaultTable(Mapping[OpOverload, Decomposition]):
    """Reads our own rules at once, and torch's table only for an operator that no other rule covers."""

    def __init__(self) -> None:
        self._known: dict[OpOverload, Decomposition | None] = dict(RULES)

    def find(self, op: OpOverload) -> Decomposition | None:
        """The decomposition of `op`, or None."""
        if op not in self._known:
            whole = draws(op) or torch.Tag.core in op.tags or op.overloadpacket in WHOLE
            self._known[op] = None if whole else foreach(op) or _torch_table().get(op)
        return self._known[op]

    def get(self, op: OpOverload, default: object = None) -> Decomposition | None:  # type: ignore[override]
        return self.find(op)

    def __getitem__(self, op: OpOverload) -> Decomposition:
        found = self.find(op)
        if found is None:
            raise KeyError(op)
        return found

    def __iter__(self) -> Iterator[OpOverload]:
        return iter(dict.fromkeys((*RULES, *(op for op in _torch_table() if self.find(op) is not None))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _torch_table() -> Mapping[OpOverload, Decomposition]:
    from torch._decomp import core_aten_decompositions, decomposition_table

    table: dict[Any, Any] = dict(core_aten_decompositions())
    norm = aten.linalg_vector_norm.default  # only in the table of newer versions of torch
    table.setdefault(norm, decomposition_table[norm])
    return {op: fn for op, fn in table.items() if isinstance(op, OpOverload)}


@cache
def default_decompositions() -> DefaultTable:
    """The default table of `compile_joint`."""
    return DefaultTable()
