"""Waits for functional collectives, moved to their first readers: the collective runs beneath the work between.

In: a joint graph.  Out: the same graph in another order.
Example: for ``h = wait(all_reduce(x)); y = x @ w; return h + y`` the wait comes after the product.

No operator between reads the result or writes the arguments: the graph is functional.  Waits without readers stay.
Gradients stay, too: until the wait, a collective keeps its arguments alive, and a stage of the backward ends with it.
"""

from __future__ import annotations

from collections.abc import Set

from torch import fx

from pycompiler.autograd.views import view_parent
from pycompiler.operators import process_groups


def wait_late(graph: fx.Graph, gradients: Set[fx.Node | None]) -> None:
    """Move waits, and views of their results, to their first readers.  Waits with one reader keep their order."""
    waited: dict[fx.Node, None] = {}
    for node in graph.nodes:
        parent = view_parent(node)
        if process_groups.name_of(node.target) in process_groups.WAITS or (parent and parent[0] in waited):
            waited[node] = None
    place = {node: k for k, node in enumerate(graph.nodes)}
    first: dict[fx.Node, fx.Node] = {}
    for node in reversed([n for n in graph.nodes if n in waited]):
        readers = [first.get(u, u) for u in node.users]  # a view that moves is read where it will be
        if readers and node not in gradients:
            first[node] = min(readers, key=place.__getitem__)
    for node in waited:
        if node in first:
            first[node].prepend(node)
