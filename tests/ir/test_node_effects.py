"""The record of a call's effects on each node of a captured graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

import pycompiler
from pycompiler.ir.node_effects import NodeEffects, effects_of


def captured(fn: Any, *args: Any) -> fx.Graph:
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, examples: Any) -> Any:
        graphs.append(gm)
        return gm

    pycompiler.compile(fn, backend=keep)(*args)
    (gm,) = graphs
    return gm.graph


def test_records_of_calls() -> None:
    def program(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        noise = torch.rand(3)
        return x.sin()[rows] + noise

    graph = captured(program, torch.ones(3), torch.tensor([0, 2, 1]))
    found = {str(n.target): effects_of(n) for n in graph.nodes}
    assert found["add_"] == NodeEffects(mutates=True, wrote=True, lasts=True)
    assert found["sin"] == NodeEffects(mutates=False, lasts=False)
    assert found[str(torch.rand)].draws and found[str(torch.rand)].lasts
    read = next(effects for name, effects in found.items() if "getitem" in name)
    assert read.refuses and not read.mutates


def test_a_node_without_a_record_is_unknown() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert effects_of(x) == NodeEffects() and effects_of(x).mutates is None and effects_of(x).lasts is None


def test_copies_of_a_graph_keep_the_records() -> None:
    graph = captured(lambda x: x.mul_(2).sin(), torch.ones(3))
    copy = fx.Graph()
    copy.graph_copy(graph, {})
    assert [effects_of(n) for n in copy.nodes] == [effects_of(n) for n in graph.nodes if n.op != "output"]
