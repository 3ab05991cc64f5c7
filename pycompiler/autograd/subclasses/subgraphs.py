"""Parts of a graph that a trace below the tensor subclasses has recorded (`tape.py`).

In: the graph, and its nodes that are inputs and results of the part.  Out: captured graphs of plain tensors, and the
values that a backward reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from pycompiler.autograd.subclasses.inner_tensors import storage_of
from pycompiler.operators.operator_facts import drops_nothing, facts_of
from pycompiler.operators.result_strides import layouts


def results_of(graph: fx.GraphModule | fx.Graph) -> Sequence[fx.Node]:
    graph = graph if isinstance(graph, fx.Graph) else graph.graph
    return graph.output_node().args[0]  # type: ignore[return-value]


def is_write(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def takes_numbers(node: fx.Node) -> bool:
    return facts_of(node.target).draws and not drops_nothing(node.target, node.args, node.kwargs)


def part_of(
    traced: fx.Graph, given: Sequence[fx.Node], results: Sequence[fx.Node], needed: Sequence[fx.Node] = ()
) -> fx.GraphModule:
    """The captured graph that computes `results` from `given`; unused nodes are left out, except `needed`."""
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}

    def known(node: fx.Node, new: fx.Node) -> None:
        value = node.meta["val"]
        env[node] = new
        new.meta = {"example_value": value, "strides": layouts(value), "user": ()}

    wanted = ancestors_of([*results, *needed], given)
    for node in given:
        known(node, made.placeholder(node.name))
    for node in traced.nodes:
        if node in wanted and node not in env:
            known(node, made.node_copy(node, env.__getitem__))
    made.output(tuple(env[n] for n in results))
    return fx.GraphModule({}, made, class_name="CapturedGraph")


def ancestors_of(results: Sequence[fx.Node], given: Sequence[fx.Node] = ()) -> set[fx.Node]:
    """The nodes that `results` are computed from, down to `given`, including `results`."""
    found, todo = set[fx.Node](), [*results]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [] if node in given else node.all_input_nodes
    return found


def memory_of(node: fx.Node) -> int | None:
    value = node.meta["val"]
    return storage_of(value) if isinstance(value, torch.Tensor) else None


def values_read_by_backward(
    grads: Sequence[fx.Node], ahead: set[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> tuple[set[fx.Node], list[fx.Node]]:
    """The values that a backward reads: inputs and outputs, and other values of the forward, which are saved.

    Views are recomputed.
    """
    read, saved, seen, todo = set[fx.Node](), dict[fx.Node, None](), set[fx.Node](), [*grads]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        memory = memory_of(node)
        if node in inputs or node in outputs:
            read.add(node)
        elif node not in ahead or memory is None or any(memory_of(n) == memory for n in node.all_input_nodes):
            todo += node.all_input_nodes
        else:
            saved[node] = None
    return read, [*saved]
