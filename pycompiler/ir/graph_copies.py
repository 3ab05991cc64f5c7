"""Copies of graphs, for compilers that may change the graph they receive.

In: a GraphModule.  Out: another GraphModule with nodes of its own.
Nested graphs (bodies of checkpoints, branches of `cond`) are copied too.  Tensors, fake tensors and other constants are shared.

Example: after `backend(copied(gm), examples)`, `gm` is still the captured graph.
"""

from __future__ import annotations

from torch import fx

from pycompiler.ir.generated_source import drop_source_when_freed


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """The copy.  A graph that is nested at several places is also one graph in the copy."""
    return _copied(gm, {})


def _copied(gm: fx.GraphModule, known: dict[int, fx.GraphModule]) -> fx.GraphModule:
    if id(gm) in known:
        return known[id(gm)]
    graph = fx.Graph()
    place: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        place[node] = graph.node_copy(node, place.__getitem__)
    made = known[id(gm)] = fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    made.meta.update(gm.meta)
    drop_source_when_freed(made)
    for name, inner in list(made.named_modules(remove_duplicate=False)):
        if isinstance(inner, fx.GraphModule) and inner is not made and inner not in known.values():
            holder, _, last = name.rpartition(".")
            setattr(made.get_submodule(holder), last, _copied(inner, known))
    return made
