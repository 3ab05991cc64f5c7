"""A backward in stages, so that `DistributedDataParallel` reduces a bucket of gradients beneath the rest of the backward.

In: the backward graph of a `Partition`, and the limits of DDP's buckets in bytes.
Out: `groups`, the inputs whose gradients each stage gives; `split`, the graphs of the stages.
Example: with limits (1 MiB, 25 MiB), the gradients of the last layers, 1 MiB together, are the results of the first stage.

A stage is a part of the backward graph between two places of its node order, which is the order of eager's backward.  So
operators with effects keep their order.  An input's gradient is final when it is computed and no later operator of the
backward reads the input: then a hook may write the input, as in eager.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import fx

from pycompiler.autograd.joint import Joint
from pycompiler.autograd.partition import Partition, graph_module, is_size
from pycompiler.autograd.recompute import size_bytes
from pycompiler.autograd.views import is_view_op, view_parent, view_root
from pycompiler.operators.operator_facts import facts_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Stage:
    """One stage of a backward graph.

    A value's number is its position among the inputs of the whole backward, followed by the results of all stages.

    - takes: the numbers of the values that `module` takes
    - gives: for each input of its group, the number of the gradient, or None
    - checks: the numbers of taken tensors that the program may have written since the backward began
    - drops, frees: the numbers of values that no later stage needs, to be released before and after its call
    """

    module: fx.GraphModule
    takes: list[int]
    gives: list[int | None]
    checks: list[int]
    drops: list[int]
    frees: list[int]


def groups(joint: Joint, part: Partition, inputs: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """The inputs (then cuts) of each stage, in the order in which their gradients are final.

    `limits`: bytes of the first bucket, the second, and so on; the last is the limit of all others.  As in DDP's reducer,
    a bucket has leaves of one dtype and device, and is full when it reaches its limit.  A full bucket ends a stage.
    """
    final = _final(part, inputs)
    order = sorted(inputs, key=final.__getitem__)
    found: list[list[int]] = [[]]
    sizes, full = defaultdict[object, int](int), defaultdict[object, int](int)
    ends = False
    for before, i in zip([None, *order], order, strict=False):
        if ends and before is not None and final[i] > final[before]:
            found.append([])
            ends = False
        found[-1].append(i)
        if i < len(joint.inputs) and i not in joint.arrived:
            value = joint.inputs[i].meta["val"]
            bucket = (value.dtype, value.device)
            sizes[bucket] += size_bytes(joint.inputs[i])
            if sizes[bucket] >= limits[min(full[bucket], len(limits) - 1)]:
                ends = True
                full[bucket] += 1
                sizes[bucket] = 0
    return found


def _final(part: Partition, inputs: Sequence[int]) -> dict[int, int]:
    """For each input, the place of the node after which its gradient is final; 0 if no node computes it."""
    graph = part.backward.graph
    place = {n: k for k, n in enumerate(graph.nodes)}
    results: Sequence[fx.Node] = graph.output_node().args[0]  # type: ignore[assignment]
    placeholders = graph.find_nodes(op="placeholder")
    read = {i: _last_read(placeholders[j], place) for j, (kind, i) in enumerate(part.saved) if kind == "input"}
    found = dict.fromkeys(inputs, 0)
    for i in inputs:
        if (gradient := part.grads[i]) is not None:
            kind, k = gradient
            found[i] = max(place[results[k]] if kind == "result" else 0, read.get(i, 0))
    return found


def _last_read(node: fx.Node, place: dict[fx.Node, int]) -> int:
    """The place of the last operator that reads the memory of `node`."""
    last, stack = 0, [node]
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                continue
            last = max(last, place[user])
            if _views(user):
                stack.append(user)
    return last


def _views(node: fx.Node) -> bool:
    """Whether a node's value, or values, share the memory of its first argument."""
    return is_view_op(node.target) or view_parent(node) is not None


def split(joint: Joint, part: Partition, given: Sequence[Sequence[int]]) -> list[Stage]:
    """The stages of `part.backward`; each gives the gradients of one group of inputs of `given`."""
    return _Splitter(joint, part, given).run()


class _Splitter:
    def __init__(self, joint: Joint, part: Partition, given: Sequence[Sequence[int]]) -> None:
        self.joint, self.part, self.given = joint, part, given
        self.count = len(given)
        graph = part.backward.graph
        self.placeholders: Sequence[fx.Node] = graph.find_nodes(op="placeholder")
        self.results: Sequence[fx.Node] = graph.output_node().args[0]  # type: ignore[assignment]
        self.nodes = [n for n in graph.nodes if n.op == "call_function"]
        self.stage = self._stages(graph)

    def _stages(self, graph: fx.Graph) -> dict[fx.Node, int]:
        """The stage of each node that computes."""
        place = {n: k for k, n in enumerate(graph.nodes)}
        final = _final(self.part, [i for group in self.given for i in group])
        found: dict[fx.Node, int] = {}
        ends, last = [], 0
        for group in self.given:
            last = max([last, *(final[i] for i in group)])
            ends.append(last)
        for n in self.nodes:
            of = next((s for s, end in enumerate(ends) if place[n] <= end), self.count - 1)
            if n.target is operator.getitem:
                of = found[n.args[0]]  # type: ignore[index]
            found[n] = of
        return found

    def run(self) -> list[Stage]:
        number = {n: k for k, n in enumerate(self.placeholders)}
        reads = [self._reads(s) for s in range(self.count)]
        gives = [[self._gradient(i) for i in group] for group in self.given]
        later: list[set[fx.Node]] = [set() for _ in range(self.count + 1)]  # taken or given after a stage
        for s in reversed(range(self.count)):
            later[s] = later[s + 1] | reads[s] | {g for g in gives[s] if g is not None}
        made = [{n for n in self.nodes if self.stage[n] == s} for s in range(self.count)]
        modules, takes = [], []
        for s in range(self.count):
            needed = later[s + 1] | {g for g in gives[s] if g is not None}
            results = [n for n in self.nodes if self.stage[n] == s and n in needed]
            shared = {view_root(n) for t in range(s + 1, self.count) for n in reads[t]}.difference(self.placeholders)
            taken = [n for n in number if n in reads[s]]
            modules.append(self._graph(s, taken, results, shared))
            takes.append([number[n] for n in taken])
            number |= {n: k for k, n in enumerate(results, len(number))}
        watched = {j for j in range(len(self.part.saved)) if self._is_the_programs(j)}
        found = []
        for s in range(self.count):
            given = [None if g is None else number[g] for g in gives[s]]
            there = {k: n for n, k in number.items() if n.op == "placeholder" or self.stage[n] <= s}
            gone = [k for k, n in there.items() if n not in later[s + 1] and (s == 0 or n in later[s] or n in made[s])]
            before = [k for k in gone if k not in given and there[k] not in made[s]]
            found.append(
                Stage(
                    module=modules[s],
                    takes=takes[s],
                    gives=given,
                    checks=[k for k in takes[s] if s and k in watched],
                    drops=before,
                    frees=[k for k in gone if k not in before],
                )
            )
        return found

    def _gradient(self, i: int) -> fx.Node | None:
        place = self.part.grads[i]
        if place is None:
            return None
        kind, k = place
        if kind == "result":
            return self.results[k]
        return self.placeholders[k if kind == "saved" else len(self.part.saved) + k]

    def _is_the_programs(self, j: int) -> bool:
        """Whether saved value `j` is a tensor of the program, which the program may write."""
        kind, k = self.part.saved[j]
        is_tensor = isinstance(self.part.saved_nodes[j].meta["val"], torch.Tensor)
        return is_tensor and (kind == "input" or k < len(self.joint.fresh))

    def _is_repeated(self, n: fx.Node, s: int) -> bool:
        """Whether stage `s` computes a node of an earlier stage itself: a view, a number, or a constant."""
        if n.op != "call_function":
            return n.op == "get_attr"
        if self.stage[n] == s:
            return False
        constant = not n.all_input_nodes and not facts_of(n.target).ordered
        return view_parent(n) is not None or constant or not isinstance(n.meta.get("val"), (torch.Tensor, tuple, list))

    def _reads(self, s: int) -> set[fx.Node]:
        """The values that a stage takes; every stage takes all numbers."""
        found = {n for n in self.placeholders if is_size(n)}
        stack = [a for n in self.nodes if self.stage[n] == s for a in n.all_input_nodes]
        while stack:
            n = stack.pop()
            if self._is_repeated(n, s):
                stack += n.all_input_nodes
            elif n.op == "placeholder" or self.stage[n] != s:
                found.add(n)
        return found

    def _graph(
        self, s: int, taken: Sequence[fx.Node], results: Sequence[fx.Node], shared: Set[fx.Node]
    ) -> fx.GraphModule:
        """The graph of a stage.

        `shared`: computed owners of memory that later stages read.  Autograd keeps a gradient without other owners, and
        the program may write it.  So a gradient that views such memory is copied: equal values of eager may be one node.
        """
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        for n in taken:
            env[n] = graph.placeholder(n.name)
            env[n].meta["val"] = n.meta["val"]
        for n in (n for n in self.nodes if self.stage[n] == s):
            stack = [n]
            while stack:
                missing = [a for a in stack[-1].all_input_nodes if a not in env]
                if missing:
                    stack += reversed(missing)
                elif (top := stack.pop()) not in env:
                    env[top] = graph.node_copy(top, env.__getitem__)
        gradients = set(self.results)
        outputs = []
        for n in results:
            made = env[n]
            if n in gradients and view_root(n) is not n and view_root(n) in shared:
                made = graph.call_function(aten.clone.default, (made,), {})
                made.meta["val"] = n.meta["val"].clone()
            outputs.append(made)
        graph.output(tuple(outputs))
        return graph_module(graph, self.joint.constants)
