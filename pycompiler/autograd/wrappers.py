"""Graphs of wrappers (`ir/subclasses.py`): plain graphs of the tensors inside, with the wrappers made again around them.

In: a captured graph with wrappers among its inputs or values, and `compile_plain`, which compiles graphs of plain tensors.
Out: a callable of the graph's inputs.
Example: of ``x * 2`` with a `TwoTensor` it is a graph of two products and `TwoTensor` of both.

The graph runs once while it is traced below the classes: each `__torch_dispatch__` is asked then, of forward and backward, for
autograd lies above the classes.  The trace is cut where gradients begin; what the backward reads of the forward is saved.
What is not covered raises `AutogradUnsupported`, and the graph runs as it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload

from pycompiler.autograd.replay import transformed
from pycompiler.autograd.saved import TWICE, keeps_graph
from pycompiler.autograd.tape import Unrecorded, record, without_writes
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.errors import PyCompilerError
from pycompiler.ir.effects import acts, draws, drops_nothing, is_check, raises, stays
from pycompiler.ir.fake import fake_like
from pycompiler.ir.jagged import SHAPED
from pycompiler.ir.numbers import number_at, symbol_of
from pycompiler.ir.strides import layouts
from pycompiler.ir.subclasses import (
    Spec,
    alike,
    at,
    count,
    flatten,
    flatten_all,
    is_wrapper,
    leaves_of,
    rebuild,
    rebuild_all,
    structural,
    told_by_symbols,
)
from pycompiler.ir.symbols import Specialise

CompilePlain = Callable[[fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


def has_wrappers(gm: fx.GraphModule) -> bool:
    """Whether a value of the captured graph is a wrapper."""
    return any(is_wrapper(type(n.meta.get("example_value"))) for n in gm.graph.nodes)


def compile_wrappers(
    gm: fx.GraphModule, examples: Sequence[Any], compile_plain: CompilePlain
) -> Callable[..., Sequence[Any]]:
    """Compile `gm`; see the module docstring."""
    tracks = _check(gm, examples)
    if not tracks and any(n.meta["example_value"].requires_grad for n in _results(gm)):
        _refuse("a leaf that the program makes")
    trace = _Trace(gm, Inputs.of(examples), tracks)
    plain = like(trace.inputs.distinct(trace.inputs.leaves()))
    traced, given = trace.run(plain)
    with torch.no_grad(), torch._C._DisableAutocast():  # both are in the graph already
        if trace.tracked:
            return _Pair(trace, traced, given, compile_plain).run
        inputs, flat = traced.find_nodes(op="placeholder"), _results(traced)
        if any(acts(n.target) and not is_check(n.target) for n in traced.nodes):
            _refuse("an operator that acts")
        needed = [*flat, *(n for n in traced.nodes if stays(n.target) or _writes(n))]
        made = compile_plain(_part(traced, inputs, flat, needed), [*like(plain), *trace.inputs.symbols])
        within = trace.inputs.within()
        kept = {_memory_of(n) for n, inside in zip(inputs, within, strict=False) if inside}
        below = (n for node in traced.nodes if _writes(node) for n in node.all_input_nodes)
        writes = trace.written or not kept.isdisjoint(map(_memory_of, below))  # also through `.data` of a wrapper
        if writes and trace.inputs.are_jagged():
            _refuse("a write to a jagged tensor")
        return _writing(made, trace) if writes else _inference(made, trace)


def _results(graph: fx.GraphModule | fx.Graph) -> Sequence[fx.Node]:
    graph = graph if isinstance(graph, fx.Graph) else graph.graph
    return graph.output_node().args[0]  # type: ignore[return-value]


def _refuse(what: str) -> NoReturn:
    raise AutogradUnsupported("a graph of tensor subclasses", what, "it runs as it was captured")


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _draws(node: fx.Node) -> bool:
    return draws(node.target) and not drops_nothing(node.target, node.args, node.kwargs)


_SETTERS = frozenset(
    (torch._C._set_grad_enabled, torch._assert_async, torch.set_autocast_enabled, torch.set_autocast_dtype,
     torch.set_autocast_cache_enabled, torch.autocast_increment_nesting, torch.autocast_decrement_nesting,
     torch.clear_autocast_cache)
)  # fmt: skip
"""What a graph may call for what it does: what these switch is switched back, or the graph is refused."""


def _state() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    return torch.is_grad_enabled(), *((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds)


def _put_back(state: tuple[Any, ...]) -> None:
    torch._C._set_grad_enabled(state[0])
    for kind, (on, dtype) in zip(("cpu", "cuda"), state[1:], strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)


def _check(gm: fx.GraphModule, examples: Sequence[Any]) -> bool:
    """Whether gradients of inputs may be asked for; raises for what is not covered."""
    if not all(isinstance(e, (torch.Tensor, torch.SymInt, torch.SymFloat)) for e in examples):
        _refuse("an input that is no tensor and no number")
    tracks = torch.is_grad_enabled() and any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples)
    for node in gm.graph.nodes:
        if node.op == "get_attr" or "binds" in node.meta:
            _refuse(f"{node.op} {node.target}")
        acting = node.meta.get("acts") and (node.meta.get("python") or not node.meta.get("refuses"))
        if acting or (node.meta.get("mutates") and tracks):
            if node.target not in _SETTERS:
                _refuse(f"{node.target}, which acts, or writes what has gradients")
    if any(n.op == "placeholder" for n in _results(gm)):
        _refuse("an output that is an input")
    return tracks


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs: tensors and numbers.  A tensor inside of several of them is one input of the plain graphs."""

    examples: Sequence[Any]
    tensors: list[int]  # which of them are tensors
    specs: list[Spec | None]  # of these, how each is made
    firsts: list[int]  # of the tensors inside of all: those that were not seen before
    numbers: list[int]  # of the tensors inside of all: which of the distinct ones each is

    @staticmethod
    def of(examples: Sequence[Any]) -> Inputs:
        tensors = [i for i, e in enumerate(examples) if isinstance(e, torch.Tensor)]
        leaves, specs = flatten_all([examples[i] for i in tensors])
        known: dict[int, int] = {}
        numbers = [known.setdefault(id(t), len(known)) for t in leaves]
        firsts = [numbers.index(n) for n in range(len(known))]
        return Inputs(examples, tensors, specs, firsts, numbers)

    @property
    def symbols(self) -> list[Any]:
        return self.numbers_of(self.examples)

    def numbers_of(self, inputs: Sequence[Any]) -> list[Any]:
        known = {*self.tensors}
        return [v for i, v in enumerate(inputs) if i not in known]

    @cached_property
    def names(self) -> list[str]:
        return [symbol_of(v) or "" for v in self.symbols]

    def env(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The numbers that the symbols are in a call."""
        return dict(zip(self.names, self.numbers_of(inputs), strict=True)) if self.names else {}

    def leaves(self, inputs: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """What is inside of all tensors."""
        found: list[torch.Tensor] = []
        inputs = self.examples if inputs is None else inputs
        for i in self.tensors:
            leaves_of(inputs[i], found)
        return found

    def distinct(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [leaves[i] for i in self.firsts]

    def within(self) -> list[bool]:
        """Of each distinct tensor: whether it is inside of a wrapper."""
        inside = _inside(self.specs)
        return [any(w for n, w in zip(self.numbers, inside, strict=True) if n == i) for i in range(len(self.firsts))]

    def rebuilt(self, plain: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs, made of distinct tensors."""
        made = [*self.examples]
        tensors = rebuild_all(self.specs, [plain[n] for n in self.numbers])
        for i, t in zip(self.tensors, tensors, strict=True):
            made[i] = t
        return made

    def are_jagged(self) -> bool:
        return any(any(structural(spec)) for spec in self.specs)

    def place(self, number: int) -> tuple[int, int]:
        """In which input a distinct tensor is first, and which one of those inside."""
        i, j = _places(self.specs)[self.firsts[number]]
        return self.tensors[i], j


@dataclass(frozen=True)
class Made:
    """How tensors are made of what graphs compute.  Of each tensor inside `places` has the number among those computed, or -1 - k
    for the input's number k itself."""

    specs: list[Spec | None]
    places: list[int]

    @staticmethod
    def of(specs: list[Spec | None], places: list[int]) -> Made:
        if any(map(told_by_symbols, specs)):
            _refuse("a context with sizes that are symbols")
        return Made(specs, places)

    def rebuilt(
        self, computed: Sequence[torch.Tensor], given: Sequence[torch.Tensor], env: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        specs = [at(spec, env) for spec in self.specs] if env else self.specs
        return rebuild_all(specs, [computed[p] if p >= 0 else given[-1 - p] for p in self.places])


@dataclass
class _Trace:
    """A run of the graph below the classes, and what it showed."""

    gm: fx.GraphModule
    inputs: Inputs
    tracks: bool  # whether gradients of inputs may be asked for
    written: list[int] = field(default_factory=list)  # the wrappers among the inputs that are
    results: Made = field(default_factory=lambda: Made([], []))  # how the outputs are made
    n_results: int = 0  # how many tensors the forward computes for them
    tracked: list[int] = field(default_factory=list)  # the outputs that gradients come to
    # for each of them eager's nodes that save something, numbered
    saving: list[frozenset[int]] = field(default_factory=list)
    has_grad: list[bool] = field(default_factory=list)  # of each tensor among the inputs
    grads: Made = field(default_factory=lambda: Made([], []))  # how those that have one are made

    def run(self, plain: list[torch.Tensor]) -> tuple[fx.Graph, list[torch.Tensor]]:
        """The graph of plain tensors, and those that it was traced with: `plain`, then what is inside of tangents."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # it would keep fakes for the program's next region
        try:
            return self._run(plain)
        except Unrecorded as e:
            _refuse(str(e))
        except (PyCompilerError, Specialise):
            raise
        except Exception as e:  # of torch's, or of the class: the call, or its backward, tells the program
            _refuse(f"an operator that raises: {e}")
        finally:
            torch.set_autocast_cache_enabled(cached)

    def _run(self, plain: list[torch.Tensor]) -> tuple[fx.Graph, list[torch.Tensor]]:
        mode = _mode(plain)
        with mode:
            outputs = self._outputs(self._inputs(plain)) if self.tracks else ()
        self.tracked = [i for i, t in enumerate(outputs) if t.requires_grad]
        if not self.tracked:
            return _traced(mode, self._forward, plain, self.inputs.symbols, writes=True), plain
        numbers: dict[Any, int] = {}
        self.saving = [
            frozenset(numbers.setdefault(n, len(numbers)) for n in _saving(outputs[i])) for i in self.tracked
        ]
        given = [*plain, *like([t for i in self.tracked for t in data_of(outputs[i])])]
        return _traced(mode, self._joint, given, self.inputs.symbols), given

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
                _refuse("a mode of torch's that outlives the graph")
            return outputs
        finally:
            _put_back(before)

    def _flat(
        self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """What the forward computes for the outputs."""
        leaves, specs = flatten_all(outputs)
        handed = {id(t) for t, s in zip(leaves, _structural(specs), strict=True) if s}
        known = {id(t): -1 - k for k, t in enumerate(given) if id(t) in handed}
        computed: list[torch.Tensor] = []
        places: list[int] = []
        for t in leaves:
            if id(t) not in known:
                if id(t) in handed:
                    known[id(t)] = len(computed)
                computed.append(t)
            places.append(known.get(id(t), len(computed) - 1))
        self.results, self.n_results = Made.of(specs, places), len(computed)
        shared = len({*map(_memory, (*given, *computed))}) < len(given) + len(computed)
        if shared or any(t._is_view() and any(t._base is other for other in (*inputs, *outputs)) for t in outputs):
            _refuse("an output in the memory of another one, or of an input")
        return computed

    def _forward(self, *plain: torch.Tensor) -> list[torch.Tensor]:
        inputs = self._inputs(plain)
        before = [*map(_version, inputs)]
        outputs = self._outputs(inputs)
        after = self.inputs.distinct(self.inputs.leaves(inputs))
        within = self.inputs.within()
        if any(a is not b for a, b, inside in zip(after, plain, within, strict=True) if inside):
            _refuse("a write that puts another tensor inside")
        wrappers = [i for i, spec in zip(self.inputs.tensors, self.inputs.specs, strict=True) if spec is not None]
        self.written = [i for i in wrappers if _version(inputs[i]) != before[i]]
        return self._flat(inputs, outputs, plain)

    def _joint(self, *given: torch.Tensor) -> list[torch.Tensor]:
        count = len(self.inputs.firsts)
        inputs = self._inputs(given[:count])
        outputs = self._outputs(inputs)
        computed = self._flat(inputs, outputs, given)
        fresh = iter(given[count:])
        tangents = [_like_output(outputs[i], self.results.specs[i], fresh) for i in self.tracked]
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
        taken = {*map(_memory, (*given, *computed))}
        for t, handed in zip(leaves, _structural(specs), strict=True):
            if handed:
                if id(t) not in known:
                    _refuse("a gradient with offsets that no input has")
                places.append(known[id(t)])
            else:  # each has memory of its own: the program may write to it
                inside.append(t.clone() if _memory(t) in taken else t)
                taken.add(_memory(inside[-1]))
                places.append(len(inside) - 1)
        self.grads = Made.of(specs, places)
        return inside


def data_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What is inside but the structure."""
    leaves: list[torch.Tensor] = []
    spec = flatten(tensor, leaves)
    return [t for t, s in zip(leaves, structural(spec), strict=True) if not s]


def _like_output(output: torch.Tensor, spec: Spec | None, data: Iterator[torch.Tensor]) -> torch.Tensor:
    """A tangent: other data in the output's structure."""
    leaves: list[torch.Tensor] = []
    leaves_of(output, leaves)
    marks = structural(spec)
    return rebuild(spec, iter([t if s else next(data) for t, s in zip(leaves, marks, strict=True)]))


def _structural(specs: Sequence[Spec | None]) -> list[bool]:
    return [s for spec in specs for s in structural(spec)]


def _mode(tensors: Sequence[torch.Tensor]) -> Any:
    mode = detect_fake_mode(list(tensors))
    assert mode is not None
    return mode


def _saving(output: torch.Tensor) -> list[Any]:
    """The nodes of autograd's graph behind an output that have saved tensors, in order."""
    found, todo = dict[Any, None](), [output.grad_fn]
    while todo:
        node: Any = todo.pop()
        if node is not None and node not in found:
            found[node] = None
            todo += [n for n, _ in node.next_functions]
    names = {n: [a for a in dir(n) if a.startswith("_saved_")] for n in found}
    return [n for n in found if any(isinstance(getattr(n, a), torch.Tensor) for a in names[n])]


def like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other fakes that lie as these."""
    if not tensors:
        return []
    mode = _mode(tensors)
    return [fake_like(mode, t.size(), t.stride(), int(t.storage_offset()), t.dtype, t.device) for t in tensors]


def _memory(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _traced(
    mode: Any, run: Callable[..., Any], given: list[torch.Tensor], symbols: Sequence[Any], *, writes: bool = False
) -> fx.Graph:
    traced = record(mode, run, given, symbols)
    if writes or not any(map(_writes, traced.nodes)):
        return traced
    theirs = {*map(_memory_of, traced.find_nodes(op="placeholder"))}
    for node in traced.nodes:
        if _writes(node) and not theirs.isdisjoint(map(_memory_of, node.all_input_nodes)):
            _refuse(f"{node.target}, inside of a class")
    return without_writes(mode, traced)


def _part(
    traced: fx.Graph, given: Sequence[fx.Node], results: Sequence[fx.Node], needed: Sequence[fx.Node] = ()
) -> fx.GraphModule:
    """The captured graph that computes `results` of `given`; what nobody reads is left out, but for `needed`."""
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}

    def known(node: fx.Node, new: fx.Node) -> None:
        value = node.meta["val"]
        env[node] = new
        new.meta = {"example_value": value, "strides": layouts(value), "user": ()}

    wanted = _ancestors([*results, *needed], given)
    for node in given:
        known(node, made.placeholder(node.name))
    for node in traced.nodes:
        if node in wanted and node not in env:
            known(node, made.node_copy(node, env.__getitem__))
    made.output(tuple(env[n] for n in results))
    return fx.GraphModule({}, made, class_name="CapturedGraph")


def _ancestors(results: Sequence[fx.Node], given: Sequence[fx.Node] = ()) -> set[fx.Node]:
    """What `results` are computed of, themselves included, down to `given`."""
    found, todo = set[fx.Node](), [*results]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [] if node in given else node.all_input_nodes
    return found


def _memory_of(node: fx.Node) -> int | None:
    value = node.meta["val"]
    return _memory(value) if isinstance(value, torch.Tensor) else None


def _cut(
    grads: Sequence[fx.Node], ahead: set[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> tuple[set[fx.Node], list[fx.Node]]:
    """What the backward reads: of inputs and outputs, and other values of the forward, which are saved.  Views are made again."""
    read, saved, seen, todo = set[fx.Node](), dict[fx.Node, None](), set[fx.Node](), [*grads]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        memory = _memory_of(node)
        if node in inputs or node in outputs:
            read.add(node)
        elif node not in ahead or memory is None or any(_memory_of(n) == memory for n in node.all_input_nodes):
            todo += node.all_input_nodes
        else:
            saved[node] = None
    return read, [*saved]


# what runs ----------------------------------------------------------------------------------------------------
def _inference(forward: Callable[..., Sequence[Any]], trace: _Trace) -> Callable[..., Sequence[Any]]:
    known, results = trace.inputs, trace.results

    def run(*inputs: Any) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            given = known.distinct(known.leaves(inputs))
            return tuple(results.rebuilt(forward(*given, *known.numbers_of(inputs)), given, known.env(inputs)))

    return run


def _writing(forward: Callable[..., Sequence[Any]], trace: _Trace) -> Callable[..., Sequence[Any]]:
    """As `_inference`, of a graph that writes wrappers: their versions count that, those of the tensors inside do not."""
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


class _Pair:
    """A forward, which gives what is inside of the outputs and what it saves, and a backward of that and of the tangent.

    What the backward reads of inputs and outputs is read again: autograd says whether they were written since.
    """

    def __init__(self, trace: _Trace, traced: fx.Graph, given: list[torch.Tensor], compile_plain: CompilePlain) -> None:
        self.gm, self.inputs, self.results = trace.gm, trace.inputs, trace.results
        self.has_grad, self.grads = trace.has_grad, trace.grads
        self.tracked, self.saving = trace.tracked, trace.saving
        self.n_results = trace.n_results
        nodes = traced.find_nodes(op="placeholder")
        count, end = len(self.inputs.firsts), len(given)
        inputs, tangents, symbols = nodes[:count], nodes[count:end], nodes[end:]
        flat = _results(traced)
        outputs, grads = [*flat[: self.n_results]], [*flat[self.n_results :]]
        ahead, checks = _ancestors(outputs), list[fx.Node]()
        for node in traced.nodes:
            if _draws(node) or (acts(node.target) and not is_check(node.target)):
                _refuse(f"{node.target}, with gradients")
            if is_check(node.target) and _ancestors([node]).isdisjoint(tangents):
                checks.append(node)
            elif raises(node.target) and node not in ahead and _ancestors([node]).isdisjoint(tangents):
                _refuse(f"{node.target}, whose result is not used")
        if not ahead.isdisjoint(tangents) or not {*map(_memory_of, ahead)}.isdisjoint(map(_memory_of, grads)):
            _refuse("a gradient that the forward has")
        read, saved = _cut(grads, ahead, inputs, outputs)
        read -= {*symbols}
        self.likes = [Form.of(n.meta["val"]) for n in tangents]
        first = [i for i, n in enumerate(inputs) if n in read]
        second = [i for i, n in enumerate(outputs) if n in read]
        of_saved = {*map(_memory_of, saved)}  # of which outputs are views: a write to one is a write to what is saved
        watched = [i for i, n in enumerate(outputs) if _memory_of(n) in of_saved]
        shown = [_places(self.results.specs)[self.results.places.index(i)] for i in range(self.n_results)]
        places = [
            *(("input", *self.inputs.place(i)) for i in first),
            *(("output", *shown[i]) for i in second),
        ]
        self.kept = sorted({*(p[:2] for p in places), *(("output", shown[i][0]) for i in watched)})
        self.read = [(self.kept.index(place[:2]), place[2]) for place in places]  # which of these, which tensor inside
        forward = _part(traced, [*inputs, *symbols], [*outputs, *saved], [*outputs, *saved, *checks])
        self.forward = compile_plain(forward, [*given[:count], *self.inputs.symbols])
        taken = [*(inputs[i] for i in first), *(outputs[i] for i in second), *saved, *tangents]
        backward = _part(traced, [*taken, *symbols], grads)
        self.backward = compile_plain(backward, [*like([n.meta["val"] for n in taken]), *self.inputs.symbols])

    def run(self, *inputs: Any) -> Sequence[torch.Tensor]:
        return _Node.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]

    def run_forward(self, ctx: Any, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        given, numbers = self.inputs.distinct(self.inputs.leaves(inputs)), self.inputs.numbers_of(inputs)
        with torch._C._DisableAutocast():
            found = self.forward(*given, *numbers)
        outputs = self.results.rebuilt(found[: self.n_results], given, self.inputs.env(inputs))
        ctx.pair, ctx.given, ctx.freed = self, [(t, _version(t)) for t in inputs], frozenset()
        ctx.structures = [_structure_of(outputs[i], self.results.specs[i]) for i in self.tracked]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for i, t in enumerate(outputs) if i not in self.tracked))
        kept = [(inputs if kind == "input" else outputs)[i] for kind, i in self.kept]
        ctx.save_for_backward(*kept, *found[self.n_results :])
        return tuple(outputs)

    def run_backward(self, ctx: Any, given: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        tangents = {i: t for i in self.tracked if (t := given[i]) is not None}
        used = frozenset[int]().union(*(s for i, s in zip(self.tracked, self.saving, strict=True) if i in tangents))
        if not used.isdisjoint(ctx.freed):  # in eager these nodes are gone, but not those of other outputs
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
        for (i, t), structure in zip(tangents.items(), ctx.structures, strict=True):
            inside: list[torch.Tensor] = []
            spec = flatten(t, inside)
            if not _fits_structure(spec, inside, at(self.results.specs[i], env), structure):
                return self.again(ctx, tangents)
            leaves += [t for t, s in zip(inside, structural(spec), strict=True) if not s]
        likes = [form.at(env) for form in self.likes]
        if torch.is_grad_enabled() or transformed() or not all(map(_fits, leaves, likes)):
            return self.again(ctx, tangents)
        saved = ctx.saved_tensors
        kept = [flatten_all([t])[0] for t in saved[: len(self.kept)]]
        read = [kept[k][j] for k, j in self.read]
        with torch._C._DisableAutocast():
            found = self.backward(*read, *saved[len(self.kept) :], *map(_laid, leaves, likes), *numbers)
        made = iter(self.grads.rebuilt(found, self.inputs.distinct(self.inputs.leaves(inputs)), env))
        grads: list[torch.Tensor | None] = [None] * len(inputs)
        for i, has in zip(self.inputs.tensors, self.has_grad, strict=True):
            grads[i] = next(made) if has else None
        return grads

    def again(self, ctx: Any, tangents: Mapping[int, torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """The gradients, from the captured graph: they may be differentiated themselves, be of any kind, and some be missing."""
        inputs = [t for t, _ in ctx.given]
        if not tangents:
            return [None] * len(inputs)
        if any(_version(t) != version for t, version in ctx.given):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        creates = torch.is_grad_enabled()
        wanted = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
        with torch.enable_grad():
            made = self.gm(*inputs)
            outputs, given = [made[i] for i in tangents], [*tangents.values()]
            found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=creates, allow_unused=True))
        known = {*map(id, wanted)}
        return [next(found) if id(t) in known else None for t in inputs]


def _inside(specs: Sequence[Spec | None]) -> list[bool]:
    """Of each tensor: whether it is inside of a wrapper."""
    return [spec is not None for spec in specs for _ in range(count(spec))]


def _places(specs: Sequence[Spec | None]) -> list[tuple[int, int]]:
    """Of each tensor inside: which of the tensors it is inside of, and its number there."""
    return [(i, j) for i, spec in enumerate(specs) for j in range(count(spec))]


def _structure_of(tensor: torch.Tensor, spec: Spec | None) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    leaves_of(tensor, leaves)
    return [t for t, s in zip(leaves, structural(spec), strict=True) if s]


def _fits_structure(
    spec: Spec | None, leaves: Sequence[torch.Tensor], known: Spec | None, structure: Sequence[torch.Tensor]
) -> bool:
    """Whether a tangent is made as its output: around the output's very structure, but for numbers that torch has cached."""
    if spec is None or known is None or not any(structural(known)):
        return alike(spec, known)
    found, wanted = ({n: t for (n, _), t in zip(s.parts, ts, strict=False) if n in SHAPED}
                     for s, ts in ((spec, leaves), (known, (None, *structure))))  # fmt: skip
    same = found.keys() == wanted.keys() and all(found[n] is wanted[n] for n in found)
    return same and (spec.cls, spec.context) == (known.cls, known.context)


def _version(t: Any) -> int | None:
    return None if not isinstance(t, torch.Tensor) or t.is_inference() else t._version


@dataclass(frozen=True)
class Form:
    """How a tensor lies, over symbols."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(t: torch.Tensor) -> Form:
        return Form(tuple(t.shape), t.stride(), t.dtype, t.device)

    def at(self, env: Mapping[str, Any]) -> Form:
        shape, strides = (tuple(number_at(n, env) for n in ns) for ns in (self.shape, self.strides))
        return Form(shape, strides, self.dtype, self.device)


def _fits(t: torch.Tensor, form: Form) -> bool:
    plain = type(t) is torch.Tensor and t.layout is torch.strided
    return plain and (tuple(t.shape), t.dtype, t.device) == (form.shape, form.dtype, form.device)


def _laid(t: torch.Tensor, form: Form) -> torch.Tensor:
    """`t` with the strides that the backward was compiled for, and its elements as they are in memory."""
    t = t.resolve_conj().resolve_neg()
    if t.stride() == form.strides:
        return t
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device).copy_(t)


class _Node(torch.autograd.Function):
    """A call's node of autograd's, which takes and gives the wrappers."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, *inputs: torch.Tensor) -> Any:
        return pair.run_forward(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, *ctx.pair.run_backward(ctx, tangents)
