"""Copies of graphs, for compilers that may change the graph that they are given.

In: a GraphModule.  Out: another one with nodes of its own; nested graphs (bodies of checkpoints, sides of `cond`) are copied
too.  Tensors, fakes and other constants are shared.
Example: `backend(copied(gm), examples)`, after which `gm` is what was captured.
"""

from __future__ import annotations

from torch import fx

from pycompiler.ir.texts import drop_text_with


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """The copy; a graph that is nested at several places is one graph in the copy, too."""
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
    drop_text_with(made)
    for name, inner in list(made.named_modules(remove_duplicate=False)):
        if isinstance(inner, fx.GraphModule) and inner is not made and inner not in known.values():
            holder, _, last = name.rpartition(".")
            setattr(made.get_submodule(holder), last, _copied(inner, known))
    return made
