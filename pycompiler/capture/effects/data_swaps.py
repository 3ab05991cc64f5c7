"""Writes of tensors that have got other data (`builtins/data.py`), which no version of theirs counts."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import fx

from pycompiler.capture.breaks import Break
from pycompiler.ir.kernels import counts_with, tensors_of


class Count(Protocol):
    """A constant of generated code's."""

    value: int


class Writes:
    """How often a tensor that has got other data was written by its aliases, nodes that count for themselves: a constant of
    generated code's, which grows until the graph ends.  Writes by views from before are counted where they happen.
    What the graph makes is its last alias from then on: of that only what was before has to be counted."""

    def __init__(self, fake: torch.Tensor, exists: bool, made_at: int | None) -> None:
        self.fake, self.exists, self.made_at = fake, exists, made_at
        self.aliases = list[fx.Node]()
        self.count: Count | None = None
        self.seen = 0

    def take(self, alias: fx.Node, count: Count) -> None:
        """From now on it is another alias, whose writes are counted in another constant."""
        self.aliases.append(alias)
        self.count, self.seen = count, self.fake._version

    def shares(self, fake: object) -> bool:
        return isinstance(fake, torch.Tensor) and (fake is self.fake or counts_with(fake, self.fake))

    def is_of_alias(self, node: fx.Node) -> bool:
        """Whether a node is an alias, or a view of one."""
        if node in self.aliases:
            return True
        inputs = (n for n in node.all_input_nodes if any(map(self.shares, tensors_of(n.meta.get("example_value")))))
        return any(map(self.is_of_alias, inputs))

    def look(self, written: list[fx.Node]) -> None:
        """After a call that wrote these."""
        grown, self.seen = self.fake._version - self.seen, self.fake._version
        by_alias = {self.is_of_alias(n) for n in written if self.shares(n.meta["example_value"])}
        if grown and len(by_alias) > 1:
            raise Break(
                "unsupported-operation", "a write of data that were replaced, by what has the old and the new ones"
            )
        if self.exists and True in by_alias and not self.fake.is_leaf:
            # Generated code gives an existing tensor detached data, behind the graph.
            raise Break(
                "tensor-attribute-store", "a write that records a history for a tensor whose data were replaced"
            )
        if self.count is not None and self.exists and True in by_alias:
            self.count.value += grown
