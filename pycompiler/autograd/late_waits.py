"""Waits for functional collectives, moved to their first readers: the collective runs beneath the work between.

In: a joint graph.  Out: the same graph in another order.
Example: for ``h = wait(all_reduce(x)); y = x @ w; return h + y`` the wait comes after the product.

No operator between reads the result or writes the arguments: the graph is functional.  Waits that nobody reads stay.
"""

from __future__ import annotations

from torch import fx

from pycompiler.autograd.views import view_parent
from pycompiler.operators import process_groups


def wait_late(graph: fx.Graph) -> None:
    """Move waits, and views of their results, to their first readers."""
    waited: set[fx.Node] = set()
    for node in graph.nodes:
        parent = view_parent(node)
        if process_groups.name_of(node.target) in process_groups.WAITS or (parent and parent[0] in waited):
            waited.add(node)
    for node in reversed([n for n in graph.nodes if n in waited]):
        if node.users:
            min(node.users).prepend(node)  # nodes are compared by their places
