"""Waits for collectives and their places in a joint graph."""

from __future__ import annotations

import torch
from torch import fx

from pycompiler.autograd.late_waits import wait_late

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


def collective(graph: fx.Graph, x: fx.Node, name: str) -> fx.Node:
    sum_of = graph.create_node("call_function", c10d.all_reduce.default, (x, "sum", "0"), name=f"{name}_sum")
    return graph.create_node("call_function", c10d.wait_tensor.default, (sum_of,), name=name)


def order(graph: fx.Graph) -> list[str]:
    return [n.name for n in graph.nodes if n.op == "call_function" and not n.name.endswith("_sum")]


def test_waits_with_one_reader_keep_their_order() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first, second = collective(graph, x, "first"), collective(graph, x, "second")
    work = graph.create_node("call_function", aten.sin.default, (x,), name="work")
    graph.output((graph.create_node("call_function", aten.cat.default, ([first, second],), name="both"), work))
    wait_late(graph, set())
    assert order(graph) == ["work", "first", "second", "both"]


def test_results_are_waited_for_last_and_gradients_where_they_are() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = collective(graph, x, "result")
    gradient = collective(graph, x, "gradient")
    work = graph.create_node("call_function", aten.sin.default, (x,), name="work")
    graph.output((result, gradient, work))
    wait_late(graph, {gradient, None})
    assert order(graph) == ["gradient", "work", "result"]


def test_a_view_that_is_a_gradient_stays_and_its_wait_comes_before_it() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    wait = collective(graph, x, "wait")
    work = graph.create_node("call_function", aten.sin.default, (x,), name="work")
    view = graph.create_node("call_function", aten.view.default, (wait, [-1]), name="view")
    more = graph.create_node("call_function", aten.cos.default, (work,), name="more")
    graph.output((view, more))
    wait_late(graph, {view})
    assert order(graph) == ["work", "wait", "view", "more"]


def test_a_wait_without_readers_stays() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    collective(graph, x, "alone")
    graph.output(graph.create_node("call_function", aten.sin.default, (x,), name="work"))
    wait_late(graph, set())
    assert order(graph) == ["alone", "work"]
