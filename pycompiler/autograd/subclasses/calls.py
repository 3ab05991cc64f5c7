"""Runtime of graphs with tensor subclasses: plain graphs of the inner tensors, and reconstruction of the subclasses.

In: a trace below the classes (`inner_tensors.TraceResult`), and a compiler of plain graphs.  Out: a callable of the
graph's inputs.

With gradients, a call creates one autograd node, whose inputs and outputs are the subclasses.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.replay import transformed
from pycompiler.autograd.replay_graph import DerivativeRoots, PassThrough
from pycompiler.autograd.saved_tensors import TWICE, keeps_graph
from pycompiler.autograd.subclasses.inner_tensors import (
    SymbolicLayout,
    TraceResult,
    fits_structure,
    laid_as,
    lies_as,
    like,
    places_of,
    refuse,
    structure_of,
    version_of,
)
from pycompiler.autograd.subclasses.subgraphs import (
    ancestors_of,
    memory_of,
    part_of,
    results_of,
    takes_numbers,
    values_read_by_backward,
)
from pycompiler.autograd.subclasses.tape import IN_FORWARD
from pycompiler.operators.operator_facts import facts_of
from pycompiler.operators.process_groups import name_of
from pycompiler.torch_compat.distributed_tensors import gradient_spec, redistributed
from pycompiler.torch_compat.tensor_subclasses import at, flatten, flatten_all, structural

CompilePlain = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


def run_inference(forward: Callable[..., Sequence[Any]], trace: TraceResult) -> Callable[..., Sequence[Any]]:
    known, results = trace.inputs, trace.results

    def run(*inputs: Any) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            given = known.distinct(known.leaves(inputs))
            return tuple(results.rebuilt(forward(*given, *known.numbers_of(inputs)), given, known.env(inputs)))

    return run


def run_writing(forward: Callable[..., Sequence[Any]], trace: TraceResult) -> Callable[..., Sequence[Any]]:
    """As `run_inference`, for a graph that writes tensor subclasses: their versions count the writes, their inner
    tensors' do not."""
    known, results = trace.inputs, trace.results
    within = known.within()

    def run(*inputs: Any) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            given = known.distinct(known.leaves(inputs))
            leaves = [t.data if inside else t for t, inside in zip(given, within, strict=True)]
            made = tuple(results.rebuilt(forward(*leaves, *known.numbers_of(inputs)), given, known.env(inputs)))
            for i in trace.written:
                torch.autograd.graph.increment_version(inputs[i])
            return made

    return run


def _collectives(traced: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]]:
    """The collectives of the forward and of the backward; waits included."""
    found = [n for n in traced.nodes if name_of(n.target) is not None]
    return [n for n in found if IN_FORWARD in n.meta], [n for n in found if IN_FORWARD not in n.meta]


class Pair:
    """A forward and a backward of a graph with tensor subclasses.

    The forward returns the outputs' inner tensors and the saved tensors.  The backward takes these and the tangents.
    Inputs and outputs that the backward needs are read again: autograd reports writes to them.
    """

    def __init__(
        self, trace: TraceResult, traced: fx.Graph, given: list[torch.Tensor], compile_plain: CompilePlain
    ) -> None:
        self.gm, self.inputs, self.results = trace.gm, trace.inputs, trace.results
        self.has_grad, self.grads = trace.has_grad, trace.grads
        self.tracked, self.saving, self.held = trace.tracked, trace.saving, trace.held
        self.n_results = trace.n_results
        nodes = traced.find_nodes(op="placeholder")
        count, end = len(self.inputs.firsts), len(given)
        inputs, tangents, symbols = nodes[:count], nodes[count:end], nodes[end:]
        flat = results_of(traced)
        outputs, grads = [*flat[: self.n_results]], [*flat[self.n_results :]]
        before, after = _collectives(traced)
        ahead, checks = ancestors_of([*outputs, *before]), list[fx.Node]()
        for node in traced.nodes:
            if takes_numbers(node) or (
                facts_of(node.target).acts and not facts_of(node.target).checks and not name_of(node.target)
            ):
                refuse(f"{node.target} in a graph with gradients")
            if facts_of(node.target).checks and ancestors_of([node]).isdisjoint(tangents):
                checks.append(node)
            elif facts_of(node.target).raises and node not in ahead and ancestors_of([node]).isdisjoint(tangents):
                refuse(f"{node.target}, which may raise, and whose result is not used")
        if not ahead.isdisjoint(tangents) or not {*map(memory_of, ahead)}.isdisjoint(map(memory_of, grads)):
            refuse("a gradient that the forward reads, or that shares memory with a value of the forward")
        read, saved = values_read_by_backward([*grads, *after], ahead, inputs, outputs)
        read -= {*symbols}
        self.likes = [SymbolicLayout.of(n.meta["val"]) for n in tangents]
        first = [i for i, n in enumerate(inputs) if n in read]
        second = [i for i, n in enumerate(outputs) if n in read]
        of_saved = {
            *map(memory_of, saved)
        }  # outputs may view it: a write to such an output is a write to a saved tensor
        watched = [i for i, n in enumerate(outputs) if memory_of(n) in of_saved]
        shown = [places_of(self.results.specs)[self.results.places.index(i)] for i in range(self.n_results)]
        places = [
            *(("input", *self.inputs.place(i)) for i in first),
            *(("output", *shown[i]) for i in second),
        ]
        self.kept = sorted({*(p[:2] for p in places), *(("output", shown[i][0]) for i in watched)})
        # index into `kept`, and index of the inner tensor
        self.read = [(self.kept.index(place[:2]), place[2]) for place in places]
        forward = part_of(traced, [*inputs, *symbols], [*outputs, *saved], [*outputs, *saved, *checks, *before])
        self.forward = compile_plain(forward, [*given[:count], *self.inputs.symbols])
        taken = [*(inputs[i] for i in first), *(outputs[i] for i in second), *saved, *tangents]
        backward = part_of(traced, [*taken, *symbols], grads, after)
        self.backward = compile_plain(backward, [*like([n.meta["val"] for n in taken]), *self.inputs.symbols])

    def run(self, *inputs: Any) -> Sequence[torch.Tensor]:
        return _Node.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]

    def run_forward(self, ctx: Any, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        given, numbers = self.inputs.distinct(self.inputs.leaves(inputs)), self.inputs.numbers_of(inputs)
        with torch._C._DisableAutocast():
            found = self.forward(*given, *numbers)
        outputs = self.results.rebuilt(found[: self.n_results], given, self.inputs.env(inputs))
        ctx.pair, ctx.given, ctx.freed = self, [(t, version_of(t)) for t in inputs], frozenset()
        ctx.structures = [structure_of(outputs[i], self.results.specs[i]) for i in self.tracked]
        ctx.made = {i: (weakref.ref(outputs[i]), version_of(outputs[i])) for i in self.held}
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for i, t in enumerate(outputs) if i not in self.tracked))
        kept = [(inputs if kind == "input" else outputs)[i] for kind, i in self.kept]
        ctx.save_for_backward(*kept, *found[self.n_results :])
        return tuple(outputs)

    def run_backward(self, ctx: Any, given: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        tangents = {i: t for i in self.tracked if (t := given[i]) is not None}
        used = frozenset[int]().union(*(s for i, s in zip(self.tracked, self.saving, strict=True) if i in tangents))
        if not used.isdisjoint(ctx.freed):  # in eager these nodes are freed, but not the nodes of other outputs
            raise RuntimeError(TWICE)
        if len(tangents) < len(self.tracked):
            found = self.again(ctx, tangents)
        else:
            found = self.compiled(ctx, tangents)
        if not keeps_graph():
            ctx.freed |= used
        return found

    def compiled(self, ctx: Any, tangents: Mapping[int, torch.Tensor]) -> Sequence[torch.Tensor | None]:
        leaves: list[torch.Tensor] = []
        inputs = [t for t, _ in ctx.given]
        numbers, env = self.inputs.numbers_of(inputs), self.inputs.env(inputs)
        wanted = {i: gradient_spec(at(self.results.specs[i], env)) for i in tangents}
        if not torch.is_grad_enabled():
            tangents = {i: redistributed(t, wanted[i]) for i, t in tangents.items()}
        for (i, t), structure in zip(tangents.items(), ctx.structures, strict=True):
            inside: list[torch.Tensor] = []
            spec = flatten(t, inside)
            if not fits_structure(spec, inside, wanted[i], structure):
                return self.again(ctx, tangents)
            leaves += [t for t, s in zip(inside, structural(spec), strict=True) if not s]
        likes = [form.at(env) for form in self.likes]
        if torch.is_grad_enabled() or transformed() or not all(map(lies_as, leaves, likes)):
            return self.again(ctx, tangents)
        saved = ctx.saved_tensors
        kept = [flatten_all([t])[0] for t in saved[: len(self.kept)]]
        read = [kept[k][j] for k, j in self.read]
        with torch._C._DisableAutocast():
            found = self.backward(*read, *saved[len(self.kept) :], *map(laid_as, leaves, likes), *numbers)
        made = iter(self.grads.rebuilt(found, self.inputs.distinct(self.inputs.leaves(inputs)), env))
        grads: list[torch.Tensor | None] = [None] * len(inputs)
        for i, has in zip(self.inputs.tensors, self.has_grad, strict=True):
            grads[i] = next(made) if has else None
        return grads

    def again(self, ctx: Any, tangents: Mapping[int, torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """The gradients, from the captured graph: for gradients that are differentiated, of any kind, or with some missing."""
        inputs = [t for t, _ in ctx.given]
        if not tangents:
            return [None] * len(inputs)
        kept = [(reference(), version) for i, (reference, version) in ctx.made.items() if i in tangents]
        if any(t is not None and version_of(t) != version for t, version in (*ctx.given, *kept)):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        creates = torch.is_grad_enabled()
        with torch.enable_grad():
            onward = self._onward(ctx) if creates else DerivativeRoots({})
            own = [self._own(i, t, onward) for i, t in enumerate(inputs)]
            wanted = [t for t in own if isinstance(t, torch.Tensor) and t.requires_grad]
            made = self.gm(*own)
            outputs, given = [made[i] for i in tangents], [*tangents.values()]
            found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=creates, allow_unused=True))
            for i in onward.ends:
                onward.take(i, made[i])
        known = {*map(id, wanted)}
        return [next(found) if id(t) in known else None for t in own]

    def _onward(self, ctx: Any) -> DerivativeRoots:
        made = {i: reference() for i, (reference, _) in ctx.made.items()}
        return DerivativeRoots({i: PassThrough.apply(t) for i, t in made.items() if t is not None and t.requires_grad})

    def _own(self, index: int, value: Any, onward: DerivativeRoots) -> Any:
        """The graph's version of an input: its gradients do not flow on into the history of the input."""
        if not isinstance(value, torch.Tensor):
            return value
        if not value.requires_grad:
            return value.detach()
        results = [i for i in onward.ends if index in self.held[i]]
        return onward.root(value, results, has_memory=True) if results else PassThrough.apply(value)


class _Node(torch.autograd.Function):
    """The autograd node of a call; its inputs and outputs are the subclasses."""

    @staticmethod
    def forward(ctx: Any, pair: Pair, *inputs: torch.Tensor) -> Any:
        return pair.run_forward(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, *ctx.pair.run_backward(ctx, tangents)
