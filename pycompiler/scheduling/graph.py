"""The program while it is rewritten and fused: its nodes, and the writers and readers of each buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TypeGuard

from pycompiler.ir.kernel import loads
from pycompiler.ir.loops import Buffer, Extern, Loop, Node
from pycompiler.ir.target import Target
from pycompiler.ir.verify import reads_of


@dataclass
class BufferGraph:
    """Nodes, with the writers and readers of each buffer.

    - `kept`: buffers that outlive the program's nodes: outputs, inputs, and the values that `copies` write into inputs
      at the end.
    - `begins`: see `stores.begun`.
    - `alone`: names of ATen nodes (see `schedule`).
    - `held`: buffers whose numbers are compared with themselves, so they are computed only once.
    """

    nodes: list[Node]
    kept: set[str]
    buffers: dict[str, Buffer]
    target: Target
    writers: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))
    readers: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))
    copies: dict[str, Extern] = field(default_factory=dict)
    begins: dict[str, tuple[str, str]] = field(default_factory=dict)
    alone: Set[str] = frozenset()
    held: set[str] = field(default_factory=set)

    def is_alone(self, node: Node) -> bool:
        """Whether no other node may be fused with a node."""
        return not self.alone.isdisjoint(node.origin)

    def repeatable(self, node: Node) -> TypeGuard[Loop]:
        """Pointwise, one result with one writer, and its inputs are never overwritten later."""
        if not isinstance(node, Loop) or node.reduction or node.init or node.store_mode != "set" or len(node.out) != 1:
            return False
        name = node.out[0].name
        if self.is_alone(node) or len(self.writers[name]) != 1 or not self.readers[name]:
            return False
        return not any(self.overwritten(b) for b, _ in loads(node))

    def overwritten(self, name: str) -> bool:
        """Whether the buffer changes after a node may have read it."""
        writers = self.writers[name]
        return any(isinstance(w, Extern) and name in w.mutates for w in writers) or (
            name in self.kept and bool(writers) and all(getattr(w, "init", None) == name for w in writers)
        )

    def index(self) -> BufferGraph:
        self.writers, self.readers = defaultdict(list), defaultdict(list)
        for node in self.nodes:
            for name in writes_of(node):
                self.writers[name].append(node)
            for name in set(reads_of(node)):
                self.readers[name].append(node)
        return self


def writes_of(node: Node) -> list[str]:
    names = [b.name for b in node.out if b is not None]
    return names + [n for n in node.mutates if n not in names] if isinstance(node, Extern) else names
