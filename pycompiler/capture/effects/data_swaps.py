"""Writes of tensors whose data were replaced (`capture/library/torch_functions/tensor_data.py`), which their versions
do not count."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import fx

from pycompiler.capture.breaks import Break
from pycompiler.operators.kernel_type_checks import shares_version, tensors_of


class MutableConstant(Protocol):
    """A mutable constant of generated code."""

    value: int


class TensorVersion(Protocol):
    """A tensor with replaced data."""

    fake: torch.Tensor
    version: int
    is_leaf: bool

    @property
    def exists(self) -> bool: ...


class AliasWrites:
    """The number of writes to a tensor with replaced data through its aliases, which have version counters of their
    own.

    The number is a constant of generated code that grows until the graph ends.  Writes through earlier views are
    counted where they happen.  The graph's result is the last alias from then on, so only earlier writes must be
    counted.
    """

    def __init__(self, tensor: TensorVersion, made_at: int | None) -> None:
        self.tensor, self.exists, self.made_at = tensor, tensor.exists, made_at
        self.aliases = list[fx.Node]()
        self.count: MutableConstant | None = None
        self.seen = 0

    def take(self, alias: fx.Node, count: MutableConstant) -> None:
        """Register another alias, whose writes are counted in another constant."""
        self.aliases.append(alias)
        self.count, self.seen = count, self.tensor.version

    def shares(self, fake: object) -> bool:
        return isinstance(fake, torch.Tensor) and shares_version(fake, self.tensor.fake)

    def is_of_alias(self, node: fx.Node) -> bool:
        """Whether a node is an alias, or a view of one."""
        if node in self.aliases:
            return True
        inputs = (n for n in node.all_input_nodes if any(map(self.shares, tensors_of(n.meta.get("example_value")))))
        return any(map(self.is_of_alias, inputs))

    def look(self, written: list[fx.Node]) -> None:
        """Call after a call that wrote these nodes.

        Writes of an inner graph are counted after the call that the outer graph makes of it.
        """
        if written and self.aliases and written[0].graph is not self.aliases[0].graph:
            return
        grown, self.seen = self.tensor.version - self.seen, self.tensor.version
        by_alias = {self.is_of_alias(n) for n in written if self.shares(n.meta["example_value"])}
        if grown and len(by_alias) > 1:
            raise Break(
                "unsupported-operation", "a write to replaced data through tensors with the old and with the new data"
            )
        if self.exists and True in by_alias and not self.tensor.is_leaf:
            # Generated code gives an existing tensor detached data, after the graph.
            raise Break(
                "tensor-attribute-store",
                "a write that records an autograd history for a tensor whose data were replaced",
            )
        if self.count is not None and self.exists and True in by_alias:
            self.count.value += grown
