"""What the nodes of a captured graph tell: of operands and results while it is made, of its calls when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from pycompiler.ir import transforms
from pycompiler.ir.kernels import memory_of, tensors_of

MADE = "made"
"""Marks a node that makes an object: what it is made of are the operands of whoever takes it."""


def version_of(node: fx.Node) -> int | None:
    """How often the node's tensor was changed; None for an inference tensor, which does not count."""
    fake = node.meta["example_value"]
    return None if fake.is_inference() else fake._version


def examples(nodes: Iterable[fx.Node]) -> list[Any]:
    """The fakes that nodes are."""
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
    return [n for node in found for n in (operands_of(node.args, {}) if MADE in node.meta else [node])]


def is_programs(node: fx.Node) -> bool:
    """Whether it is a call that the program makes: not the parts of its result, or numbers made of sizes."""
    return "user" in node.meta and node.op in ("call_function", "call_method")


def remove_dead(graph: fx.Graph, *, unused: bool = False) -> None:
    """Remove what nobody reads and has no effect; `unused`: but calls of the program."""
    for node in reversed(list(graph.nodes)):
        if node.op == "placeholder" or node.op == "output" or node.users:
            continue
        # What wrote anything, though no version tells of what, may have written an argument.
        effects = node.meta.get("mutates") or node.meta.get("acts") or node.meta.get("wrote")
        if not (effects or (unused and is_programs(node))):
            graph.erase_node(node)


def op_count(graph: fx.Graph) -> int:
    return sum(1 for n in graph.nodes if n.op == "call_function")


def has_effects(graph: fx.Graph) -> bool:
    """Whether a call must run although nothing of it is returned (changes of global state aside)."""
    given: set[int] = set()
    """Memories from outside: a write through an alias that counts its own versions (`x.data[0] = 1`) is seen by them alone."""
    for n in graph.nodes:
        if n.op == "placeholder":
            given |= _memories(n)
        elif n.op not in ("call_function", "call_method"):
            continue
        elif n.meta.get("acts"):
            return True
        elif n.meta.get("mutates") or n.meta.get("wrote"):
            unread = n.meta["mutates"] and isinstance(n.meta["example_value"], torch.Tensor) and not n.users
            if unread or any(_memories(operand) & given for operand in n.all_input_nodes):
                return True
    return False


def _memories(node: fx.Node) -> set[int]:
    return {memory_of(t) for t in tensors_of(node.meta.get("example_value")) if t.layout is torch.strided}


def computes(graph: fx.Graph) -> bool:
    """Whether the program calls anything."""
    return any(map(is_programs, graph.nodes))


def reached_from(graph: fx.Graph, starts: list[fx.Node]) -> dict[fx.Node, int]:
    """Of each node, which of these calls lead to it, as bits; a hook's call leads where its tensor does."""
    found: dict[fx.Node, int] = {}
    for k, call in enumerate(starts):
        first = call.args[1] if call.target is transforms.hooked else call
        assert isinstance(first, fx.Node)
        found[first] = found.get(first, 0) | 1 << k
    for node in graph.nodes if found else ():
        bits = found.get(node, 0)
        for n in node.all_input_nodes:
            bits |= found.get(n, 0)
        if bits:
            found[node] = bits
    return found
