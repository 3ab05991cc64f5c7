"""Trace a torch-level graph once into a functional ATen graph: forward, and gradients if they are needed.

In: a captured graph, its inputs, decompositions.  Out: a `Joint`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import _engine_run_backward

from pycompiler.autograd.joint import Joint, Mutation, Path, ResultHook, drop_dead
from pycompiler.autograd.recorder import Decomposition, Recorder, functional, is_dense, unrecorded_fakes
from pycompiler.autograd.replay_graph import has_inner_gradient
from pycompiler.autograd.trace import gradient_paths
from pycompiler.autograd.trace.eager_formulas import refuse_written
from pycompiler.autograd.trace.forward import DATA_DEPENDENT, Forward
from pycompiler.autograd.trace.gradient_memory import GradientMemory
from pycompiler.autograd.trace.inputs import (
    TracedInput,
    fresh_fakes,
    layout_of,
    mutation_kind,
    refuse_exotic,
    storage_of,
)
from pycompiler.autograd.trace.results import TraceResults
from pycompiler.autograd.trace.writes import may_overlap
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import view_root
from pycompiler.ir import higher_order
from pycompiler.operators.composite_rules import python_rules
from pycompiler.symbolic.symbolic_node import symbols_refused_by_cpp
from pycompiler.symbolic.symbols import Specialise


def trace_joint(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    fake_mode: FakeTensorMode,
    decompositions: Mapping[OpOverload, Decomposition],
    store_in_graph: bool = False,
    branches: Mapping[fx.Node, Callable[..., Any]] | None = None,
    cut: bool = False,
) -> Joint:
    """Trace `gm`; raises `AutogradUnsupported` for graphs that cannot be expressed functionally.

    `store_in_graph`: see `Joint.store_in_graph`; `branches`: functions for branches and loops (`Branches`);
    `cut`: `Joint.cuts` are allowed.
    """
    for example in inputs:
        refuse_exotic(example)
    grad_mode, cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    # the cache would keep functional wrappers of this trace for the user's next region
    torch.set_autocast_cache_enabled(False)
    try:
        more: list[fx.Node] | None = [] if cut else None
        hooks: list[tuple[fx.Node, int]] = []
        while True:
            recorder = Recorder(fake_mode, decompositions)
            with (
                torch.inference_mode(False),
                torch.set_grad_enabled(grad_mode),
                _python_rules(gm, inputs),
                recorder.binding(),
                functional(),
                recorder,
            ):
                trace = _JointTrace(gm, inputs, recorder, branches or {}, more, hooks)
                joint = trace.run(store_in_graph)
            if not trace.lacking and not trace.hooks:
                return joint
            hooks += trace.hooks
            lacking = [*trace.lacking, *(n for call, _ in trace.hooks for n in call.args[2:])]
            more = [*dict.fromkeys([*(more or ()), *lacking])]
    except DATA_DEPENDENT as error:
        raise AutogradUnsupported(
            "a size or number that depends on data", str(error), "the graph runs eagerly"
        ) from error
    except AutogradUnsupported:
        raise
    except RuntimeError as error:
        if "modified inplace" not in str(error):
            raise
        # A view whose history autograd refuses to compute: eager raises when the history is used, or never.
        raise AutogradUnsupported("a view of a written tensor", str(error), "the graph runs eagerly") from error
    finally:
        torch.set_autocast_cache_enabled(cached)


def _python_rules(gm: fx.GraphModule, inputs: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """torch's Python dispatcher if numbers are symbolic: not all C++ kernels of views and composites accept them."""
    symbolic = any(
        t._has_symbolic_sizes_strides if isinstance(t, torch.Tensor) else isinstance(t, torch.SymInt) for t in inputs
    )
    symbolic |= any("binds" in n.meta for n in gm.graph.nodes)
    return python_rules() if symbolic else contextlib.nullcontext()


class _JointTrace:
    """State of one `trace_joint`."""

    def __init__(
        self,
        gm: fx.GraphModule,
        examples: Sequence[Any],
        recorder: Recorder,
        branches: Mapping[fx.Node, Callable[..., Any]],
        more: list[fx.Node] | None,
        hooks: Sequence[tuple[fx.Node, int]] = (),
    ) -> None:
        """`more`: `Joint.more`, or None if it is not allowed; `hooks`: calls that register `Joint.hooks`, with their results."""
        self.gm = gm
        self.cut = more is not None
        self.lacking: list[fx.Node] = []  # nodes that must become part of `Joint.more`
        self.hooks: list[tuple[fx.Node, int]] = []  # calls that must become part of `hooks`
        self.moved = hooks
        self.examples = examples
        self.recorder = recorder
        self.joint = Joint(recorder.graph, recorder.constants, [], more=more or [])
        self.inputs = [self._input(n.name, e, f) for n, e, f in self._examples()]
        self.forward = Forward(gm, recorder, branches, self.joint.more)
        self.forward.moved = {call for call, _ in hooks}
        self.results = TraceResults(gm, recorder, self.joint, self.inputs, self.forward.hooked)
        self.joint.arrived = frozenset(
            i for i, x in enumerate(self.inputs) if x is not None and x.requires_grad and not x.example.is_leaf
        )

    def run(self, store_in_graph: bool) -> Joint:
        grad_mode = torch.is_grad_enabled()
        results = self.forward.run(
            [e if x is None else x.seen for x, e in zip(self.inputs, self.examples, strict=True)]
        )
        torch._C._set_grad_enabled(grad_mode)
        self._find_mutations()
        if not grad_mode:
            self._refuse_gradients(results)
        self.results.find(results)
        self._find_hooks(results)
        if self.hooks:
            return self.joint
        if store_in_graph:
            self.results.keep(self.joint.store_in_graph())
        self.results.own_storage()
        if torch.is_grad_enabled():
            self._differentiate()
        nodes = [*self.joint.fresh, *(value for _, value in self.joint.stores), *self.joint.grads]
        self.recorder.graph.output(tuple(nodes))
        drop_dead(self.recorder.graph)
        self.joint.counts = self.recorder.counts
        return self.joint

    def _find_hooks(self, results: tuple[Any, ...]) -> None:
        """Find hooks on results: they become hooks of the caller's tensors, where all gradients arrive."""
        joint, count = self.joint, len(results) - len(self.joint.more)
        order = {n: k for k, n in enumerate(self.gm.graph.nodes)}
        if self.cut and torch.is_grad_enabled() and self.forward.hooks:
            edges = {
                (t.grad_fn, t.output_nr): k
                for k, (t, output) in enumerate(zip(results, joint.outputs, strict=True))
                if output.kind in ("fresh", "view") and t.requires_grad
            }
            hooks = self.forward.hooks
            stay = {edge for call, edge in hooks.items() if has_inner_gradient(call.args[1], order)}  # type: ignore[arg-type]
            self.hooks = [(call, edges[edge]) for call, edge in hooks.items() if edge in edges.keys() - stay]
        places = {n: count + k for k, n in enumerate(joint.more)}
        moved = sorted(self.moved, key=lambda found: order[found[0]])
        for call, k in moved:
            body: Any = call.args[0]
            joint.hooks.append(ResultHook(call, getattr(self.gm, body.target), k, [places[n] for n in call.args[2:]]))  # type: ignore[index]

    def _examples(self) -> Iterator[tuple[fx.Node, Any, Any]]:
        """Each placeholder of the captured graph with its example and a fake of its own."""
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        yield from zip(placeholders, self.examples, fresh_fakes(self.examples, self.recorder.fake_mode), strict=True)

    def _input(self, name: str, example: Any, fake: Any) -> TracedInput | None:
        """The input for a tensor; a number only has a placeholder."""
        if not isinstance(example, torch.Tensor):
            self.joint.inputs.append(self.recorder.placeholder(name, example))
            return None
        made = TracedInput(example, fake, self.recorder, name)
        self.joint.inputs.append(made.node)
        return made

    def _find_mutations(self) -> None:
        for i, item in enumerate(self.inputs):
            if item is None:
                continue
            if (
                (layout_of(item.seen) != item.layout and not self._is_displaced(item))
                or torch._functionalize_was_storage_changed(item.seen)
                or torch._functionalize_has_metadata_mutation(item.seen)  # type: ignore[attr-defined]
                or (item.seen.storage_offset() != item.offset and self._counts_from_the_storage())
            ):
                raise AutogradUnsupported(
                    "the graph changes metadata of an input",
                    f"{item.node.name}: {item.layout} became {layout_of(item.seen)}",
                    "use the functional form of the view or resize",
                )
            value = item.value()
            if self.recorder.node(value) is item.node:
                if item.seen.requires_grad != item.seen_requires_grad or item.seen.grad_fn is not item.grad_fn:
                    raise AutogradUnsupported(
                        "the graph changes requires_grad or the history of an input",
                        item.node.name,
                        "change it outside of the graph",
                    )
                if item.seen._version != item.version:
                    self.joint.touched.append(i)
                continue
            self._refuse_shared_storage(i)
            if may_overlap(item.example):
                raise AutogradUnsupported(
                    "a write to an input whose elements share memory", item.node.name, "clone it first"
                )
            how = mutation_kind(item)
            if how == "grad" and storage_of(item.seen) in self.forward.rebased:
                self.joint.rebased.append(i)
            self.joint.mutations.append(Mutation(i, self.results.fresh(item.seen, ("input", i), how == "grad"), how))

    def _is_displaced(self, item: TracedInput) -> bool:
        """Whether an input with gaps has another layout in the trace since a write, which no later call revealed."""
        (shape, _, dtype), (before, _, kind) = layout_of(item.seen), item.layout
        return (shape, dtype) == (before, kind) and storage_of(item.seen) in self.forward.displaced

    def _refuse_gradients(self, results: tuple[Any, ...]) -> None:
        """Refuse gradients without grad mode: outside of the graph, its results are computed in the grad mode of its start."""
        inputs = {id(item.seen) for item in self.inputs if item is not None}
        made = [t for t in results if isinstance(t, torch.Tensor) and id(t) not in inputs]
        if any(t.requires_grad for t in made) or any(m.how == "grad" for m in self.joint.mutations):
            raise AutogradUnsupported(
                "the graph enables gradients",
                "an output requires grad, and the graph starts without grad mode",
                "enable gradients outside of the graph",
            )

    def _counts_from_the_storage(self) -> bool:
        """Whether an operator's meaning depends on a tensor's storage offset."""
        return any("as_strided" in str(n.target) for n in self.gm.graph.nodes)

    def _refuse_shared_storage(self, index: int) -> None:
        for j in self._inputs_by_storage[storage_of(self.examples[index])]:
            if j != index:
                names = f"{self.joint.inputs[index].name} is mutated and shares memory with {self.joint.inputs[j].name}"
                raise AutogradUnsupported("mutation of aliasing inputs", names, "pass one of them, or a clone")

    @functools.cached_property
    def _inputs_by_storage(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for j, example in enumerate(self.examples):
            if isinstance(example, torch.Tensor):
                found.setdefault(storage_of(example), []).append(j)
        return found

    def _differentiate(self) -> None:
        wanted = [item.leaf for item in self.inputs if item is not None and item.requires_grad]
        outputs = [t for t, d in zip(self.results.fresh_tensors, self.joint.differentiable, strict=True) if d]
        if outputs and not wanted:  # none of our nodes would have a history
            raise AutogradUnsupported(
                "a result requires grad, and no input does", str(outputs[0].grad_fn), "pass an input that requires grad"
            )
        if not outputs:
            self.joint.differentiable = [False] * len(self.joint.fresh)
            return
        self.recorder.differentiates = True
        tangents = [self._tangent(k) for k, d in enumerate(self.joint.differentiable) if d]
        try:
            cuts: dict[tuple[str, int], torch.Tensor] = {}
            if self.cut:
                candidates = self._candidates()
                edges = {(t.grad_fn, t.output_nr): k for k, t in enumerate(candidates.values())}
                known = {edge: n for edge, n in self.forward.edges.items() if n not in self.joint.more}
                leaves = {id(leaf) for leaf in wanted}
                chosen, self.lacking = gradient_paths.choose_cuts(outputs, edges, known, leaves)
                names = list(candidates)
                if self.lacking:
                    return
                cuts = {names[k]: candidates[names[k]] for k in chosen}
                self._refuse_written(outputs, cuts)
            while True:
                self.joint.paths = self._paths(outputs, cuts)
                found, arrived = self._run_backward(outputs, tangents, wanted, cuts)
                if len(arrived) == len(cuts):
                    break
                cuts = {k: t for k, t in cuts.items() if k in arrived}  # the other cuts never get a gradient
            self.joint.cuts = list(cuts)
        except AutogradUnsupported:
            raise
        except RuntimeError as error:
            if (symbols := symbols_refused_by_cpp(error)) is not None:
                raise Specialise(symbols, "the gradient of an operator takes numbers only") from None
            # Eager raises this only when backward is called.
            raise AutogradUnsupported(
                "autograd refuses the gradient", str(error), "the graph runs eagerly, and its backward raises"
            ) from error
        memory = GradientMemory(self.recorder, self._held(tangents))
        nodes = iter(memory.nodes([*found, *(arrived[cut] for cut in cuts)]))
        self.joint.grads = [next(nodes) if item is not None and item.requires_grad else None for item in self.inputs]
        self.joint.grads += [n for n in nodes if n is not None]

    def _held(self, tangents: Sequence[torch.Tensor]) -> dict[fx.Node, int]:
        """Node of a tensor owned by the caller or by a call of backward -> its storage in the trace."""
        held = {item.node: storage_of(item.seen) for item in self.inputs if item is not None}
        fresh = zip(self.joint.fresh, self.results.fresh_tensors, strict=True)
        held.update((view_root(n), storage_of(t)) for n, t in fresh if t.layout is torch.strided)
        held.update(zip(self.joint.tangents, map(storage_of, tangents), strict=True))
        return held

    def _candidates(self) -> dict[tuple[str, int], torch.Tensor]:
        """Candidates for `Joint.cuts`: the caller's results, the memory that they view, and written inputs.

        Excluded are tensors with a hook of the program, which must see all gradients that arrive.
        """
        joint, fresh, found = self.joint, self.results.fresh_tensors, dict[tuple[str, int], torch.Tensor]()
        written, recorded = set(joint.written), {m.fresh for m in joint.recorded}
        for k in joint.tangent_of:
            if k in recorded or (k >= len(joint.mutations) and joint.origins[k][0] in ("result", "base")):
                found["fresh", k] = fresh[k]
        for k, output in enumerate(joint.outputs):
            if output.kind == "view" and self.results.tensors[k].requires_grad:
                begins = joint.begins(("view", k))
                root = self._viewed_input(k) if begins is None else None
                if ("fresh", begins) in found if begins is not None else root not in written:
                    found["view", k] = self.results.tensors[k]
        return {name: t for name, t in found.items() if t.grad_fn not in self.forward.hooked}

    def _refuse_written(self, outputs: Sequence[torch.Tensor], cuts: Mapping[tuple[str, int], torch.Tensor]) -> None:
        """Refuse gradients that pass through the new value of a written input, where no cut ends them.

        The caller's tensor should receive these gradients.
        """
        written = {
            (t.grad_fn, t.output_nr): m
            for m in self.joint.recorded
            if ("fresh", m.fresh) not in cuts and (t := self.results.fresh_tensors[m.fresh]).requires_grad
        }
        passed = gradient_paths.edges_between(
            [t.grad_fn for t in outputs], {(t.grad_fn, t.output_nr) for t in cuts.values()}
        )
        for edge in written.keys() & passed:
            raise AutogradUnsupported(
                "an input is written, and read afterwards",
                self.joint.inputs[written[edge].index].name,
                "clone it first",
            )

    def _viewed_input(self, k: int) -> int:
        """The input that result `k` views."""
        while not self.joint.outputs[k].of_input:
            k = self.joint.outputs[k].index
        return self.joint.outputs[k].index

    def _run_backward(
        self,
        outputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
        wanted: Sequence[torch.Tensor],
        cuts: Mapping[tuple[str, int], torch.Tensor],
    ) -> tuple[Sequence[torch.Tensor | None], dict[tuple[str, int], torch.Tensor]]:
        """The gradients of `wanted`, and the gradient that arrived at each cut.

        At a cut, its tangent replaces the gradient, or no gradient continues.
        """
        arrived: dict[tuple[str, int], torch.Tensor] = {}
        number = {k: j for j, k in enumerate(self.joint.tangent_of)}
        begins = {cut: self._begins_at(cut, t) for cut, t in cuts.items()}

        def swap(cut: tuple[str, int], fresh: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
            if gradient is None:
                return None
            arrived[cut] = gradient
            return tangents[number[fresh]]

        def end(cut: tuple[str, int], output: int, gradients: Sequence[Any]) -> tuple[Any, ...]:
            if gradients[output] is not None:
                arrived[cut] = gradients[output]
            return tuple(None if j == output else g for j, g in enumerate(gradients))

        handles: list[Any] = []
        for cut, t in cuts.items():
            if (fresh := begins[cut]) is not None:
                handles.append(t.register_hook(functools.partial(swap, cut, fresh)))  # type: ignore[no-untyped-call]
            else:
                assert t.grad_fn is not None
                handles.append(t.grad_fn.register_prehook(functools.partial(end, cut, t.output_nr)))
        begun = [j for k, j in number.items() if k not in begins.values()]
        higher_order.end_hooks.extend(handles)  # hooks of tensors behind a view must not run
        try:
            with torch.autograd.set_multithreading_enabled(False), torch._C._DisableAutocast():
                # as `torch.autograd.grad`, which imports sympy to compare the tangents' sizes
                found = _engine_run_backward(
                    tuple(outputs[k] for k in begun), tuple(tangents[k] for k in begun), bool(cuts), False, tuple(wanted),
                    True, accumulate_grad=False,
                )  # fmt: skip
        finally:
            del higher_order.end_hooks[: len(handles)]
            for handle in handles:
                handle.remove()
        return found, arrived

    def _begins_at(self, cut: tuple[str, int], t: torch.Tensor) -> int | None:
        """The fresh output whose gradient starts at a cut: the cut itself, or its base if it is a view only for the caller."""
        k = self.joint.begins(cut)
        if k is None or not self.joint.differentiable[k]:
            return None
        begin = self.results.fresh_tensors[k]
        return k if cut[0] == "fresh" or (begin.grad_fn, begin.output_nr) == (t.grad_fn, t.output_nr) else None

    def _paths(self, outputs: Sequence[torch.Tensor], cuts: Mapping[tuple[str, int], torch.Tensor]) -> list[Path]:
        """The path of each output's gradient in autograd's own graph."""
        leaves = {id(x.leaf): i for i, x in enumerate(self.inputs) if x is not None and x.requires_grad}
        kept = {s: ("input", i) for s, i in self.results.input_of_storage.items()}
        for k, t in enumerate(self.results.fresh_tensors):
            kept.setdefault(storage_of(t), ("fresh", k))
        cut = {(t.grad_fn, t.output_nr): len(self.inputs) + c for c, t in enumerate(cuts.values())}
        look = functools.partial(refuse_written, self.recorder)
        known = self.forward
        return gradient_paths.paths(outputs, leaves, kept, known.slices, known.hooked, known.remade, look, cut)

    def _tangent(self, k: int) -> torch.Tensor:
        value = self.joint.fresh[k].meta["val"]
        with unrecorded_fakes(self.recorder.fake_mode):
            if is_dense(value):
                fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            else:
                fake = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            fake.is_contiguous()  # decided now for symbolic sizes, while assumptions are possible
        self.joint.tangents.append(self.recorder.placeholder(f"tangent_{k}", fake))
        return torch._to_functional_tensor(fake)
