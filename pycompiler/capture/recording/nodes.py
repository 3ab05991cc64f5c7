"""Queries on the nodes of a captured graph: operands and results during capture, calls at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from pycompiler.ir import higher_order
from pycompiler.ir.node_effects import effects_of
from pycompiler.operators.kernel_type_checks import memory_of, tensors_of

CREATES_OBJECT = "made"
"""Marks a node that creates an object.  A call that takes the object has the node's arguments as its operands."""


def version_of(node: fx.Node) -> int | None:
    """The number of in-place writes to the node's tensor; None for an inference tensor, which does not count them."""
    fake = node.meta["example_value"]
    return None if fake.is_inference() else fake._version


def examples(nodes: Iterable[fx.Node]) -> list[Any]:
    """The nodes' fake tensors or other example values."""
    return [n.meta["example_value"] for n in nodes]


def name_of(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def has_tensor(result: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return True
    if isinstance(result, (tuple, list)):
        return any(has_tensor(r) for r in result)
    if isinstance(result, dict):
        return any(has_tensor(r) for r in result.values())
    return False


def operands_of(nodes: Any, knodes: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg((nodes, knodes), found.append)
    return [n for node in found for n in (operands_of(node.args, {}) if CREATES_OBJECT in node.meta else [node])]


def is_user_call(node: fx.Node) -> bool:
    """Whether the program makes this call: getitem nodes of its results and size computations do not count."""
    return "user" in node.meta and node.op in ("call_function", "call_method")


def remove_dead(graph: fx.Graph, *, unused: bool = False) -> None:
    """Remove nodes without users and effects.  `unused`: keep the program's calls."""
    for node in reversed(list(graph.nodes)):
        if node.op == "placeholder" or node.op == "output" or node.users:
            continue
        # A node that wrote anything may have written an argument, even if no version shows it.
        did = effects_of(node)
        if not (did.mutates or did.acts or did.wrote or (unused and is_user_call(node))):
            graph.erase_node(node)


def op_count(graph: fx.Graph) -> int:
    return sum(1 for n in graph.nodes if n.op == "call_function")


def has_effects(graph: fx.Graph) -> bool:
    """Whether a call must run although none of its results is returned.  Changes of global state do not count."""
    given: set[int] = set()
    """Memory of inputs.  Only the memory shows a write through an alias with its own version counter (`x.data[0] = 1`)."""
    for n in graph.nodes:
        if n.op == "placeholder":
            given |= _memories(n)
        elif n.op not in ("call_function", "call_method"):
            continue
        elif (did := effects_of(n)).acts:
            return True
        elif did.mutates or did.wrote:
            unread = did.mutates and isinstance(n.meta["example_value"], torch.Tensor) and not n.users
            if unread or any(_memories(operand) & given for operand in n.all_input_nodes):
                return True
    return False


def _memories(node: fx.Node) -> set[int]:
    return {memory_of(t) for t in tensors_of(node.meta.get("example_value")) if t.layout is torch.strided}


def computes(graph: fx.Graph) -> bool:
    """Whether the graph contains a call of the program."""
    return any(map(is_user_call, graph.nodes))


def dependents_of(graph: fx.Graph, starts: list[fx.Node]) -> dict[fx.Node, int]:
    """For each node, the set of these calls that it depends on, as bits.  A hook's call counts where its tensor goes."""
    found: dict[fx.Node, int] = {}
    for k, call in enumerate(starts):
        first = call.args[1] if call.target is higher_order.register_gradient_hook else call
        assert isinstance(first, fx.Node)
        found[first] = found.get(first, 0) | 1 << k
    for node in graph.nodes if found else ():
        bits = found.get(node, 0)
        for n in node.all_input_nodes:
            bits |= found.get(n, 0)
        if bits:
            found[node] = bits
    return found
