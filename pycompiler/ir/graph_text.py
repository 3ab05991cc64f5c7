"""fx graphs as tables, for logs.

In: a captured `fx.GraphModule`.  Out: a str with one line per node, or one line per tensor with its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

HEAD = ("opcode", "name", "target", "args", "kwargs")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in aligned columns; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def tabular(gm: fx.GraphModule) -> str:
    """The graph as a table with one row per node."""
    rows = [(n.op, n.name, _target(n), str(n.args), str(n.kwargs)) for n in gm.graph.nodes]
    return table([HEAD, *rows])


def _target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    module, name = getattr(node.target, "__module__", ""), getattr(node.target, "__name__", "")
    return f"{module}.{name}" if module and name else str(node.target)


def sizes(gm: fx.GraphModule) -> str:
    """The size and dtype of each tensor of the graph, one line each."""
    found = ((n.name, _size(n.meta.get("example_value", n.meta.get("val")))) for n in gm.graph.nodes)
    return "\n".join(f"{name}: {size}" for name, size in found if size)


def _size(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"({', '.join(map(str, value.shape))}{',' if value.dim() == 1 else ''}) {value.dtype}"
    if isinstance(value, (tuple, list)):
        parts = [_size(v) for v in value]
        return f"[{', '.join(parts)}]" if all(parts) and parts else ""
    return ""
