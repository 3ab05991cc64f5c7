"""The joint graph: one functional ATen graph of forward and backward, traced from a captured graph, and data about it.

In: a trace (`trace/`).  Out: a `Joint`, cut in two by `partition` and run by `runtime`.

Terms.  The caller's outputs are the outputs of the captured graph.  Fresh outputs are tensors that the forward graph
returns; the runtime wrappers build the caller's outputs from them.  A node, with autograd in context, is a node of
autograd's graph.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.recompute import SMALL, size_bytes
from pycompiler.autograd.views import ViewStep, is_view_op
from pycompiler.operators.operator_facts import node_stays

MOST_NODES = 8
"""The most autograd nodes of one call that distinguish sets of leaves; each node needs a backward graph of its own."""


@dataclass(frozen=True)
class Mutation:
    """Input `index` has the value of fresh output `fresh` after the call.

    how: "grad" (recorded by autograd), "no_grad" (only increments the version), "hidden" (through ``.data``: not even that).
    """

    index: int
    fresh: int
    how: str


@dataclass(frozen=True)
class Output:
    """How to build one of the caller's outputs.

    kind:

    - "fresh": fresh output `index`
    - "input": input `index` itself
    - "view": a view, by `steps`, of the input or fresh output `index`, or with `of_result` of the caller's output `index`
    - "constant": `value`
    - "same": the very object of output `index`

    pieces: a number shared by outputs whose last step is one common call; each output is an item of its result.
    """

    kind: str
    index: int = -1
    of_input: bool = False
    of_result: bool = False
    steps: tuple[ViewStep, ...] = ()
    value: Any = None
    pieces: int | None = None


@dataclass(frozen=True)
class Path:
    """The way of a gradient through eager's autograd nodes.

    - inputs: the inputs that it reaches, then the cuts (`Joint.cuts`), numbered after the inputs
    - given: those inputs and cuts for which eager gets a gradient, even if it is zero
    - nodes: numbers of the nodes with saved tensors, which can run only once
    - kept: the inputs ("input", i) and fresh outputs ("fresh", k) saved by these nodes, whose versions are checked
    - begins: the number of its first node
    - held: whether a node saves the output of this path
    - led: the inputs and cuts reached by the histories of saved tensors: the gradient's own derivative has a part
      there, even zero
    """

    inputs: frozenset[int]
    given: frozenset[int]
    nodes: frozenset[int]
    kept: frozenset[tuple[str, int]]
    begins: int = -1
    held: bool = False
    led: frozenset[int] = frozenset()


def _joined(found: Mapping[frozenset[int], list[int]]) -> dict[frozenset[int], list[int]]:
    """Groups of tangents, joined where they reach a common input or cut."""
    joined: dict[frozenset[int], list[int]] = {}
    for inputs, tangents in found.items():
        for other in [o for o in joined if o & inputs]:
            inputs, tangents = inputs | other, [*joined.pop(other), *tangents]
        joined[inputs] = sorted(tangents)
    return joined


@dataclass(frozen=True)
class NodePlan:
    """The tangents of one autograd node, and the inputs, then cuts, that their gradients reach."""

    tangents: tuple[int, ...]
    inputs: frozenset[int]


@dataclass(frozen=True)
class ResultHook:
    """A hook on a result.

    The call of the captured graph that registers it, its body, the number of its result, and the numbers of the results
    that it reads (`Joint.more` included).
    """

    call: fx.Node
    body: fx.GraphModule
    result: int
    reads: list[int]


@dataclass
class Joint:
    """One graph and data about it.  Placeholders: the inputs, then the tangents.  Outputs: the new values of mutated
    inputs, the fresh outputs, then the gradients.

    - fresh: nodes; the first ``len(mutations)`` are new values of inputs.
    - cuts: where gradients of other fresh outputs end: a fresh output ("fresh", k), also the new value of an input, or
      a view of one or of an input ("view", number of the caller's output).  A separate autograd node continues there,
      together with gradients from elsewhere, as in eager.  `grads` has one entry per input, then one per cut.
    - paths: for each tangent, the path of its gradient in eager's autograd graph.
    - more: further outputs, nodes of the captured graph that are not the caller's.  The caller's outputs, and values
      computed from them, share this work.  Their tensors are the last results.
    - hooks: hooks of the program on results, which become hooks of the caller's tensors.
    - counts: whether elements are counted from the start of a storage.  Then inputs must have the traced storage offsets.
    - arrived: inputs that require grad and are results of earlier work, so autograd nodes of other code lie behind them.
    - touched: inputs written with their own old values: only their versions change.
    - rebased: inputs written with gradients while views of them existed.  The views' gradients then pass the inputs.
      If such an input is a view itself, they pass the base of the input.
    - origins: for each fresh output, the tensor of the captured graph: ("input", i) after the run, ("result", k) of
      its outputs, or ("base", k), the base of that output.
    """

    graph: fx.Graph
    constants: dict[str, torch.Tensor]
    inputs: list[fx.Node]
    tangents: list[fx.Node] = field(default_factory=list)
    fresh: list[fx.Node] = field(default_factory=list)
    differentiable: list[bool] = field(default_factory=list)
    origins: list[tuple[str, int]] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    grads: list[fx.Node | None] = field(default_factory=list)
    cuts: list[tuple[str, int]] = field(default_factory=list)
    stores: list[tuple[int, fx.Node]] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    rebased: list[int] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    arrived: frozenset[int] = frozenset()
    more: list[fx.Node] = field(default_factory=list)
    hooks: list[ResultHook] = field(default_factory=list)
    counts: bool = False

    def store_in_graph(self) -> list[int]:
        """Let the forward graph itself write new values of inputs where autograd need not see it.

        Such a mutation leaves `mutations` and `fresh` and becomes a pair (input, value) of `stores`. Returns the old
        indices of the fresh outputs that stay.
        """
        kept = [m for m in self.mutations if m.how != "no_grad"]
        self.stores = [(m.index, self.fresh[m.fresh]) for m in self.mutations if m.how == "no_grad"]
        gone = {m.fresh for m in self.mutations if m.how == "no_grad"}
        place = {old: new for new, old in enumerate(i for i in range(len(self.fresh)) if i not in gone)}
        self.mutations = [replace(m, fresh=place[m.fresh]) for m in kept]
        self.outputs = [
            replace(o, index=place[o.index]) if o.kind in ("fresh", "view") and not (o.of_input or o.of_result) else o
            for o in self.outputs
        ]
        self.fresh = [n for i, n in enumerate(self.fresh) if i in place]
        self.differentiable = [d for i, d in enumerate(self.differentiable) if i in place]
        self.origins = [o for i, o in enumerate(self.origins) if i in place]
        return list(place)

    @property
    def written(self) -> list[int]:
        """The inputs that a call writes."""
        return sorted({m.index for m in self.mutations} | {index for index, _ in self.stores})

    @property
    def recorded(self) -> list[Mutation]:
        """The writes that autograd records."""
        return [m for m in self.mutations if m.how == "grad"]

    def between(self) -> list[Mutation]:
        """The writes that happen between the creation of autograd nodes, because gradients of other outputs end at them."""
        begun = {self.begins(cut) for cut in self.cuts}
        return [m for m in self.recorded if m.fresh in begun]

    @property
    def needs_backward(self) -> bool:
        """Whether some output requires grad (even if its gradient reaches no input)."""
        return bool(self.tangents)

    def is_tensor(self, index: int) -> bool:
        """Whether input `index` is a tensor, not a number."""
        return isinstance(self.inputs[index].meta["val"], torch.Tensor)

    def kept(self, tangents: Iterable[int] | None = None) -> frozenset[tuple[str, int]]:
        """Tensors saved by eager's nodes on the paths of `tangents` (default: of all)."""
        paths = self.paths if tangents is None else [self.paths[k] for k in tangents]
        return frozenset[tuple[str, int]]().union(*(p.kept for p in paths))

    def ways(self) -> list[NodePlan]:
        """The autograd nodes that a call creates, each after the nodes at whose outputs its gradients end.

        One node covers all outputs whose gradients reach the same inputs and end at the same cuts.  In eager, a node
        that is reached runs the nodes behind it and their hooks, even without a gradient, and these check their saved
        tensors.  If there would be more than `MOST_NODES` nodes, one node covers all outputs whose gradients reach the
        same `arrived` inputs.

        Separate nodes repeat the work that their gradients share.  If that is much work, nodes that share an input are
        merged.  Nodes that end at different cuts share no work (`trace.gradient_paths.cuts`).
        """
        groups = self._groups(frozenset(range(len(self.inputs))))
        if len(groups) > MOST_NODES:
            groups = self._groups(self.arrived)
        ways = [NodePlan(tuple(ks), frozenset[int]().union(*(self.paths[k].inputs for k in ks))) for ks in groups]
        return self._in_order(ways) if self.cuts else ways

    def _groups(self, apart: frozenset[int]) -> list[list[int]]:
        """The tangents of each node.  Nodes are separate if they reach different inputs of `apart`."""
        cuts = range(len(self.inputs), len(self.inputs) + len(self.cuts))
        found: dict[frozenset[int], dict[frozenset[int], list[int]]] = {}
        for k, path in enumerate(self.paths):
            ended = path.inputs.intersection(cuts)
            found.setdefault(ended, {}).setdefault(path.inputs & (apart | ended), []).append(k)
        groups: list[list[int]] = []
        for same in found.values():
            if len(same) > 1 and self._common(list(same.values())) > SMALL:
                same = _joined(same)
            groups += same.values()
        return groups

    def _in_order(self, ways: list[NodePlan]) -> list[NodePlan]:
        """`ways`, each after the nodes of the outputs at which its gradients end."""
        tangents = {fresh: k for k, fresh in enumerate(self.tangent_of)}
        of = {k: j for j, way in enumerate(ways) for k in way.tangents}
        first = len(self.inputs)
        begin = [self.begins(cut) for cut in self.cuts]
        behind = {
            j: {of[tangents[k]] for i in way.inputs if i >= first and (k := begin[i - first]) is not None}
            for j, way in enumerate(ways)
        }
        return [ways[j] for j in graphlib.TopologicalSorter(behind).static_order()]

    def cut_of(self, result: int) -> tuple[str, int]:
        """The cut for the caller's output `result`, where gradients of others end at this output or at views of it."""
        output = self.outputs[result]
        return ("view", result) if output.kind == "view" else ("fresh", output.index)

    def views(self) -> list[int]:
        """The caller's outputs that are views and at which gradients end, and the outputs that these view."""
        found: dict[int, None] = {}
        for kind, k in self.cuts:
            while kind == "view":
                found[k] = None
                kind, k = self.cut_of(self.outputs[k].index) if self.outputs[k].of_result else ("", -1)
        return list(found)

    def begins(self, cut: tuple[str, int]) -> int | None:
        """The fresh output of a cut, or the fresh output that it views; for a written input its new value.
        None for a view of another input."""
        kind, k = cut
        while kind == "view":
            output = self.outputs[k]
            if output.of_input:
                return next((m.fresh for m in self.recorded if m.index == output.index), None)
            kind, k = self.cut_of(output.index) if output.of_result else ("fresh", output.index)
        return k

    def _common(self, groups: Sequence[Sequence[int]]) -> int:
        """Bytes of gradients computed by more than one group of tangents, counted once per group except the first."""
        reach = {self.tangents[k]: 1 << j for j, ks in enumerate(groups) for k in ks}
        total = 0
        for node in self.graph.nodes:
            bits = 0
            for read in node.all_input_nodes:
                bits |= reach.get(read, 0)
            if bits and node.op == "call_function":
                reach[node] = bits
                total += (bits.bit_count() - 1) * (0 if is_view_op(node.target) else size_bytes(node))
        return total

    @property
    def tangent_of(self) -> list[int]:
        """For each tangent, the fresh output it belongs to."""
        return [i for i, d in enumerate(self.differentiable) if d] if self.tangents else []


def drop_dead(graph: fx.Graph, stays: Callable[[fx.Node], bool] = node_stays) -> None:
    """Erase nodes without users, except operators with effects beside their results."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not stays(node):
            graph.erase_node(node)
