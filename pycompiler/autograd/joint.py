"""What the trace of a captured graph gives: one functional ATen graph, forward and backward, and data about it.

A `Joint` is made by `trace`, cut in two by `partition`, and run by `runtime`.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.recompute import SMALL, size_bytes
from pycompiler.autograd.views import Step, is_view_op
from pycompiler.ir.effects import node_stays

MOST_NODES = 8
"""So many nodes of autograd's graph are made to tell leaves apart: each is a backward to compile, and to run."""


@dataclass(frozen=True)
class Mutation:
    """Input `index` holds the value of fresh output `fresh` after the call.

    how: "grad" (recorded by autograd), "no_grad" (bumps the version only), "hidden" (through ``.data``: not even that).
    """

    index: int
    fresh: int
    how: str


@dataclass(frozen=True)
class Output:
    """How one output of the caller is made.

    kind: "fresh" (fresh output `index`), "input" (input `index` itself), "view" (of the input or fresh output `index`, or with
    `of_result` of the caller's output `index`, by `steps`), "constant" (`value`), "same" (the very object of output `index`).
    pieces: a number that outputs share whose last step is one call, of which each is an item.
    """

    kind: str
    index: int = -1
    of_input: bool = False
    of_result: bool = False
    steps: tuple[Step, ...] = ()
    value: Any = None
    pieces: int | None = None


@dataclass(frozen=True)
class Path:
    """A gradient's way through the nodes of autograd's graph, as eager would go it.

    inputs: those that it reaches, then cuts (`Joint.cuts`), numbered on from the inputs. given: those of them that get one,
    be it zero. nodes: numbers of the nodes that keep something, which can be gone through once. kept: the inputs ("input", i)
    and fresh outputs ("fresh", k) that these keep, whose versions are checked. begins: the number of the node that it begins
    at. held: whether nodes keep the output that it is of, be it this one. led: the inputs, and cuts, that the histories of what
    the nodes keep lead to, whose derivatives that of the gradient has a part of, be it zero.
    """

    inputs: frozenset[int]
    given: frozenset[int]
    nodes: frozenset[int]
    kept: frozenset[tuple[str, int]]
    begins: int = -1
    held: bool = False
    led: frozenset[int] = frozenset()


def _joined(found: Mapping[frozenset[int], list[int]]) -> dict[frozenset[int], list[int]]:
    """Groups of tangents, of which those that reach a same input, or cut, are one."""
    joined: dict[frozenset[int], list[int]] = {}
    for inputs, tangents in found.items():
        for other in [o for o in joined if o & inputs]:
            inputs, tangents = inputs | other, [*joined.pop(other), *tangents]
        joined[inputs] = sorted(tangents)
    return joined


@dataclass(frozen=True)
class Way:
    """The tangents that one node of autograd's graph takes, and the inputs, then cuts, that their gradients reach."""

    tangents: tuple[int, ...]
    inputs: frozenset[int]


@dataclass(frozen=True)
class Hook:
    """A hook: the call of the captured graph that registers it, what it does, the number of the result that it hangs on, and
    the numbers of those that it reads (`Joint.more` among them)."""

    call: fx.Node
    body: fx.GraphModule
    result: int
    reads: list[int]


@dataclass
class Joint:
    """One graph whose placeholders are the inputs then the tangents, whose outputs are the new values of mutated inputs, the
    fresh outputs, then the gradients; plus how the caller's outputs are made of all that.

    `fresh` lists nodes; the first ``len(mutations)`` are new values of inputs.
    cuts: the fresh outputs ("fresh", k), those that inputs get among them, and views of such or of inputs ("view", number of
    the caller's output), that others were computed from, where gradients of these end: a node of autograd's graph takes them from
    there on, with what else arrives, as in eager. `grads` has one for each input, then one for each cut.
    paths: for each tangent what autograd's own graph says of its gradient.
    more: nodes of the captured graph that are outputs here, though not the caller's, because outputs and what was computed from
    these share them: their tensors are the last results.
    hooks: those that the program registers on results, and that are hooks of the caller's.
    counts: whether elements are counted from the start of a storage: then inputs must start in theirs where they did.
    arrived: inputs that are results of other work which requires grad: nodes of autograd's that others made lie behind.
    touched: inputs that were written, with the values that they had: only their versions tell.
    rebased: inputs that were written, with gradients, while there were views of them, whose gradients pass the inputs then; of
    inputs that are views themselves they pass what these view.
    origins: for each fresh output which tensor of the captured graph it is: ("input", i) after the run, ("result", k) of
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
    hooks: list[Hook] = field(default_factory=list)
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
        """The writes that are done between the nodes of autograd's graph, at which gradients of others end."""
        begun = {self.begins(cut) for cut in self.cuts}
        return [m for m in self.recorded if m.fresh in begun]

    @property
    def needs_backward(self) -> bool:
        """True when some output requires grad (even if its gradient reaches no input)."""
        return bool(self.tangents)

    def is_tensor(self, index: int) -> bool:
        """Whether input `index` is a tensor, not a number."""
        return isinstance(self.inputs[index].meta["val"], torch.Tensor)

    def kept(self, tangents: Iterable[int] | None = None) -> frozenset[tuple[str, int]]:
        """What autograd's nodes keep on the way of the gradients of `tangents` (default: of all)."""
        paths = self.paths if tangents is None else [self.paths[k] for k in tangents]
        return frozenset[tuple[str, int]]().union(*(p.kept for p in paths))

    def ways(self) -> list[Way]:
        """The nodes of autograd's graph that a call makes, each after those whose outputs its gradients end at: one for all
        outputs whose gradients reach the same inputs, and end at the same cuts. A node that is reached runs those behind it,
        and their hooks, gradient or not, and they look at what they keep. Of more than `MOST_NODES` it is one for all whose
        gradients reach the same results of other work.

        Nodes compute alone what their gradients have in common; where that is much, those that share a way are one. Those
        that end at other cuts have nothing in common (`trace.paths.cuts`)."""
        groups = self._groups(frozenset(range(len(self.inputs))))
        if len(groups) > MOST_NODES:
            groups = self._groups(self.arrived)
        ways = [Way(tuple(ks), frozenset[int]().union(*(self.paths[k].inputs for k in ks))) for ks in groups]
        return self._in_order(ways) if self.cuts else ways

    def _groups(self, apart: frozenset[int]) -> list[list[int]]:
        """The tangents of each node, where those are told apart that reach others of these inputs."""
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

    def _in_order(self, ways: list[Way]) -> list[Way]:
        """`ways`, each after those of the outputs that its gradients end at."""
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
        """What stands for the caller's output `result` where gradients of others end at it, or at views of it."""
        output = self.outputs[result]
        return ("view", result) if output.kind == "view" else ("fresh", output.index)

    def views(self) -> list[int]:
        """The caller's outputs that are views at which gradients end, and those that these view."""
        found: dict[int, None] = {}
        for kind, k in self.cuts:
            while kind == "view":
                found[k] = None
                kind, k = self.cut_of(self.outputs[k].index) if self.outputs[k].of_result else ("", -1)
        return list(found)

    def begins(self, cut: tuple[str, int]) -> int | None:
        """The fresh output that a cut is, or views, which a written input gets; None for a view of another input."""
        kind, k = cut
        while kind == "view":
            output = self.outputs[k]
            if output.of_input:
                return next((m.fresh for m in self.recorded if m.index == output.index), None)
            kind, k = self.cut_of(output.index) if output.of_result else ("fresh", output.index)
        return k

    def _common(self, groups: Sequence[Sequence[int]]) -> int:
        """Bytes that gradients of more than one group of tangents compute, once for each group but the first."""
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
    """Erase nodes without users; operators that do more than compute their results stay."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not stays(node):
            graph.erase_node(node)
