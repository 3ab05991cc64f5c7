"""Neighbours of a node of the graph, through views: the nodes that read its elements, and the node that computes them.

In: a node.  Out: nodes, and whether a node becomes a loop.

Example: in `relu(mm(x, y).t())` the reader of `mm` is `relu`, and the source of `t` is `mm`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from pycompiler.lowering.registry import LOWERINGS
from pycompiler.operators.operator_facts import facts_of


def is_view(node: fx.Node) -> bool:
    """Whether the result is a view of the first argument."""
    return facts_of(node.target).gives_views


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read its elements, through views."""
    for user in node.users:
        if is_view(user):
            yield from readers(user)
        else:
            yield user


def source(node: fx.Node) -> fx.Node:
    """The node that computes the elements of a view."""
    while is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def is_loop(node: fx.Node) -> bool:
    """Whether a node that is not a view becomes loops.  Large products of matrices do not."""
    return node.target in LOWERINGS and not facts_of(node.target).product


def is_pointwise(node: fx.Node) -> bool:
    """Whether a node computes each element from one place of its operands, by a loop."""
    target = node.target
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    return is_loop(node) and (
        torch.Tag.pointwise in tags or target in (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)
    )
