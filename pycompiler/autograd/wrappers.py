"""Graphs of wrappers (`ir/subclasses.py`): plain graphs of the tensors inside, with the wrappers made again around them.

In: a captured graph with wrappers among its inputs or values, and `compile_plain`, which compiles graphs of plain tensors.
Out: a callable of the graph's inputs.
Example: of ``x * 2`` with a `TwoTensor` it is a graph of two products and `TwoTensor` of both.

The graph runs once while it is traced below the classes: each `__torch_dispatch__` is asked then, of forward and backward, for
autograd lies above the classes.  The trace is cut where gradients begin; what the backward reads of the forward is saved.
What is not covered raises `AutogradUnsupported`, and the graph runs as it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._ops import OpOverload

from pycompiler.autograd.replay import transformed
from pycompiler.autograd.saved import TWICE, keeps_graph
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir.distributed import gradient_spec, redistributed
from pycompiler.ir.effects import acts, draws, raises, stays
from pycompiler.ir.fake import fake_like
from pycompiler.ir.process_groups import name_of
from pycompiler.ir.strides import layouts
from pycompiler.ir.subclasses import Spec, alike, count, flatten, flatten_all, is_wrapper, rebuild, rebuild_all

CompilePlain = Callable[[fx.GraphModule, list[torch.Tensor]], Callable[..., Sequence[Any]]]


def has_wrappers(gm: fx.GraphModule) -> bool:
    """Whether a value of the captured graph is a wrapper."""
    return any(is_wrapper(type(n.meta.get("example_value"))) for n in gm.graph.nodes)


def compile_wrappers(
    gm: fx.GraphModule, examples: Sequence[Any], compile_plain: CompilePlain
) -> Callable[..., Sequence[Any]]:
    """Compile `gm`; see the module docstring."""
    tracks = _check(gm, examples)
    leaves, specs = flatten_all(examples)
    plain = like(leaves)
    trace = _Trace(gm, examples, specs, tracks)
    if not tracks and any(n.meta["example_value"].requires_grad for n in _results(gm)):
        _refuse("a leaf that the program makes")
    traced, given = trace.run(plain)
    with torch.no_grad(), torch._C._DisableAutocast():  # both are in the graph already
        if trace.tracked:
            return _Pair(trace, traced, given, compile_plain).run
        if other := [n.target for n in traced.graph.nodes if acts(n.target) and name_of(n.target) is None]:
            _refuse(f"{other[0]}, which acts")
        inputs = traced.graph.find_nodes(op="placeholder")
        flat = _results(traced)
        needed = [*flat, *(n for n in traced.graph.nodes if stays(n.target) or _writes(n))]
        made = compile_plain(_part(traced, inputs, flat, needed), like(plain))
        kept = {_memory_of(n) for n, inside in zip(inputs, _inside(specs), strict=True) if inside}
        below = (n for node in traced.graph.nodes if _writes(node) for n in node.all_input_nodes)
        writes = trace.written or not kept.isdisjoint(map(_memory_of, below))  # also through `.data` of a wrapper
        return _writing(made, trace) if writes else _inference(made, trace.results)


def _results(gm: fx.GraphModule) -> Sequence[fx.Node]:
    return gm.graph.output_node().args[0]  # type: ignore[return-value]


def _refuse(what: str) -> NoReturn:
    raise AutogradUnsupported("a graph of tensor subclasses", what, "it runs as it was captured")


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _check(gm: fx.GraphModule, examples: Sequence[Any]) -> bool:
    """Whether gradients of inputs may be asked for; raises for what is not covered."""
    if not all(isinstance(e, torch.Tensor) and not e._has_symbolic_sizes_strides for e in examples):
        _refuse("numbers, or sizes that are symbols")
    tracks = torch.is_grad_enabled() and any(e.requires_grad for e in examples)
    for node in gm.graph.nodes:
        if node.op == "get_attr" or "binds" in node.meta:
            _refuse(f"{node.op} {node.target}")
        unseen = (
            node.meta.get("python") or node.target is torch.nn.functional.one_hot
        )  # the trace shows other operators
        if unseen or (node.meta.get("mutates") and tracks):
            if node.target is not torch._C._set_grad_enabled:
                _refuse(f"{node.target}, which acts, or writes what has gradients")
    if any(n.op == "placeholder" for n in _results(gm)):
        _refuse("an output that is an input")
    return tracks


@dataclass
class _Trace:
    """A run of the graph below the classes, and what it showed."""

    gm: fx.GraphModule
    examples: Sequence[torch.Tensor]
    specs: list[Spec | None]
    tracks: bool  # whether gradients of inputs may be asked for
    written: list[int] = field(default_factory=list)  # the wrappers among the inputs that are
    results: list[Spec | None] = field(default_factory=list)  # how the outputs are made
    n_results: int = 0  # how many tensors are inside of them
    tracked: list[int] = field(default_factory=list)  # the outputs that gradients come to
    # for each of them eager's nodes that save something, numbered
    saving: list[frozenset[int]] = field(default_factory=list)
    # of each input: whether it has one, and how it is made
    grads: list[tuple[bool, Spec | None]] = field(default_factory=list)

    def run(self, plain: list[torch.Tensor]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
        """The graph of plain tensors, and those that it was traced with: `plain`, then what is inside of tangents."""
        outputs = self._outputs(self._inputs(plain)) if self.tracks else ()
        self.tracked = [i for i, t in enumerate(outputs) if t.requires_grad]
        if not self.tracked:
            return _traced(self._forward, plain, writes=True), plain
        numbers: dict[Any, int] = {}
        self.saving = [
            frozenset(numbers.setdefault(n, len(numbers)) for n in _saving(outputs[i])) for i in self.tracked
        ]
        given = [*plain, *like(flatten_all([outputs[i] for i in self.tracked])[0])]
        return _traced(self._joint, given), given

    def _inputs(self, plain: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        made = rebuild_all(self.specs, plain)
        if not self.tracks:
            return made
        fresh = [t.detach() if spec is None else t for t, spec in zip(made, self.specs, strict=True)]
        return [t.requires_grad_() if e.requires_grad else t for t, e in zip(fresh, self.examples, strict=True)]

    def _outputs(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        before = torch.is_grad_enabled()
        try:
            outputs: Sequence[torch.Tensor] = self.gm(*inputs)
            if torch.is_grad_enabled() != before:
                _refuse("a grad mode that outlives the graph")
            return outputs
        finally:
            torch._C._set_grad_enabled(before)

    def _flat(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        leaves, self.results = flatten_all(outputs)
        self.n_results = len(leaves)
        shared = len({*map(_memory, (*given, *leaves))}) < len(given) + len(leaves)
        if shared or any(t._is_view() and any(t._base is other for other in (*inputs, *outputs)) for t in outputs):
            _refuse("an output in the memory of another one, or of an input")
        return leaves

    def _forward(self, *plain: torch.Tensor) -> list[torch.Tensor]:
        inputs = self._inputs(plain)
        before = [*map(_version, inputs)]
        outputs = self._outputs(inputs)
        if any(a is not b for a, b in zip(flatten_all(inputs)[0], plain, strict=True)):
            _refuse("a write that puts another tensor inside")
        self.written = [
            i for i, (t, version) in enumerate(zip(inputs, before, strict=True))
            if _version(t) != version and self.specs[i] is not None
        ]  # fmt: skip
        return self._flat(inputs, outputs, plain)

    def _joint(self, *given: torch.Tensor) -> list[torch.Tensor]:
        count = len(flatten_all(self.examples)[0])
        inputs = self._inputs(given[:count])
        outputs = self._outputs(inputs)
        leaves = self._flat(inputs, outputs, given)
        _mark_ahead()
        tangents = rebuild_all([gradient_spec(self.results[i]) for i in self.tracked], given[count:])
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad([outputs[i] for i in self.tracked], wanted, tangents, allow_unused=True))
        grads = [next(found) if t.requires_grad else None for t in inputs]
        inside: list[torch.Tensor] = []
        self.grads = [(g is not None, None if g is None else flatten(g, inside)) for g in grads]
        taken = {*map(_memory, (*given, *leaves))}
        for i, t in enumerate(inside):  # each gradient has memory of its own: the program may write to it
            inside[i] = t.clone() if _memory(t) in taken else t
            taken.add(_memory(inside[i]))
        return [*leaves, *inside]


AHEAD = "ahead"
"""Marks what the forward did: a collective happens where it did, whoever reads its results."""


def _mark_ahead() -> None:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    assert mode is not None
    for node in mode.tracer.graph.nodes:
        node.meta[AHEAD] = True


def _collectives(traced: fx.GraphModule) -> tuple[list[fx.Node], list[fx.Node]]:
    """Those of the forward, and those of the backward; waits are among them."""
    found = [n for n in traced.graph.nodes if name_of(n.target) is not None]
    return [n for n in found if AHEAD in n.meta], [n for n in found if AHEAD not in n.meta]


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
    mode = detect_fake_mode(list(tensors))
    assert mode is not None
    return [fake_like(mode, t.size(), t.stride(), int(t.storage_offset()), t.dtype, t.device) for t in tensors]


def _memory(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _traced(run: Callable[..., Any], given: list[torch.Tensor], *, writes: bool = False) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx  # brings sympy

    traced: fx.GraphModule = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)(*given)
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            _refuse(f"a tensor of its own, {node.target}")
        if _writes(node) and not writes:
            _refuse(f"{node.target}, inside of a class")
    return traced


def _part(
    traced: fx.GraphModule, given: Sequence[fx.Node], results: Sequence[fx.Node], needed: Sequence[fx.Node] = ()
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
    for node in traced.graph.nodes:
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
def _inference(forward: Callable[..., Sequence[Any]], results: list[Spec | None]) -> Callable[..., Sequence[Any]]:
    def run(*inputs: torch.Tensor) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            return tuple(rebuild_all(results, forward(*flatten_all(inputs)[0])))

    return run


def _writing(forward: Callable[..., Sequence[Any]], trace: _Trace) -> Callable[..., Sequence[Any]]:
    """As `_inference`, of a graph that writes wrappers: their versions count that, those of the tensors inside do not."""
    within = _inside(trace.specs)

    def run(*inputs: torch.Tensor) -> Sequence[Any]:
        with torch.no_grad(), torch._C._DisableAutocast():
            leaves = [t.data if inside else t for t, inside in zip(flatten_all(inputs)[0], within, strict=True)]
            made = tuple(rebuild_all(trace.results, forward(*leaves)))
            for i in trace.written:
                torch.autograd.graph.increment_version(inputs[i])
            return made

    return run


class _Pair:
    """A forward, which gives what is inside of the outputs and what it saves, and a backward of that and of the tangent.

    What the backward reads of inputs and outputs is read again: autograd says whether they were written since.
    """

    def __init__(
        self, trace: _Trace, traced: fx.GraphModule, given: list[torch.Tensor], compile_plain: CompilePlain
    ) -> None:
        self.gm, self.results, self.grads = trace.gm, trace.results, trace.grads
        self.tracked, self.saving = trace.tracked, trace.saving
        self.n_results = trace.n_results
        nodes = traced.graph.find_nodes(op="placeholder")
        count = len(flatten_all(trace.examples)[0])
        inputs, tangents = nodes[:count], nodes[count:]
        flat = _results(traced)
        outputs, grads = [*flat[: self.n_results]], [*flat[self.n_results :]]
        before, after = _collectives(traced)
        ahead = _ancestors([*outputs, *before])
        for node in traced.graph.nodes:
            if draws(node.target) or (acts(node.target) and name_of(node.target) is None):
                _refuse(f"{node.target}, with gradients")
            if raises(node.target) and node not in ahead and _ancestors([node]).isdisjoint(tangents):
                _refuse(f"{node.target}, whose result is not used")
        if not ahead.isdisjoint(tangents) or not {*map(_memory_of, ahead)}.isdisjoint(map(_memory_of, grads)):
            _refuse("a gradient that the forward has")
        read, saved = _cut([*grads, *after], ahead, inputs, outputs)
        self.likes = [n.meta["val"] for n in tangents]
        first = [i for i, n in enumerate(inputs) if n in read]
        second = [i for i, n in enumerate(outputs) if n in read]
        of_saved = {*map(_memory_of, saved)}  # of which outputs are views: a write to one is a write to what is saved
        watched = [i for i, n in enumerate(outputs) if _memory_of(n) in of_saved]
        places = [
            *(("input", *_places(trace.specs)[i]) for i in first),
            *(("output", *_places(self.results)[i]) for i in second),
        ]
        self.kept = sorted({*(p[:2] for p in places), *(("output", _places(self.results)[i][0]) for i in watched)})
        self.read = [(self.kept.index(place[:2]), place[2]) for place in places]  # which of these, which tensor inside
        self.forward = compile_plain(_part(traced, inputs, [*outputs, *saved], before), given[:count])
        taken = [*(inputs[i] for i in first), *(outputs[i] for i in second), *saved, *tangents]
        self.backward = compile_plain(_part(traced, taken, grads, after), like([n.meta["val"] for n in taken]))

    def run(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return _Node.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]

    def run_forward(self, ctx: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch._C._DisableAutocast():
            found = self.forward(*flatten_all(inputs)[0])
        outputs = rebuild_all(self.results, found[: self.n_results])
        ctx.pair, ctx.given, ctx.freed = self, [(t, _version(t)) for t in inputs], frozenset()
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
        wanted = [gradient_spec(self.results[i]) for i in tangents]
        if not torch.is_grad_enabled():
            tangents = {i: redistributed(t, spec) for (i, t), spec in zip(tangents.items(), wanted, strict=True)}
        leaves, specs = flatten_all([*tangents.values()])
        known = all(map(alike, specs, wanted))
        if not known or torch.is_grad_enabled() or transformed() or not all(map(_fits, leaves, self.likes)):
            return self.again(ctx, tangents)
        saved = ctx.saved_tensors
        inside = [flatten_all([t])[0] for t in saved[: len(self.kept)]]
        read = [inside[k][j] for k, j in self.read]
        with torch._C._DisableAutocast():
            found = iter(self.backward(*read, *saved[len(self.kept) :], *map(_laid, leaves, self.likes)))
        return [rebuild(spec, found) if has else None for has, spec in self.grads]

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
        wanted = [t for t in inputs if t.requires_grad]
        with torch.enable_grad():
            made = self.gm(*inputs)
            outputs, given = [made[i] for i in tangents], [*tangents.values()]
            found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=creates, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in inputs]


def _inside(specs: Sequence[Spec | None]) -> list[bool]:
    """Of each tensor: whether it is inside of a wrapper."""
    return [spec is not None for spec in specs for _ in range(count(spec))]


def _places(specs: Sequence[Spec | None]) -> list[tuple[int, int]]:
    """Of each tensor inside: which of the tensors it is inside of, and its number there."""
    return [(i, j) for i, spec in enumerate(specs) for j in range(count(spec))]


def _version(t: torch.Tensor) -> int | None:
    return None if t.is_inference() else t._version


def _fits(t: torch.Tensor, form: torch.Tensor) -> bool:
    plain = type(t) is torch.Tensor and t.layout is torch.strided
    return plain and (t.shape, t.dtype, t.device) == (form.shape, form.dtype, form.device)


def _laid(t: torch.Tensor, form: torch.Tensor) -> torch.Tensor:
    """`t` with the strides that the backward was compiled for, and its elements as they are in memory."""
    t = t.resolve_conj().resolve_neg()
    if t.stride() == form.stride():
        return t
    return torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=form.device).copy_(t)


class _Node(torch.autograd.Function):
    """A call's node of autograd's, which takes and gives the wrappers."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, *inputs: torch.Tensor) -> Any:
        return pair.run_forward(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, *ctx.pair.run_backward(ctx, tangents)
