"""The default table of decompositions: ATen operator → Python function in smaller operators.

In: an operator. Out: a function of its arguments, or None if the operator stays whole.

Example: ``default_decompositions().get(aten.silu.default)`` is `decomp.activations.silu`; for ``aten.mm.default`` it is None.

Order: our own rules (`decomp/`: few nodes, fast to trace); then operators that stay whole (random operators, ATen's
core set, and rows of `operators/operator_table.py`); then torch's table of decompositions into that core set.
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
from pycompiler.operators.operator_facts import facts_of

aten = torch.ops.aten


class DefaultTable(Mapping[OpOverload, Decomposition]):
    """Reads our own rules at once, and torch's table only for an operator that no other rule covers."""

    def __init__(self) -> None:
        self._known: dict[OpOverload, Decomposition | None] = dict(RULES)

    def find(self, op: OpOverload) -> Decomposition | None:
        """The decomposition of `op`, or None."""
        if op not in self._known:
            facts, in_place = facts_of(op), op._schema.name.endswith("_")
            whole = facts.draws or (facts.whole and not in_place) or torch.Tag.core in op.tags
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
