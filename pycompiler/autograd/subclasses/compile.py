"""Compile graphs of tensor subclasses (`torch_compat/tensor_subclasses.py`).

Such a graph becomes plain graphs of the inner tensors, and the subclasses are rebuilt around their results.
In: a captured graph with tensor subclasses among its inputs or values, and `compile_plain`, which compiles graphs of
plain tensors.  Out: a callable of the graph's inputs.

Example: ``x * 2`` with a `TwoTensor` becomes a graph of two products, and a `TwoTensor` of both.

The graph runs once, traced below the classes.  This calls each `__torch_dispatch__`, of forward and backward, because
autograd lies above the classes.  The trace is cut where gradients begin; forward values that the backward reads are
saved.  Unsupported graphs raise `AutogradUnsupported`, and run as captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.subclasses.calls import CompilePlain, Pair, run_inference, run_writing
from pycompiler.autograd.subclasses.inner_tensors import (
    Inputs,
    RebuildRule,
    TraceResult,
    data_of,
    like,
    like_output,
    mode_of,
    refuse,
    storage_of,
    structural_of,
    version_of,
)
from pycompiler.autograd.subclasses.subgraphs import is_write, memory_of, part_of, results_of
from pycompiler.autograd.subclasses.tape import Unrecorded, mark_ahead, record, without_writes
from pycompiler.autograd.trace.gradient_paths import kept_tensors, nodes_behind
from pycompiler.errors import PyCompilerError
from pycompiler.ir.node_effects import effects_of
from pycompiler.operators.operator_facts import SWITCHES, facts_of
from pycompiler.operators.process_groups import name_of
from pycompiler.symbolic.symbols import Specialise
from pycompiler.torch_compat.autocast_regions import drop_casts
from pycompiler.torch_compat.distributed_tensors import gradient_spec
from pycompiler.torch_compat.tensor_subclasses import flatten_all, is_tensor_subclass


def has_wrappers(gm: fx.GraphModule) -> bool:
    """Whether a value of the captured graph is a tensor subclass."""
    return any(is_tensor_subclass(type(n.meta.get("example_value"))) for n in gm.graph.nodes)


def compile_wrappers(
    gm: fx.GraphModule, examples: Sequence[Any], compile_plain: CompilePlain
) -> Callable[..., Sequence[Any]]:
    """Compile `gm`; see the module docstring."""
    tracks = _check(gm, examples)
    if not tracks and any(n.meta["example_value"].requires_grad for n in results_of(gm)):
        refuse("the graph creates a leaf tensor")
    trace = _InnerTrace(gm, Inputs.of(examples), tracks)
    plain = like(trace.inputs.distinct(trace.inputs.leaves()))
    traced, given = trace.run(plain)
    with torch.no_grad(), torch._C._DisableAutocast():  # the graph already contains both
        if trace.tracked:
            return Pair(trace, traced, given, compile_plain).run
        inputs, flat = traced.find_nodes(op="placeholder"), results_of(traced)
        if other := [
            n.target
            for n in traced.nodes
            if facts_of(n.target).acts and not facts_of(n.target).checks and not name_of(n.target)
        ]:
            refuse(f"{other[0]}, which has side effects")
        needed = [*flat, *(n for n in traced.nodes if facts_of(n.target).stays or is_write(n))]
        made = compile_plain(part_of(traced, inputs, flat, needed), [*like(plain), *trace.inputs.symbols])
        within = trace.inputs.within()
        kept = {memory_of(n) for n, inside in zip(inputs, within, strict=False) if inside}
        below = (n for node in traced.nodes if is_write(node) for n in node.all_input_nodes)
        writes = trace.written or not kept.isdisjoint(
            map(memory_of, below)
        )  # also through `.data` of a tensor subclass
        if writes and trace.inputs.are_jagged():
            refuse("a write to a jagged tensor")
        return run_writing(made, trace) if writes else run_inference(made, trace)


_SETTERS = frozenset(
    (torch._C._set_grad_enabled, torch._assert_async, torch.set_autocast_enabled, torch.set_autocast_dtype,
     torch.set_autocast_cache_enabled, torch.clear_autocast_cache, drop_casts)
)  # fmt: skip
"""Functions with side effects that a graph may call: their changes are undone, or the graph is refused."""


def _state() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    return torch.is_grad_enabled(), *((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds)


def _put_back(state: tuple[Any, ...]) -> None:
    torch._C._set_grad_enabled(state[0])
    for kind, (on, dtype) in zip(("cpu", "cuda"), state[1:], strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)


def _check(gm: fx.GraphModule, examples: Sequence[Any]) -> bool:
    """Whether gradients of inputs may be needed; raises for unsupported graphs."""
    if not all(isinstance(e, (torch.Tensor, torch.SymInt, torch.SymFloat)) for e in examples):
        refuse("an input that is neither a tensor nor a number")
    tracks = torch.is_grad_enabled() and any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples)
    for node in gm.graph.nodes:
        if node.op == "get_attr" or "binds" in node.meta:
            refuse(f"{node.op} {node.target}")
        did = effects_of(node)
        unseen = did.python and did.acts or node.target is torch.nn.functional.one_hot
        if unseen or (did.mutates and tracks) or node.target in SWITCHES:
            if node.target not in _SETTERS:
                refuse(f"{node.target}, which has side effects, or writes in a graph with gradients")
    if any(n.op == "placeholder" for n in results_of(gm)):
        refuse("an output that is an input")
    return tracks


class _InnerTrace(TraceResult):
    """A run of the graph below the classes, with its observations."""

    def run(self, plain: list[torch.Tensor]) -> tuple[fx.Graph, list[torch.Tensor]]:
        """The graph of plain tensors, and the tensors it was traced with: `plain`, then the inner tensors of tangents."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # the cache would keep fake tensors for the program's next region
        try:
            return self._run(plain)
        except Unrecorded as e:
            refuse(str(e))
        except (PyCompilerError, Specialise):
            raise
        except Exception as e:  # an error of torch or of the class: the call, or its backward, raises it in the program
            refuse(f"an operator that raises: {e}")
        finally:
            torch.set_autocast_cache_enabled(cached)

    def _run(self, plain: list[torch.Tensor]) -> tuple[fx.Graph, list[torch.Tensor]]:
        mode = mode_of(plain)
        with mode:
            inputs = self._inputs(plain)
            outputs = self._outputs(inputs) if self.tracks else ()
        self.tracked = [i for i, t in enumerate(outputs) if t.requires_grad]
        if not self.tracked:
            return _traced(mode, self._forward, plain, self.inputs.symbols, writes=True), plain
        numbers: dict[Any, int] = {}
        self.saving = [
            frozenset(numbers.setdefault(n, len(numbers)) for n in _saving(outputs[i])) for i in self.tracked
        ]
        self._note_held(inputs, outputs)
        given = [*plain, *like([t for i in self.tracked for t in data_of(outputs[i])])]
        return _traced(mode, self._joint, given, self.inputs.symbols), given

    def _note_held(self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
        """Record the outputs that autograd nodes save.

        A call creates one node, at which gradients of all outputs begin.  If an output were computed from another one,
        its gradient would lack the part that arrives through the other one, so this is refused.
        """
        edges = {(outputs[i].grad_fn, outputs[i].output_nr): i for i in self.tracked}
        behind = {i: nodes_behind(outputs[i].grad_fn) for i in self.tracked}
        for i, nodes in behind.items():
            for node in nodes:
                if any(edges.get(edge, i) != i for edge in node.next_functions):
                    refuse("an output from which another output is computed")
        leaves = {id(t): k for k, t in enumerate(inputs) if isinstance(t, torch.Tensor)}
        kept = {(t.grad_fn, t.output_nr) for nodes in behind.values() for n in nodes for t in kept_tensors(n)}
        for edge, i in edges.items():
            if edge in kept:
                found = (leaves.get(id(getattr(n, "variable", None))) for n in behind[i])
                self.held[i] = frozenset(k for k in found if k is not None)

    def _inputs(self, plain: Sequence[torch.Tensor]) -> list[Any]:
        made = self.inputs.rebuilt(plain)
        if not self.tracks:
            return made
        for i, spec in zip(self.inputs.tensors, self.inputs.specs, strict=True):
            if self.inputs.examples[i].requires_grad:
                made[i] = (made[i].detach() if spec is None else made[i]).requires_grad_()
        return made

    def _outputs(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        before = _state()
        try:
            outputs: Sequence[torch.Tensor] = self.gm(*inputs)
            if _state() != before:
                refuse("grad mode or autocast, which the graph changes and does not restore")
            return outputs
        finally:
            _put_back(before)

    def _flat(
        self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The inner tensors that the forward computes for the outputs."""
        leaves, specs = flatten_all(outputs)
        handed = {id(t) for t, s in zip(leaves, structural_of(specs), strict=True) if s}
        known = {id(t): -1 - k for k, t in enumerate(given) if id(t) in handed}
        computed: list[torch.Tensor] = []
        places: list[int] = []
        for t in leaves:
            if id(t) not in known:
                if id(t) in handed:
                    known[id(t)] = len(computed)
                computed.append(t)
            places.append(known.get(id(t), len(computed) - 1))
        self.results, self.n_results = RebuildRule.of(specs, places), len(computed)
        shared = len({*map(storage_of, (*given, *computed))}) < len(given) + len(computed)
        if shared or any(t._is_view() and any(t._base is other for other in (*inputs, *outputs)) for t in outputs):
            refuse("an output that shares memory with another output or an input")
        return computed

    def _forward(self, *plain: torch.Tensor) -> list[torch.Tensor]:
        inputs = self._inputs(plain)
        before = [*map(version_of, inputs)]
        outputs = self._outputs(inputs)
        after = self.inputs.distinct(self.inputs.leaves(inputs))
        within = self.inputs.within()
        if any(a is not b for a, b, inside in zip(after, plain, within, strict=True) if inside):
            refuse("a write that replaces an inner tensor of an input")
        wrappers = [i for i, spec in zip(self.inputs.tensors, self.inputs.specs, strict=True) if spec is not None]
        self.written = [i for i in wrappers if version_of(inputs[i]) != before[i]]
        return self._flat(inputs, outputs, plain)

    def _joint(self, *given: torch.Tensor) -> list[torch.Tensor]:
        count = len(self.inputs.firsts)
        inputs = self._inputs(given[:count])
        outputs = self._outputs(inputs)
        computed = self._flat(inputs, outputs, given)
        mark_ahead()
        fresh = iter(given[count:])
        tangents = [like_output(outputs[i], gradient_spec(self.results.specs[i]), fresh) for i in self.tracked]
        tensors = [inputs[i] for i in self.inputs.tensors]
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad([outputs[i] for i in self.tracked], wanted, tangents, allow_unused=True))
        grads = [next(found) if t.requires_grad else None for t in tensors]
        self.has_grad = [g is not None for g in grads]
        return [*computed, *self._flat_grads([g for g in grads if g is not None], given, computed)]

    def _flat_grads(
        self, grads: Sequence[torch.Tensor], given: Sequence[torch.Tensor], computed: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        leaves, specs = flatten_all(grads)
        known = {id(t): -1 - k for k, t in enumerate(given)}
        inside: list[torch.Tensor] = []
        places: list[int] = []
        taken = {*map(storage_of, (*given, *computed))}
        for t, handed in zip(leaves, structural_of(specs), strict=True):
            if handed:
                if id(t) not in known:
                    refuse("a gradient with offsets that no input has")
                places.append(known[id(t)])
            else:  # each gradient has memory of its own: the program may write to it
                inside.append(t.clone() if storage_of(t) in taken else t)
                taken.add(storage_of(inside[-1]))
                places.append(len(inside) - 1)
        self.grads = RebuildRule.of(specs, places)
        return inside


def _saving(output: torch.Tensor) -> list[Any]:
    """The autograd nodes behind an output that have saved tensors, in order."""
    return [n for n in nodes_behind(output.grad_fn) if kept_tensors(n)]


def _traced(
    mode: Any, run: Callable[..., Any], given: list[torch.Tensor], symbols: Sequence[Any], *, writes: bool = False
) -> fx.Graph:
    traced = record(mode, run, given, symbols)
    if writes or not any(map(is_write, traced.nodes)):
        return traced
    if any(name_of(n.target) is not None for n in traced.nodes):
        refuse("a write inside a tensor subclass, in a graph with a collective")
    theirs = {*map(memory_of, traced.find_nodes(op="placeholder"))}
    for node in traced.nodes:
        if is_write(node) and not theirs.isdisjoint(map(memory_of, node.all_input_nodes)):
            refuse(f"{node.target}, which writes an input inside a tensor subclass")
    return without_writes(mode, traced)
