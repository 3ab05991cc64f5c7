"""Copies of graphs: a copy has its own nodes, in nested graphs too, and shares the values."""

from __future__ import annotations

import torch
from torch import fx

from pycompiler.ir.graph_copies import copied


def nested() -> fx.GraphModule:
    body = fx.symbolic_trace(lambda x: torch.relu(x))
    graph = fx.Graph()
    x = graph.placeholder("x")
    first, second = (graph.call_module(name, (x,)) for name in ("body", "again"))
    weight = graph.get_attr("weight")
    graph.output((graph.call_function(torch.add, (first, second)), graph.call_function(torch.mul, (x, weight))))
    root = {"body": body, "again": body, "weight": torch.ones(3)}
    made = fx.GraphModule(root, graph, class_name="CapturedGraph")
    made.meta["kept"] = "a"
    for node in made.graph.nodes:
        node.meta["user"] = node.name
    return made


def test_changes_of_the_copy_are_none_of_the_graph() -> None:
    gm, x = nested(), torch.tensor([-1.0, 0.0, 2.0])
    want = gm(x)
    copy = copied(gm)
    assert type(copy).__name__ == "CapturedGraph" and copy.meta["kept"] == "a"
    assert [(n.name, n.meta["user"]) for n in copy.graph.nodes] == [(n.name, n.meta["user"]) for n in gm.graph.nodes]
    assert copy.weight is gm.weight and copy.body is copy.again and copy.body is not gm.body
    for graph in (copy, copy.body):
        for node in graph.graph.nodes:
            node.meta["seen"] = True
            if node.target is torch.relu:
                node.target = torch.sigmoid
            elif node.target is torch.mul:
                node.target = torch.sub
        graph.recompile()
    assert not any("seen" in n.meta for n in gm.graph.nodes)
    for seen, wanted, changed in zip(gm(x), want, copy(x), strict=True):
        assert torch.equal(seen, wanted) and not torch.equal(changed, wanted)
