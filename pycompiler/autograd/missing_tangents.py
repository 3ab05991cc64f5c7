"""Backward graphs for calls in which only some outputs got a gradient.

In: a backward graph and its undefined tangents. Out: the graph without them, and the results that are then undefined too.

Example: for ``a, b = x.sqrt(), x * 2`` with a gradient for `b` only, the gradient of `x` is twice that gradient. A
gradient of zeros for `a` would add ``0 / 0`` where `x` is 0.  It would also give a zero gradient to inputs that eager
leaves without one.

A backward graph is linear in its tangents: a value that depends only on undefined tangents is undefined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.recorder import is_probably_dense
from pycompiler.autograd.views import view_root
from pycompiler.symbolic.number_nodes import Numbers, symbol_of
from pycompiler.symbolic.symbols import expr_of, hint_of

aten = torch.ops.aten


def without(module: fx.GraphModule, tangents: int, missing: Collection[int]) -> tuple[Numbers, list[fx.Node | None]]:
    """The graph of `module` without the tangents `missing`, and without an output.

    `tangents`: how many of the last placeholders are tangents.  Returns the graph, in `numbers`, and for each result
    its node there, or None if it is undefined.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    last = placeholders[len(placeholders) - tangents :]
    cut = _ReducedGraph({last[k] for k in missing}, set(last))
    for node in module.graph.nodes:
        if node.op != "output":
            cut.copy(node)
    results: Any = module.graph.output_node().args[0]
    return cut.numbers, cut.apart(results)


class _ReducedGraph:
    def __init__(self, undefined: set[fx.Node], dependent: set[fx.Node]) -> None:
        self.graph = fx.Graph()
        self.numbers = Numbers(self.graph, {})
        self.env: dict[fx.Node, fx.Node] = {}
        self.undefined = undefined
        self.dependent = dependent  # nodes that depend on a tangent
        self.sums: set[fx.Node] = set()  # nodes that are sums in the old graph and one of their terms here

    def copy(self, node: fx.Node) -> None:
        if node in self.undefined:
            return
        if node.op == "placeholder" and (symbol := symbol_of(node.meta["val"])) is not None:
            self.env[node] = self.graph.node_copy(node)
            self.numbers.symbols[symbol] = self.env[node]
            return
        reads = [a for a in node.all_input_nodes if a in self.dependent]
        if reads:
            self.dependent.add(node)
            if all(a in self.undefined for a in reads):
                self.undefined.add(node)
                return
        rest = self._sum_without(node)
        if rest is not None:
            self.sums.add(node)
        self.env[node] = self.graph.node_copy(node, self._read) if rest is None else self.env[rest]

    def apart(self, results: Sequence[fx.Node]) -> list[fx.Node | None]:
        """Results in the new graph.

        A result that was a sum had memory of its own.  If only one term is left, it is copied where the term is a
        tangent, or shares memory with another result (`trace.gradient_memory`).
        """
        found = [None if n in self.undefined else self.env[n] for n in results]
        of_sums = [view_root(n) in self.sums for n in results]
        taken = {
            view_root(made) for made, is_sum in zip(found, of_sums, strict=True) if made is not None and not is_sum
        }
        for k, made in enumerate(found):
            if made is None or not of_sums[k]:
                continue
            root = view_root(made)
            if root.op == "placeholder" or root in taken:
                found[k] = self._copied(made)
            taken.add(root)
        return found

    def _copied(self, node: fx.Node) -> fx.Node:
        copy = self.graph.call_function(aten.clone.default, (node,), {})
        copy.meta.update({**node.meta, "val": node.meta["val"].clone()})
        return copy

    def _sum_without(self, node: fx.Node) -> fx.Node | None:
        """The other term of a sum with an undefined term: such a sum joins gradients of one value."""
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            return None
        a, b = node.args
        if not (isinstance(a, fx.Node) and isinstance(b, fx.Node)) or not (a in self.undefined or b in self.undefined):
            return None
        rest = b if a in self.undefined else a
        return rest if _layout(rest.meta["val"]) == _layout(node.meta["val"]) else None

    def _read(self, node: fx.Node) -> fx.Node:
        if node not in self.undefined:
            return self.env[node]
        return zeros(self.numbers, node.meta["val"])


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, *map(expr_of, (*t.shape, *t.stride()))


def zeros(numbers: Numbers, value: torch.Tensor) -> fx.Node:
    """Zeros with the layout of `value`."""
    graph = numbers.graph
    order = list(range(value.dim()))
    if is_probably_dense(value):
        order.sort(key=lambda d: (-hint_of(value.stride()[d]), d))
    shape = numbers.arguments([value.shape[d] for d in order])
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    made = graph.call_function(aten.full.default, (shape, 0), options)
    made.meta["val"] = torch.empty_like(value).permute(order).contiguous()
    if order == list(range(value.dim())):
        return made
    made = graph.call_function(aten.permute.default, (made, [order.index(d) for d in range(value.dim())]), {})
    made.meta["val"] = value
    return made
