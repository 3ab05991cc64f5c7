"""Split a joint graph into a forward and a backward graph.

In: a `Joint`. Out: a `Partition`: two graph modules and the list of values that travel between them.

Example: for ``y = relu(x @ w)`` the backward reads ``x``, ``w`` and ``y``; the forward returns ``y`` once, as output
and as saved value.

A *cut* is a set of forward values from which every gradient can be computed. `default_cut` takes the values that the
backward reads.  `min_cut` takes the set of fewest bytes: it recomputes cheap operators (pointwise, views, casts), never
dear ones. Values that depend on tangents belong to the backward; all others can be computed in either graph. A cut never
saves a tuple: its elements are saved one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

from pycompiler.autograd import missing_tangents
from pycompiler.autograd.joint import Joint, drop_dead
from pycompiler.autograd.maxflow import INFINITE, FlowNetwork
from pycompiler.autograd.recompute import (
    SMALL,
    decides,
    float_operands,
    is_cheap,
    is_exact,
    recompute_cost,
    size_bytes,
)
from pycompiler.autograd.recorder import is_dense, is_probably_dense, overlaps_itself
from pycompiler.autograd.views import view_parent, view_root
from pycompiler.operators.operator_facts import facts_of, node_stays
from pycompiler.symbolic.number_nodes import Numbers, symbol_of

aten = torch.ops.aten


@dataclass
class Partition:
    """`forward` returns the fresh outputs, then further saved values; `backward` takes the saved values, then the tangents.

    saved: for each value that travels, ``("input", i)`` (input i of the forward) or ``("output", i)`` (its output i).
    grads: for each input, then each cut, None or the place of its gradient.  The place is ``("result", i)`` of the
    backward, or ``("tangent", k)`` or ``("saved", j)`` if it is one of the backward's own inputs, which then needs no output.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: list[tuple[str, int]]
    saved_nodes: list[fx.Node]
    grads: list[tuple[str, int] | None]
    taken: list[int] | None = None


def partition(joint: Joint, how: str = "min_cut", budget: float = 1.0) -> Partition:
    """Cut `joint` in two. `how` is "min_cut" or "default"; `budget` in [0, 1] is the share of activation memory to save."""
    if how not in ("min_cut", "default"):
        raise ValueError(f"partition must be 'min_cut' or 'default', not {how!r}")
    if not 0.0 <= budget <= 1.0:
        raise ValueError(f"activation_memory_budget must be within [0, 1], not {budget!r}")
    apart: frozenset[tuple[str, int]] = frozenset()
    while True:
        region = BackwardRegion(joint, apart)
        cut = region.default_cut() if how == "default" else region.budget_cut(budget)
        part = _extract(joint, region, _save_owners(joint, region, cut))
        more = _saved_unlike_eager(joint, part) - apart
        if not more:
            return part
        apart |= more


class BackwardRegion:
    """The backward nodes of a joint graph (nodes that depend on a tangent), and cuts through the rest.

    apart: the caller's tensors that eager saves for some tangents only, and that the backward of other tangents would read.
    """

    def __init__(self, joint: Joint, apart: frozenset[tuple[str, int]] = frozenset()) -> None:
        self.joint = joint
        self.grads = [g for g in joint.grads if g is not None]
        self.backward: set[fx.Node] = set(joint.tangents)
        for node in joint.graph.nodes:
            if node.op == "call_function" and any(a in self.backward for a in node.all_input_nodes):
                self.backward.add(node)
        self.inputs = set(joint.inputs)
        self.bound = bound_symbols(joint)
        self.results = {*joint.fresh, *(value for _, value in joint.stores)}
        self.checkpointed = self._checkpointed()
        kept, new = joint.kept() - apart, joint.fresh[: len(joint.mutations)]
        self.written = _mutated(joint)
        self.kept_outputs = {n for k, n in enumerate(joint.fresh) if ("fresh", k) in kept}
        self.itself_inputs = {
            n
            for i, n in enumerate(joint.inputs)
            if n not in self.written and (("input", i) in kept or not is_copied(n))
        }
        self.itself_outputs = {n for n in joint.fresh if n in self.kept_outputs or n in new or not is_copied(n)}
        self.itself_roots = {view_root(n) for n in (*self.itself_inputs, *self.itself_outputs)}
        self.loose = {view_root(n) for n in (*joint.inputs, *joint.fresh)} - self.itself_roots
        self.late = self._late()
        self.decisions = self._decisions()
        live = ancestors(self.grads)
        # Forward values that the backward reads: the sinks of every cut.
        reads = {a: None for n in joint.graph.nodes if n in live and n in self.backward for a in n.all_input_nodes}
        reads.update(dict.fromkeys(self.grads))
        self.reads = [n for n in reads if n not in self.backward]
        self.live = ancestors(self.reads)

    def default_cut(self) -> list[fx.Node]:
        """The values that the backward reads, without views of values that are saved themselves."""
        if self.checkpointed or self.late:
            again = self.checkpointed | self.late
            return self.min_cut({n for n in self.live if n.op == "call_function"} - again)
        return [n for n in self.reads if n.op != "get_attr"]

    def budget_cut(self, budget: float) -> list[fx.Node]:
        """The smallest cut for a share of the activation memory that a plain min-cut saves.

        1 saves dear operators' results; 0 recomputes everything except random numbers.  In between, operators are
        released in the order of their recompute cost per byte until the bytes fit. More budget never saves fewer bytes.
        """
        dear = [n for n in self.joint.graph.nodes if n in self.live and self._is_dear(n)]
        cut = self.min_cut(set(dear))
        if budget >= 1.0:
            return cut
        keep = {n for n in dear if facts_of(n.target).ordered or self.reaches_out(n)}
        releasable = sorted((n for n in dear if n not in keep), key=recompute_cost)
        most, least = self.cost(cut), self.cost(self.min_cut(keep))
        target = least + budget * (most - least)
        low, high = 0, len(releasable)
        while low < high:
            middle = (low + high) // 2
            if self.cost(self.min_cut(keep | set(releasable[middle:]))) <= target:
                high = middle
            else:
                low = middle + 1
        return self.min_cut(keep | set(releasable[low:]))

    def min_cut(self, dear: set[fx.Node]) -> list[fx.Node]:
        """The cheapest cut that recomputes no node of `dear`; among several, the one nearest to the backward."""
        nodes = [n for n in self.joint.graph.nodes if n in self.live]
        index = {n: i for i, n in enumerate(nodes)}
        network = FlowNetwork(2 * len(nodes) + 2)
        source, sink = 2 * len(nodes), 2 * len(nodes) + 1
        for n, i in index.items():
            if n in dear or n in self.inputs or n in self.bound:
                network.edge(source, 2 * i + 1, self._save_cost(n))  # must be saved, if the backward needs it at all
                continue
            network.edge(2 * i, 2 * i + 1, self._save_cost(n))
            for a in n.all_input_nodes:
                network.edge(2 * index[a] + 1, 2 * i, INFINITE)
        for n in self.reads:
            network.edge(2 * index[n] + 1, sink, INFINITE)
        reaching = network.min_cut_sink_side(source, sink)
        forced = dear | self.inputs | set(self.bound)
        return [n for n, i in index.items() if 2 * i + 1 in reaching and (n in forced or 2 * i not in reaching)]

    def _late(self) -> set[fx.Node]:
        """Forward nodes that must be computed in the backward.

        First, values that eager's nodes compute in the backward from saved results, with the new values if these were
        written behind the version counter (`.data`).  Second, gradients that depend on no tangent: later gradients are
        added to them in place.
        """
        roots = {view_root(n) for n in self.kept_outputs}
        own = {view_root(g) for g in self.grads}
        own |= {n.args[0] for n in own if n.target is operator.getitem}  # type: ignore[misc]
        found: set[fx.Node] = set()
        for n in self.joint.graph.nodes:
            if "gradient" not in n.meta or n.op != "call_function" or n in self.backward or facts_of(n.target).ordered:
                continue
            if n in own or any(a in found or view_root(a) in roots for a in n.all_input_nodes):
                found.add(n)
        return found

    def _decisions(self) -> set[fx.Node]:
        """Comparisons and similar decisions on rounded floats.

        The backward takes the forward's decision: a recomputed value must not be compared again.
        """
        settled: dict[fx.Node, bool] = {}
        found: set[fx.Node] = set()
        for n in self.joint.graph.nodes:
            known = all(settled[a] for a in float_operands(n))
            settled[n] = n.op != "call_function" or not is_cheap(n) or (is_exact(n) and known)
            if not known and n not in self.backward and decides(n):
                found.add(n)
        return found

    def compared_anyway(self, n: fx.Node, cut: Set[fx.Node]) -> bool:
        """Whether all operands of the decision `n` are in the cut, or are exact functions of values in it."""
        work = float_operands(n)
        while work:
            a = work.pop()
            if a in cut or (a.op == "get_attr"):
                continue
            if a.op != "call_function" or not is_exact(a) or not a.all_input_nodes:
                return False
            work += a.all_input_nodes
        return True

    def _checkpointed(self) -> set[fx.Node]:
        """Values that only the inside of a checkpoint reads, which the backward recomputes.

        Excluded are random numbers, masks (small, and possibly computed from random numbers), and values saved by the policy.
        """
        found: set[fx.Node] = set()
        for n in self.joint.graph.nodes:
            region, value = n.meta.get("again"), n.meta.get("val")
            # depends on no tangent, but is part of a gradient
            gradient = "gradient" in n.meta and any(a in found for a in n.all_input_nodes)
            if (region is None and not gradient) or n in self.backward or n in self.results or _is_drawn(n):
                continue
            if "saved" in n.meta or self.reaches_out(n) or not isinstance(value, (torch.Tensor, tuple, list)):  # a size
                continue
            if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
                continue
            if gradient or all(u.meta.get("again") == region or "gradient" in u.meta for u in n.users):
                found.add(n)
        return found

    def _is_dear(self, n: fx.Node) -> bool:
        return (
            self.reaches_out(n)
            or n.op == "call_function"
            and (not is_cheap(n) or n in self.decisions)
            and n not in self.checkpointed
            and n not in self.late
        )

    def reaches_out(self, n: fx.Node) -> bool:
        """Whether `n` views by strides the storage of an input that is saved as a copy; the copy has no such storage."""
        return n.target is aten.as_strided.default and view_root(n) in self.loose

    def _save_cost(self, n: fx.Node) -> int:
        value = n.meta.get("val")
        if n.op == "get_attr" or n in self.bound:
            return 0
        if n in self.checkpointed or n in self.late:
            return INFINITE
        if n in self.kept_outputs:
            return 0  # alive anyway, and eager saves it too
        if n in self.itself_inputs or n in self.written:
            return 1  # alive anyway, or needed by a second derivative
        if not isinstance(value, torch.Tensor):
            return INFINITE  # a tuple: only its elements can be saved
        if view_root(n) in self.itself_roots:
            return size_bytes(n) + 2  # written anyway, only kept alive for longer
        if view_root(n) in self.loose:
            return 3 * size_bytes(n) + 3  # a copy
        return 2 * size_bytes(n) + 2

    def cost(self, cut: Iterable[fx.Node]) -> int:
        """The cost of `cut` beyond the tensors that eager saves: twice its bytes, more for copies."""
        return sum(self._save_cost(n) for n in cut if n not in self.itself_inputs and size_bytes(n))


def _is_drawn(n: fx.Node) -> bool:
    """Whether `n` is a call that must run only once, or one of its results."""
    if n.target is operator.getitem and isinstance(n.args[0], fx.Node):
        return facts_of(n.args[0].target).ordered
    return facts_of(n.target).ordered


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(n.all_input_nodes)
    return found


def _save_owners(joint: Joint, region: BackwardRegion, cut: Iterable[fx.Node]) -> list[fx.Node]:
    """Save the owner of the storage instead of a view if it costs nothing; drop decisions whose operands are saved."""
    kept = set(cut)
    cut = [n for n in cut if n not in region.decisions or not region.compared_anyway(n, kept - region.decisions)]
    chosen = dict.fromkeys(n for n in cut if n not in region.bound)
    result: dict[fx.Node, None] = {}
    for n in chosen:
        root = n
        while (parent := view_parent(root)) is not None and not region.reaches_out(root):
            root = parent[0]
        itself = root in region.itself_inputs or root in region.itself_outputs
        free = itself or root in chosen or size_bytes(root) <= size_bytes(n)
        free |= root in region.loose and not is_dense(n.meta["val"])  # the copy of the root keeps its layout
        result[root if free else n] = None
    return [n for n in result if n.op != "get_attr"]


# -- graphs -----------------------------------------------------------------------------------------------------------


def _extract(joint: Joint, region: BackwardRegion, cut: list[fx.Node]) -> Partition:
    """Forward: all that the outputs and the cut need. Backward: all that the gradients need, back to the cut."""
    input_index = {n: i for i, n in enumerate(joint.inputs)}
    output_index = {n: i for i, n in enumerate(joint.fresh)}
    owner_of = {view_root(n): n for n in joint.fresh if n in region.itself_outputs}
    fw, bw = _forward(joint, region.backward, [*cut, *region.bound]), _CopyBuilder(joint)
    outputs = [fw.no_view(n) for n in joint.fresh]
    saved: dict[fx.Node, tuple[str, int]] = {n: ("input", input_index[n]) for n in joint.inputs if is_size(n)}
    for n in region.bound:
        outputs.append(fw.env[n])
        saved[n] = ("output", len(outputs) - 1)
    rebuilt: list[tuple[fx.Node, fx.Node]] = []
    for n in sorted(cut, key=lambda n: input_index.get(n, len(input_index))):
        if n in saved:
            continue
        owner = owner_of.get(view_root(n))
        if n in region.itself_inputs:
            saved[n] = ("input", input_index[n])
        elif n in region.itself_outputs:
            saved[n] = ("output", output_index[n])
        elif owner is not None and _same_elements(owner, n):
            # The caller may write to the output; only the version of that very tensor shows it.
            saved[owner] = ("output", output_index[owner])
            rebuilt.append((n, owner))
        else:
            outputs.append(fw.clone(n) if owner is not None or view_root(n) in region.loose else fw.env[n])
            saved[n] = ("output", len(outputs) - 1)
    _store(fw, joint)
    for n in (*saved, *joint.tangents):
        bw.placeholder(n)
    for n, owner in rebuilt:
        bw.rebuild(n, owner)
    bw.emit_with_needs([n for n in joint.graph.nodes if n in region.backward], region.grads)
    where: dict[fx.Node, tuple[str, int]] = {n: ("tangent", k) for k, n in enumerate(joint.tangents)}
    where.update({n: ("saved", j) for j, n in enumerate(saved)})
    results = [g for g in dict.fromkeys(region.grads) if g not in where]
    where.update({g: ("result", i) for i, g in enumerate(results)})
    return Partition(
        forward=fw.finish(outputs),
        backward=bw.finish([bw.env[g] for g in results]),
        saved=list(saved.values()),
        saved_nodes=list(saved),
        grads=[None if g is None else where[g] for g in joint.grads],
    )


def _saved_unlike_eager(joint: Joint, part: Partition) -> frozenset[tuple[str, int]]:
    """The caller's small tensors, saved without a copy, that the backward of some tangent reads although eager does not
    save them for this tangent."""
    if len(joint.paths) < 2:
        return frozenset()
    nodes = [n for n in part.backward.graph.nodes if n.op != "output"]
    placeholders = [n for n in nodes if n.op == "placeholder"]
    flows = dict.fromkeys(nodes, 0)  # bits of the tangents whose gradients a node computes
    flows.update((n, 1 << k) for k, n in enumerate(placeholders[len(part.saved) :]))
    for n in nodes:
        for a in n.all_input_nodes:
            flows[n] |= flows[a]
    takers, results = dict(flows), list(part.backward.graph.output_node().args[0])  # type: ignore[arg-type]
    for i, g in enumerate(part.grads):  # gradients that depend on no tangent still belong to some tangents
        if g is not None and g[0] == "result":
            takers[results[g[1]]] |= sum(1 << k for k, path in enumerate(joint.paths) if i in path.given)
    for n in reversed(nodes):
        for user in n.users:
            takers[n] |= takers.get(user, 0) if not flows[n] else takers.get(user, 0) & ~flows.get(user, 0)
    found = set()
    for n, joint_node, (kind, i) in zip(placeholders, part.saved_nodes, part.saved, strict=False):
        if kind == "output" and i >= len(joint.fresh) or not is_copied(joint_node):
            continue
        owner = ("input" if kind == "input" else "fresh", i)
        if any(takers[n] >> k & 1 and owner not in path.kept for k, path in enumerate(joint.paths)):
            found.add(owner)
    return frozenset(found)


def without_tangents(joint: Joint, part: Partition, missing: frozenset[int]) -> Partition:
    """`part` with the backward for calls in which the tangents `missing` are undefined; it takes only the others."""
    numbers, results = missing_tangents.without(part.backward, len(joint.tangents), missing)
    graph = numbers.graph
    reached = frozenset[int]().union(*(p.given for k, p in enumerate(joint.paths) if k not in missing))
    kept: dict[fx.Node, int] = {}
    grads: list[tuple[str, int] | None] = []
    for i, g in enumerate(part.grads):
        joint_node = joint.grads[i]
        if g is None or joint_node is None or i not in reached:
            grads.append(None)
        elif g[0] == "result" or (g[0] == "tangent" and g[1] in missing):
            node = results[g[1]] if g[0] == "result" else None
            node = missing_tangents.zeros(numbers, joint_node.meta["val"]) if node is None else node
            grads.append(("result", kept.setdefault(node, len(kept))))
        else:
            grads.append(g)
    graph.output(tuple(kept))
    # operators that only raise belong to formulas, here to the formulas of missing tangents
    drop_dead(graph, lambda n: facts_of(n.target).ordered)
    given = {g[1] for g in grads if g is not None and g[0] == "saved"}
    taken = []
    for j, node in enumerate([n for n in graph.nodes if n.op == "placeholder"][: len(part.saved)]):
        if node.users or j in given or not isinstance(node.meta["val"], torch.Tensor):
            taken.append(j)
        else:
            graph.erase_node(node)
    place = {j: new for new, j in enumerate(taken)}
    return Partition(
        forward=part.forward,
        backward=graph_module(graph, joint.constants),
        saved=[part.saved[j] for j in taken],
        saved_nodes=[part.saved_nodes[j] for j in taken],
        grads=[("saved", place[g[1]]) if g is not None and g[0] == "saved" else g for g in grads],
        taken=taken,
    )


def forward_only(joint: Joint) -> fx.GraphModule:
    """The forward graph of a joint graph without gradients: returns the fresh outputs.  `meta["inference"]` marks it."""
    fw = _forward(joint, set(joint.tangents), [])
    outputs = [fw.no_view(n) for n in joint.fresh]
    _store(fw, joint)
    module = fw.finish(outputs)
    module.meta["inference"] = True
    return module


def _forward(joint: Joint, backward: set[fx.Node], wanted: Sequence[fx.Node]) -> _CopyBuilder:
    """A graph with the inputs and all nodes that the outputs, `wanted`, stores and random numbers need."""
    fw = _CopyBuilder(joint)
    for n in joint.inputs:
        fw.placeholder(n)
    staying = [n for n in joint.graph.nodes if n not in backward and node_stays(n)]
    fw.emit(ancestors([*joint.fresh, *wanted, *staying, *(value for _, value in joint.stores)]))
    return fw


def _store(fw: _CopyBuilder, joint: Joint) -> None:
    """End a forward graph with the writes into inputs; values that a write would overwrite are copied first."""
    mutated = _mutated(joint)
    values = [fw.clone(v) if view_root(v) in mutated else fw.env[v] for _, v in joint.stores]
    for (index, _), value in zip(joint.stores, values, strict=True):
        target = joint.inputs[index]
        node = fw.graph.call_function(aten.copy_.default, (fw.env[target], value), {})
        node.meta["val"] = target.meta["val"]
        node.meta |= {key: value.meta[key] for key in ("stack_trace", "user") if key in value.meta}


def is_size(n: fx.Node) -> bool:
    """Whether a placeholder is a symbolic size or number.  Every backward gets all of them."""
    return isinstance(n.meta["val"], (torch.SymInt, torch.SymFloat))


def bound_symbols(joint: Joint) -> list[fx.Node]:
    """The unbacked symbols of the forward.  Every backward gets all of them too."""
    return [n for n in joint.graph.nodes if "bound" in n.meta]


def is_copied(n: fx.Node) -> bool:
    """Whether an input or output that eager does not save, and that the caller may write, is saved as a copy.

    Large tensors are saved without a copy: a write before the backward is then an error.
    """
    value = n.meta["val"]
    return isinstance(value, torch.Tensor) and size_bytes(n) <= SMALL and not overlaps_itself(value)


def _mutated(joint: Joint) -> set[fx.Node]:
    return {joint.inputs[i] for i in (*(m.index for m in joint.mutations), *(i for i, _ in joint.stores))}


def _same_elements(owner: fx.Node, n: fx.Node) -> bool:
    """Whether two views of one memory have the same elements in the same order."""
    a, b = owner.meta["val"], n.meta["val"]
    same = a.numel() == b.numel() and a.dtype == b.dtype and a.storage_offset() == b.storage_offset()
    return bool(same and a.is_contiguous() and b.is_contiguous())


class _CopyBuilder:
    """A graph of copies of a joint graph's nodes; `env` maps joint nodes to copies."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.graph = fx.Graph()
        self.numbers = Numbers(self.graph, {})
        self.env: dict[fx.Node, fx.Node] = {}

    def placeholder(self, n: fx.Node) -> None:
        copy = self.graph.placeholder(n.name)
        copy.meta["val"] = n.meta["val"]
        self.env[n] = copy
        if (symbol := symbol_of(n.meta["val"])) is not None:
            self.numbers.symbols[symbol] = copy

    def emit(self, wanted: set[fx.Node]) -> None:
        """Copy `wanted` in the order of the joint graph."""
        for n in self.joint.graph.nodes:
            if n in wanted and n not in self.env:
                self._copy(n)

    def emit_with_needs(self, nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> None:
        """Copy the nodes that `results` need, in order, each after the nodes recomputed for it."""
        live = ancestors(results)
        for n in (*nodes, *results):
            if n not in live or n in self.env:
                continue
            stack = [n]
            while stack:
                top = stack[-1]
                missing = [a for a in top.all_input_nodes if a not in self.env]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                stack.pop()
                if top not in self.env:
                    self._copy(top)

    def clone(self, n: fx.Node) -> fx.Node:
        """A copy of `n` with its layout, gaps included: readers of the copy assume those strides."""
        value = n.meta["val"]
        if is_probably_dense(value):
            copy = self.graph.call_function(aten.clone.default, (self.env[n],), {})
        elif overlaps_itself(value):
            copy = self._places(n)
        else:
            room = self.graph.call_function(
                aten.empty_strided.default,
                tuple(self.numbers.arguments([list(value.shape), list(value.stride())])),
                {"dtype": value.dtype, "device": value.device},
            )
            room.meta["val"] = value
            copy = self.graph.call_function(aten.copy.default, (room, self.env[n]), {})
        copy.meta["val"] = value
        return copy

    def _places(self, n: fx.Node) -> fx.Node:
        """A copy of `n`, whose elements overlap: a copy of its memory, viewed as `n` views its own."""
        value = n.meta["val"]
        last = sum(((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)), 0)
        copy = self.graph.call_function(aten.clone.default, (self._looked_at(self.env[n], value, [last + 1], [1]),), {})
        with value.fake_mode:
            copy.meta["val"] = torch.empty([last + 1], dtype=value.dtype, device=value.device)
        return self._looked_at(copy, copy.meta["val"], list(value.shape), list(value.stride()))

    def _looked_at(self, n: fx.Node, value: torch.Tensor, shape: list[Any], stride: list[Any]) -> fx.Node:
        """`n`, with value `value`, viewed by these strides from its first element on."""
        node = self.graph.call_function(aten.as_strided.default, (n, *self.numbers.arguments([shape, stride])), {})
        with value.fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = value.as_strided(shape, stride)
        return node

    def no_view(self, n: fx.Node) -> fx.Node:
        """`n`, or its alias if ATen creates it as a view.

        Autograd forbids writes to a view that an autograd Function, or a graph under `no_grad`, returns.
        """
        if view_parent(n) is None:
            return self.env[n]
        copy = self.graph.call_function(aten.detach.default, (self.env[n],), {})
        copy.meta["val"] = n.meta["val"]
        return copy

    def rebuild(self, n: fx.Node, owner: fx.Node) -> None:
        shape = self.numbers.arguments(list(n.meta["val"].shape))
        copy = self.graph.call_function(aten.view.default, (self.env[owner], shape), {})
        copy.meta["val"] = n.meta["val"]
        self.env[n] = copy

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        self.graph.output(tuple(outputs))
        return graph_module(self.graph, self.joint.constants)

    def _copy(self, n: fx.Node) -> None:
        if n.op == "placeholder":
            raise AssertionError(f"the cut does not separate {n.name} from the gradients")
        self.env[n] = self.graph.node_copy(n, self.env.__getitem__)
        if "bound" in n.meta:
            self.numbers.symbols[n.meta["bound"]] = self.env[n]


def graph_module(graph: fx.Graph, constants: dict[str, torch.Tensor]) -> fx.GraphModule:
    """A graph module that generates its code only when it is called or printed."""
    used = {n.target for n in graph.nodes if n.op == "get_attr"}
    root = {name: value for name, value in constants.items() if name in used}
    with _use_lazy_graph_module(True):
        gm = _make_graph_module(root, graph)
    gm.graph.lint()
    return gm
