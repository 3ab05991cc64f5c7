"""Trace a torch-level graph once into a functional ATen graph: forward, and gradients when somebody needs them.

In: an ``fx.GraphModule`` whose placeholders are tensors (or numbers) and FakeTensors for them.
Out: a `Joint`: one graph whose placeholders are the inputs then the tangents, whose outputs are the new values of
mutated inputs, the fresh outputs, then the gradients; plus data that says how the caller's outputs are made of all
that.

Example: ``y = x @ w; y.relu_(); return y, y[0]`` has the fresh output ``relu(x @ w)``; the second output is a view of
it that the runtime makes again, so that it aliases the first as in eager.

How: inputs become functional wrappers (C++ functionalisation, below autograd); the graph runs on them under `Recorder`,
then ``torch.autograd.grad`` runs under it too. So one pass sees mutation, aliasing, gradients and the operators.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.autograd import attention
from pycompiler.autograd.recompute import SMALL, size_bytes
from pycompiler.autograd.recorder import (
    Decomposition,
    Recorder,
    functional,
    is_dense,
    overlaps_itself,
    plain,
    same_places,
    tensors_in,
)
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import (
    Step,
    as_one_of_several,
    is_view_op,
    strided_step,
    under_no_grad,
    view_root,
    view_steps,
)
from pycompiler.ir import interrupts, transforms
from pycompiler.ir.effects import node_stays
from pycompiler.ir.numbers import SYMBOLIC
from pycompiler.ir.strides import layouts
from pycompiler.ir.symbols import Specialise, hint_of, symbols_of

aten = torch.ops.aten


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

    kind: "fresh" (fresh output `index`), "input" (input `index` itself), "view" (of the input or fresh output `index`,
    by `steps`), "constant" (`value`), "same" (the very object of output `index`).
    """

    kind: str
    index: int = -1
    of_input: bool = False
    steps: tuple[Step, ...] = ()
    value: Any = None


@dataclass(frozen=True)
class _Base:
    """What results are views of: input or fresh output `index`; `tensor` of the trace, which is `seen` in the captured
    graph, and lies for the caller as `lies` does."""

    tensor: torch.Tensor
    lies: torch.Tensor
    seen: Any
    index: int
    of_input: bool

    def step(self, result: Any) -> Step | None:
        """The view that capture saw as one `as_strided`, or None when it saw none, or one that also changes elements."""
        seen = self.seen
        if not (isinstance(result, torch.Tensor) and isinstance(seen, torch.Tensor)) or _storage(result) != _storage(
            seen
        ):
            return None
        if (seen.dtype, seen.is_conj(), seen.is_neg()) != (result.dtype, result.is_conj(), result.is_neg()):
            return None
        return strided_step(result, seen)

    def leads(self, steps: Sequence[Step], seen: Step) -> bool:
        """Whether `steps` make of the caller's base what `seen` makes of it."""
        made = self.lies
        for step in steps:
            made = step(made)
        offset = made.storage_offset() - self.lies.storage_offset()
        return [list(made.shape), list(made.stride()), offset] == [*seen.args, seen.kwargs["offset"]]


@dataclass(frozen=True)
class Path:
    """A gradient's way through the nodes of autograd's graph, as eager would go it.

    inputs: those that it reaches, be it zero. nodes: numbers of the nodes that keep tensors, which can be gone through
    once. kept: the inputs ("input", i) and fresh outputs ("fresh", k) that these keep, whose versions are checked.
    """

    inputs: frozenset[int]
    nodes: frozenset[int]
    kept: frozenset[tuple[str, int]]


def _joined(found: Mapping[frozenset[int], list[int]]) -> dict[frozenset[int], list[int]]:
    """Groups of tangents, of which those that reach a same input are one."""
    joined: dict[frozenset[int], list[int]] = {}
    for inputs, tangents in found.items():
        for other in [o for o in joined if o & inputs]:
            inputs, tangents = inputs | other, [*joined.pop(other), *tangents]
        joined[inputs] = sorted(tangents)
    return joined


@dataclass(frozen=True)
class Way:
    """The tangents that one node of autograd's graph takes, and the inputs that their gradients reach."""

    tangents: tuple[int, ...]
    inputs: frozenset[int]


@dataclass
class Joint:
    """See the module docstring. `fresh` lists nodes; the first ``len(mutations)`` are new values of inputs.

    paths: for each tangent what autograd's own graph says of its gradient.
    arrived: inputs that are results of other work which requires grad: nodes of autograd's that others made lie behind.
    touched: inputs that were written, with the values that they had: only their versions tell.
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
    stores: list[tuple[int, fx.Node]] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    arrived: frozenset[int] = frozenset()

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
            replace(o, index=place[o.index]) if o.kind in ("fresh", "view") and not o.of_input else o
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
        """The nodes of autograd's graph that a call makes: one for all outputs whose gradients reach the same results of
        other work. A node that is reached runs those behind it, gradient or not, and they look at what they keep.

        Nodes compute alone what their gradients have in common; where that is much, those that share a way are one."""
        found: dict[frozenset[int], list[int]] = {}
        for k, path in enumerate(self.paths):
            found.setdefault(path.inputs & self.arrived, []).append(k)
        if len(found) > 1 and self._common(list(found.values())) > SMALL:
            found = _joined(found)
        return [Way(tuple(ks), frozenset[int]().union(*(self.paths[k].inputs for k in ks))) for ks in found.values()]

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


def trace_joint(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    fake_mode: FakeTensorMode,
    decompositions: Mapping[OpOverload, Decomposition],
    store_in_graph: bool = False,
    branches: Mapping[fx.Node, Callable[..., Any]] | None = None,
) -> Joint:
    """Trace `gm`; raises `AutogradUnsupported` for what cannot be expressed functionally.

    `store_in_graph`: see `Joint.store_in_graph`; `branches`: what is called for nodes of `transforms.cond`.
    """
    recorder = Recorder(fake_mode, decompositions)
    trace = _Trace(gm, inputs, recorder, store_in_graph, branches or {})
    for example in inputs:
        _refuse_exotic(example)
    grad_mode, cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # the cache would keep wrappers of this trace for the user's next region
    try:
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(grad_mode),
            _python_rules(inputs),
            functional(),
            recorder,
        ):
            trace.run()
    except _DATA_DEPENDENT as error:
        raise AutogradUnsupported("an operator depends on data", str(error), "the graph runs eagerly") from error
    except AutogradUnsupported:
        raise
    except RuntimeError as error:
        if "modified inplace" not in str(error):
            raise
        # A view whose history autograd refuses to tell: eager refuses where somebody asks for it, or not at all.
        raise AutogradUnsupported("a view of a written tensor", str(error), "the graph runs eagerly") from error
    finally:
        torch.set_autocast_cache_enabled(cached)
    return trace.joint


def _python_rules(inputs: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Torch's Python dispatcher where sizes are symbolic, which C++ composite kernels do not all take."""
    symbolic = any(isinstance(t, torch.Tensor) and t._has_symbolic_sizes_strides for t in inputs)
    return enable_python_dispatcher() if symbolic else contextlib.nullcontext()


_DATA_DEPENDENT = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)


def _refuse_exotic(example: Any) -> None:
    if isinstance(example, SYMBOLIC) and symbols_of(example) is None:
        raise AutogradUnsupported("another compiler's symbolic number", str(example), "compile with static sizes")
    if not isinstance(example, torch.Tensor):
        return
    if not isinstance(example, FakeTensor):
        raise TypeError(f"expected a FakeTensor as example input, got {type(example).__name__}")
    if example.layout is not torch.strided or example.is_nested or example.is_quantized:
        raise AutogradUnsupported("input that is not strided", f"layout {example.layout}", "the graph runs eagerly")
    if example._has_symbolic_sizes_strides and not _ours(example):
        raise AutogradUnsupported("input with symbolic sizes", str(tuple(example.shape)), "compile with static sizes")


def _ours(t: torch.Tensor) -> bool:
    return all(symbols_of(n) is not None for n in (*t.shape, *t.stride()) if isinstance(n, torch.SymInt))


def _storage(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


class _Arrived(torch.autograd.Function):
    """Identity: a result of other work, with the strides that it has."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
        return torch._to_functional_tensor(twin)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class _Input:
    """A traced input: `leaf` is what gradients are taken of, `seen` the object that the graph gets and may mutate."""

    def __init__(self, example: torch.Tensor, fake: FakeTensor, recorder: Recorder, name: str) -> None:
        self.example = example
        self.fake = fake
        self.node = recorder.placeholder(name, self.fake)
        self.node.meta["requires_grad"] = example.requires_grad
        self.leaf = torch._to_functional_tensor(self.fake)
        self.requires_grad = example.requires_grad and torch.is_grad_enabled()
        if example.requires_grad:
            self.leaf.requires_grad_()
        self.seen = self.leaf
        if self.requires_grad and not example.is_leaf:
            # A result of other work may be mutated in place, a leaf may not.
            with plain(recorder.fake_mode):
                twin = _fresh_fake(example)
            recorder.alias(twin, self.node)
            self.seen = _Arrived.apply(self.leaf, twin)  # type: ignore[no-untyped-call]
        self.layout = _layout(self.seen)
        self.offset = self.seen.storage_offset()
        self.grad_fn = self.seen.grad_fn
        self.version = self.seen._version
        self.seen_requires_grad = self.seen.requires_grad

    def value(self) -> torch.Tensor:
        return _inner(self.seen)


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    """Without the offset: a new value has memory of its own in the trace, where it starts at 0."""
    return (t.shape, t.stride(), t.dtype)


def _fresh_fakes(examples: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """Of each tensor an alias of its own, made together: the modes are left and entered once."""
    with plain(mode):
        return [_fresh_fake(e) if isinstance(e, torch.Tensor) else None for e in examples]


def _fresh_fake(example: torch.Tensor) -> torch.Tensor:
    if example.is_inference():  # its detached alias would be an inference tensor too
        return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
    return example.detach()


def _inner(t: torch.Tensor) -> torch.Tensor:
    if not torch._is_functional_tensor(t):
        return t
    torch._functionalize_sync(t)
    return torch._from_functional_tensor(t)


class _Trace:
    """State of one `trace_joint`: `run` fills `joint`."""

    def __init__(
        self,
        gm: fx.GraphModule,
        examples: Sequence[Any],
        recorder: Recorder,
        store_in_graph: bool,
        branches: Mapping[fx.Node, Callable[..., Any]],
    ) -> None:
        self.gm = gm
        self.branches = branches
        self.store_in_graph = store_in_graph
        self.examples = examples
        self.recorder = recorder
        self.joint = Joint(recorder.graph, recorder.constants, [])
        self.inputs: list[_Input | None] = []
        self.input_of_storage: dict[int, int] = {}
        self.fresh_tensors: list[torch.Tensor] = []
        outputs: Any = gm.graph.output_node().args[0]  # one node may stand for several results
        nodes = enumerate(outputs if isinstance(outputs, (tuple, list)) else ())
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.expected = {k: n.meta.get("example_value") for k, n in nodes if isinstance(n, fx.Node)}

    def run(self) -> None:
        grad_mode = torch.is_grad_enabled()
        self._make_inputs()
        results = self._run_forward()
        torch._C._set_grad_enabled(grad_mode)
        self._find_mutations()
        if not grad_mode:
            self._refuse_gradients(results)
        self._find_outputs(results)
        if self.store_in_graph:
            self.fresh_tensors = [self.fresh_tensors[i] for i in self.joint.store_in_graph()]
        self._own_storage()
        if torch.is_grad_enabled():
            self._differentiate()
        nodes = [*self.joint.fresh, *(value for _, value in self.joint.stores), *self.joint.grads]
        self.recorder.graph.output(tuple(nodes))
        drop_dead(self.recorder.graph)

    # -- forward ----------------------------------------------------------------------------------------------------

    def _make_inputs(self) -> None:
        names = [n.name for n in self.gm.graph.nodes if n.op == "placeholder"]
        fakes = _fresh_fakes(self.examples, self.recorder.fake_mode)
        for i, (name, example, fake) in enumerate(zip(names, self.examples, fakes, strict=True)):
            if not isinstance(example, torch.Tensor):
                self.inputs.append(None)
                self.joint.inputs.append(self.recorder.placeholder(name, example))
                continue
            item = _Input(example, fake, self.recorder, name)
            self.inputs.append(item)
            self.joint.inputs.append(item.node)
            self.input_of_storage[_storage(item.seen)] = i
        self.joint.arrived = frozenset(
            i for i, x in enumerate(self.inputs) if x is not None and x.requires_grad and not x.example.is_leaf
        )

    def _run_forward(self) -> tuple[Any, ...]:
        pairs = zip(self.inputs, self.examples, strict=True)
        return self._run_graph([example if item is None else item.seen for item, example in pairs])

    def _run_graph(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What `self.gm` gives for these inputs."""
        values = iter(inputs)
        env: dict[fx.Node, Any] = {}
        last_use = _last_uses(self.gm.graph)
        for node in self.gm.graph.nodes:
            interrupts.check()
            self.recorder.source = node
            if node.op == "placeholder":
                env[node] = next(values)
            elif node.op == "output":
                self.recorder.source = None
                out = fx.node.map_arg(node.args[0], env.__getitem__)
                return tuple(out) if isinstance(out, (tuple, list)) else (out,)
            else:
                env[node] = self._run_node(node, env)
            for dead in last_use.get(node, ()):
                del env[dead]
        raise AutogradUnsupported("graph without an output node", str(self.gm.graph), "end the graph with an output")

    def _run_node(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        try:
            return self._run_target(node, env)
        except (AutogradUnsupported, Specialise, *_DATA_DEPENDENT):
            raise
        except Exception as error:
            # The user's error or a limit of tracing: in both cases eager does the right thing.
            seen = f"{node.format_node()}: {type(error).__name__}: {error}"
            raise AutogradUnsupported("an operator cannot be traced", seen, "the graph runs eagerly") from error

    def _run_target(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":  # tensors are inputs (`lift_attributes`): a graph inside of this one
            return getattr(self.gm, str(node.target))
        args = fx.node.map_arg(node.args, env.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, env.__getitem__)
        if not _writes(node):
            out = self._called(node, args, kwargs)
            self._hold(node, out, (args, kwargs))
            return out
        self._refuse_overlap(node, args, kwargs)
        written = [t for t in (*args[:1], kwargs.get("out")) if isinstance(t, torch.Tensor)]
        before = [(t, t.shape, t.stride()) for t in written if t.layout is torch.strided]
        out = self._called(node, args, kwargs)
        if not _is_metadata(node):
            for t, shape, strides in before:
                if t.shape == shape:
                    self._keep_layout(t, strides)
        return out

    def _hold(self, node: fx.Node, out: Any, given: Any) -> None:
        """Fresh results lie as capture saw them lie, whatever their operators were made of: views by strides, reshapes and
        writes would show it.  (Another capture than ours tells how they lay at its end, which is as good where they stay.)"""
        expected = node.meta.get("strides") or layouts(node.meta.get("example_value"))
        results = list(tensors_in(out))
        if len(results) != len(expected) or all(t.stride() == s for t, s in zip(results, expected, strict=True)):
            return
        taken = {_storage(t) for t in tensors_in(given)}
        for t, strides in zip(results, expected, strict=True):
            if t.layout is torch.strided and t.stride() != strides and _storage(t) not in taken:
                self._keep_layout(t, strides)

    def _keep_layout(self, written: torch.Tensor, strides: tuple[int, ...]) -> None:
        """A write leaves a tensor where it lies; functionalisation gives it, and what it views, the layout of the new
        value, which views by strides, reshapes and results would show."""
        if not torch._is_functional_tensor(written):
            return
        value = _inner(written)
        if value.stride() == strides or not value.numel():
            return
        torch._disable_functionalization()  # type: ignore[no-untyped-call]
        try:
            laid = self.recorder.laid_out(value, strides)
        finally:
            torch._enable_functionalization(reapply_views=True)
        if laid is not value:
            torch._functionalize_replace(written, laid)
            torch._functionalize_commit_update(written)
            torch._functionalize_sync(written)

    def _checkpoint(self, body: fx.GraphModule, preserve_rng_state: bool, *tensors: Any) -> tuple[Any, ...]:
        """The body, in this graph: what it records is computed again in the backward (`partition.py`)."""
        outer, source = (self.gm, self.recorder.region), self.recorder.source
        self.gm, self.recorder.region = body, self.recorder.next_region()
        try:
            return self._run_graph(tensors)
        finally:
            (self.gm, self.recorder.region), self.recorder.source = outer, source

    def _called(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if node.op == "call_function":
            assert callable(node.target)
            if node.target is transforms.checkpoint:
                return self._checkpoint(*args)
            if node.target is transforms.cond:
                return self.branches[node](*args[3:])
            if node.target is attention.TARGET:
                args, kwargs = attention.prepared(tuple(args), dict(kwargs))
            if node.target in _NEEDS_PYTHON_DISPATCHER:
                with torch._C._EnablePythonDispatcher():
                    return node.target(*args, **kwargs)
            return node.target(*args, **kwargs)
        if node.op == "call_method":
            assert isinstance(node.target, str)
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        raise AutogradUnsupported(f"{node.op} in the graph", str(node.target), "lift modules and attributes to inputs")

    @staticmethod
    def _refuse_overlap(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Eager's kernels refuse some writes to memory that they also read; which ones only they know."""
        by_element = _by_element(node)
        targets, read = [args[0], kwargs.get("out")], [args[1:], {k: v for k, v in kwargs.items() if k != "out"}]
        if node.target is operator.setitem:
            by_element = _is_basic(args[1])  # else `index_put_`
            targets = [args[0][args[1]] if by_element else args[0]]
        elif kwargs.get("out") is not None:
            targets, read[0] = targets[1:], args
        for t in targets:
            if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
                continue
            others = [o for o in tensors_in(read) if o.layout is torch.strided]
            if _overlaps_itself(t) or any(_meet(t, o, by_element) for o in others):
                raise AutogradUnsupported(
                    "a write to elements that share memory", node.format_node() or "", "clone it first"
                )

    # -- what happened ----------------------------------------------------------------------------------------------

    def _find_mutations(self) -> None:
        for i, item in enumerate(self.inputs):
            if item is None:
                continue
            if (
                _layout(item.seen) != item.layout
                or torch._functionalize_was_storage_changed(item.seen)
                or torch._functionalize_has_metadata_mutation(item.seen)  # type: ignore[attr-defined]
                or (item.seen.storage_offset() != item.offset and self._counts_from_the_storage())
            ):
                raise AutogradUnsupported(
                    "metadata of an input is mutated",
                    f"{item.node.name}: {item.layout} became {_layout(item.seen)}",
                    "use the functional form of the view or resize",
                )
            value = item.value()
            if self.recorder.node(value) is item.node:
                if item.seen.requires_grad != item.seen_requires_grad or item.seen.grad_fn is not item.grad_fn:
                    raise AutogradUnsupported(
                        "requires_grad or the history of an input changes", item.node.name, "change it outside"
                    )
                if item.seen._version != item.version:
                    self.joint.touched.append(i)
                continue
            self._refuse_shared_storage(i)
            if _overlaps_itself(item.example):
                raise AutogradUnsupported(
                    "an input is written whose elements share memory", item.node.name, "clone it first"
                )
            how = _mutation_kind(item)
            self.joint.mutations.append(Mutation(i, self._fresh(item.seen, ("input", i), how == "grad"), how))

    def _refuse_gradients(self, results: tuple[Any, ...]) -> None:
        """Outside of the graph its results are computed in the grad mode that it starts with."""
        inputs = {id(item.seen) for item in self.inputs if item is not None}
        made = [t for t in results if isinstance(t, torch.Tensor) and id(t) not in inputs]
        if any(t.requires_grad for t in made) or any(m.how == "grad" for m in self.joint.mutations):
            raise AutogradUnsupported(
                "gradients are switched on",
                "an output requires grad, and the graph starts without",
                "enable them outside",
            )

    def _counts_from_the_storage(self) -> bool:
        """Whether an operator's meaning depends on where in its storage a tensor starts."""
        return any("as_strided" in str(n.target) for n in self.gm.graph.nodes)

    def _refuse_shared_storage(self, index: int) -> None:
        storage = _storage(self.examples[index])
        for j, other in enumerate(self.examples):
            if j != index and isinstance(other, torch.Tensor) and _storage(other) == storage:
                names = f"{self.joint.inputs[index].name} is mutated and shares memory with {self.joint.inputs[j].name}"
                raise AutogradUnsupported("mutation of aliasing inputs", names, "pass one of them, or a clone")

    def _fresh(self, t: torch.Tensor, origin: tuple[str, int], differentiable: bool = True) -> int:
        """Index of the graph output that holds `t`; gradients flow into it when `t` requires them."""
        self.joint.origins.append(origin)
        node = self.recorder.node(_inner(t))
        if _lazy(node.meta["val"]):
            node = self._made(aten.clone.default, node)
        self.joint.fresh.append(self._laid_out(node, self._seen(origin)))
        self.joint.differentiable.append(differentiable and t.requires_grad)
        self.fresh_tensors.append(t)
        return len(self.joint.fresh) - 1

    def _seen(self, origin: tuple[str, int]) -> Any:
        """The tensor of the captured graph that a fresh output is, where it is known."""
        kind, k = origin
        expected = None if kind == "input" else self.expected.get(k)
        return getattr(expected, "_base", None) if kind == "base" else expected

    def _laid_out(self, node: fx.Node, expected: Any) -> fx.Node:
        """`node` with the strides that capture saw: a result has eager's, whatever its operator was made of."""
        value = node.meta["val"]
        if not isinstance(expected, torch.Tensor) or value.stride() == expected.stride():
            return node
        if value.shape != expected.shape:
            return node
        shape, stride = list(expected.shape), list(expected.stride())
        if not is_dense(expected):
            return node if _overlaps_itself(expected) else self._with_gaps(node, shape, stride)
        if not same_places(value, expected):
            order = sorted(range(len(shape)), key=lambda d: -hint_of(stride[d]))
            node = self._made(aten.permute.default, node, order)
            node = self._made(aten.clone.default, node, memory_format=torch.contiguous_format)
            node = self._made(aten.permute.default, node, [order.index(d) for d in range(len(shape))])
        if node.meta["val"].stride() != expected.stride():
            node = self._made(aten.as_strided.default, node, shape, stride)
        return node

    def _with_gaps(self, node: fx.Node, shape: list[int], stride: list[int]) -> fx.Node:
        """A copy that spans more memory than it has elements, as copies that keep strides are (`slice_scatter`)."""
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        memory = self._made(aten.new_zeros.default, node, [span])
        memory = self._made(aten.as_strided_scatter.default, memory, node, shape, stride)
        return self._made(aten.as_strided.default, memory, shape, stride)

    def _made(self, op: OpOverload, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        made = self.recorder.graph.call_function(op, (node, *self.recorder.numbers.arguments(args)), kwargs)
        with plain(self.recorder.fake_mode):
            vals = [a.meta["val"] if isinstance(a, fx.Node) else a for a in (node, *args)]
            made.meta.update(node.meta, val=op(*vals, **kwargs))
        return made

    def _find_outputs(self, results: tuple[Any, ...]) -> None:
        objects: dict[int, int] = {}
        seen_inputs = {id(item.seen): i for i, item in enumerate(self.inputs) if item is not None}
        groups: dict[int, list[int]] = {}
        outputs: list[Output | None] = []
        for k, t in enumerate(results):
            if not isinstance(t, torch.Tensor):
                outputs.append(Output("constant", value=t))
            elif id(t) in objects:
                outputs.append(Output("same", objects[id(t)]))
            elif id(t) in seen_inputs:
                outputs.append(Output("input", seen_inputs[id(t)], of_input=True))
            else:
                objects[id(t)] = k
                groups.setdefault(_storage(t), []).append(k)
                outputs.append(None)
        for storage, members in groups.items():
            for k, out in zip(members, self._group(storage, {k: results[k] for k in members}), strict=True):
                outputs[k] = out
        self.joint.outputs = [o for o in outputs if o is not None]

    def _group(self, storage: int, members: dict[int, torch.Tensor]) -> list[Output]:
        """Outputs (by index) that share one storage: views of an input, or of one fresh output."""
        tensors = list(members.values())
        for t in tensors:
            if t.requires_grad and t.is_leaf:
                raise AutogradUnsupported(
                    "a leaf is made in the graph", "requires_grad_() on an intermediate", "make it outside"
                )
        i = self.input_of_storage.get(storage)
        if i is not None:
            item = self.inputs[i]
            assert item is not None
            seen = self.placeholders[i].meta.get("example_value")
            place = _Base(item.seen, item.example, seen, i, of_input=True)
            return [self._view(k, t, place) for k, t in members.items()]
        if len(tensors) == 1 and not _lazy(tensors[0]):
            return [Output("fresh", self._fresh(t, ("result", k))) for k, t in members.items()]
        base, origin = next(((t, ("result", k)) for k, t in members.items() if not t._is_view()), (None, ("", -1)))
        if base is None:
            k = next((k for k, t in members.items() if t._base is not None), next(iter(members)))
            base, origin = (
                (members[k]._base, ("base", k)) if members[k]._base is not None else (members[k], ("result", k))
            )
            assert base is not None
        if _lazy(base):
            base, origin = self._resolved(base), ("", -1)
        index = self._fresh(base, origin)
        place = _Base(base, self.joint.fresh[index].meta["val"], self._seen(origin), index, of_input=False)
        return [Output("fresh", index) if t is base else self._view(k, t, place) for k, t in members.items()]

    @staticmethod
    def _resolved(t: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor that is read with its elements conjugated or negated, and views nothing that is known."""
        if t.requires_grad:
            raise AutogradUnsupported("an output is a conjugate of memory that is unknown", str(t.dtype), "resolve it")
        t = t.conj() if t.is_conj() else t
        return t._neg_view() if t.is_neg() else t

    def _view(self, k: int, t: torch.Tensor, place: _Base) -> Output:
        """Result `k`, which is `t`, as a view of another tensor."""
        base, index = place.tensor, place.index
        if t.requires_grad and not (base.requires_grad and t._base is (base if base._base is None else base._base)):
            raise AutogradUnsupported(
                "an output has a gradient that the memory it views has not",
                f"a detached alias of {'input' if place.of_input else 'output'} {index} was mutated under grad",
                "clone it before mutating",
            )
        value, base_value = _inner(t), _inner(base)
        steps = view_steps(self.recorder.node(value), self.recorder.node(base_value))
        seen = place.step(self.expected.get(k))
        if steps is None:
            seen = seen or strided_step(value, base_value)
            if seen is None:
                raise AutogradUnsupported("an output aliases another value in another dtype", str(t.dtype), "clone it")
            steps = [seen, *(step for step, lazy in _LAZY if lazy(t) != lazy(base))]
        elif seen is not None:
            with plain(self.recorder.fake_mode):
                steps = steps if place.leads(steps, seen) else [seen]
        return Output("view", index, of_input=place.of_input, steps=tuple(_with_history(steps, t, base)))

    def _own_storage(self) -> None:
        """Fresh outputs own their memory: one that is (a view of) an input, a constant or another output is cloned."""
        taken: set[fx.Node] = set()
        for k, node in enumerate(self.joint.fresh):
            root, val = view_root(node), node.meta["val"]
            is_new_value = k < len(self.joint.mutations)
            if root in taken:
                self.joint.fresh[k] = self._laid_out(self._copied(node, root), val)
            elif root.op in ("placeholder", "get_attr") and not is_new_value:
                self.joint.fresh[k] = self._laid_out(self._copied(node, node if is_dense(val) else root), val)
            taken.add(view_root(self.joint.fresh[k]))

    def _copied(self, node: fx.Node, root: fx.Node) -> fx.Node:
        """The value of `node` made again, through the same views, from a copy of `root`."""
        graph = self.recorder.graph
        if node is root:
            copy = graph.call_function(aten.clone.default, (node,), {})
            with plain(self.recorder.fake_mode):
                value = node.meta["val"].clone()
        else:
            parent = node.args[0]
            assert isinstance(parent, fx.Node)
            args = (self._copied(parent, root), *node.args[1:])
            copy = graph.call_function(node.target, args, dict(node.kwargs))  # type: ignore[arg-type]
            with plain(self.recorder.fake_mode):
                vals = fx.map_arg((args, dict(node.kwargs)), lambda n: n.meta["val"])
                value = node.target(*vals[0], **vals[1])  # type: ignore[operator]
        copy.meta.update(node.meta, val=value)
        return copy

    # -- backward ---------------------------------------------------------------------------------------------------

    def _differentiate(self) -> None:
        wanted = [item.leaf for item in self.inputs if item is not None and item.requires_grad]
        outputs = [t for t, d in zip(self.fresh_tensors, self.joint.differentiable, strict=True) if d]
        if not wanted or not outputs:
            self.joint.differentiable = [False] * len(self.joint.fresh)
            return
        self.recorder.differentiates = True
        tangents = [self._tangent(k) for k, d in enumerate(self.joint.differentiable) if d]
        try:
            self.joint.paths = self._paths(outputs)
            with torch.autograd.set_multithreading_enabled(False), torch._C._DisableAutocast():
                found = torch.autograd.grad(outputs, wanted, tangents, allow_unused=True)
        except AutogradUnsupported:
            raise
        except RuntimeError as error:
            # Eager raises this only when somebody calls backward.
            raise AutogradUnsupported(
                "no gradient", str(error), "the graph runs eagerly and says so in backward"
            ) from error
        nodes = iter([None if g is None else self.recorder.node(_inner(g)) for g in found])
        self.joint.grads = [next(nodes) if item is not None and item.requires_grad else None for item in self.inputs]

    def _paths(self, outputs: Sequence[torch.Tensor]) -> list[Path]:
        """Sets are bits of numbers on the way: networks have thousands of nodes."""
        leaves = {
            id(item.leaf): 1 << i for i, item in enumerate(self.inputs) if item is not None and item.requires_grad
        }
        names: list[tuple[str, int]] = [("input", i) for i in range(len(self.inputs))]
        bits = {storage: 1 << i for storage, i in self.input_of_storage.items()}
        for k, t in enumerate(self.fresh_tensors):
            bits.setdefault(_storage(t), 1 << len(names))
            names.append(("fresh", k))
        found: dict[Any, tuple[int, int, int]] = {}
        for number, node in enumerate(_in_order([t.grad_fn for t in outputs])):
            keeps = _kept_tensors(node)
            inputs, nodes, kept = leaves.get(id(getattr(node, "variable", None)), 0), (1 << number if keeps else 0), 0
            for t in keeps:
                kept |= bits.get(_storage(t), 0)
            for behind, _ in node.next_functions:
                if behind is not None:
                    a, b, c = found[behind]
                    inputs, nodes, kept = inputs | a, nodes | b, kept | c
            found[node] = inputs, nodes, kept
        paths = [found[t.grad_fn] for t in outputs]
        return [Path(_bits(a), _bits(b), frozenset(names[k] for k in _bits(c))) for a, b, c in paths]

    def _tangent(self, k: int) -> torch.Tensor:
        value = self.joint.fresh[k].meta["val"]
        with plain(self.recorder.fake_mode):
            if is_dense(value):
                fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            else:
                fake = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            fake.is_contiguous()  # of symbolic sizes decided now, while it can be assumed
        self.joint.tangents.append(self.recorder.placeholder(f"tangent_{k}", fake))
        return torch._to_functional_tensor(fake)


def _bits(number: int) -> frozenset[int]:
    return frozenset(k for k, digit in enumerate(reversed(bin(number)[2:])) if digit == "1")


def _in_order(roots: Sequence[Any]) -> list[Any]:
    """The nodes of autograd's graph behind `roots`, each after those that its gradients flow to."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(node, False) for node in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n, _ in node.next_functions)
    return order


def _kept_tensors(node: Any) -> list[torch.Tensor]:
    """What a node of autograd's graph keeps until its gradient is computed."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return list(node.saved_tensors)
    kind: Any = type(node)
    return list(tensors_in([getattr(node, name) for name in _saved_names(kind)]))


@cache
def _saved_names(kind: Any) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_saved_")]


_DETACH, _ALIAS = Step(aten.detach.default, (), {}), Step(aten.alias.default, (), {})


def _with_history(steps: list[Step], t: torch.Tensor, base: torch.Tensor) -> list[Step]:
    """`steps`, which make `t` of `base`, so that autograd takes the result for a view, or not, of what it takes `t` for."""
    if not t._is_view():
        return [*steps, _DETACH]
    if t._base is not (base if base._base is None else base._base):
        return [_DETACH, *(steps or [_ALIAS])]
    if base.requires_grad and not t.requires_grad:
        return [Step(under_no_grad, (s,), {}) for s in steps or [_ALIAS]]
    if t.requires_grad and _creation(t) == _MULTI_OUTPUT:
        return [*(steps or [_ALIAS]), Step(as_one_of_several, (), {})]
    return steps or [_ALIAS]


_creation = torch._C._autograd._get_creation_meta
_MULTI_OUTPUT = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def _lazy(t: torch.Tensor) -> bool:
    """Whether reading `t` conjugates or negates what its memory holds, which no compiled graph's result does."""
    return t.is_conj() or t.is_neg()


_LAZY = ((Step(aten._conj.default, (), {}), torch.is_conj), (Step(aten._neg_view.default, (), {}), torch.is_neg))


def _mutation_kind(item: _Input) -> str:
    if item.seen._version == item.version:
        return "hidden"
    return (
        "no_grad"
        if item.seen.grad_fn is item.grad_fn and item.seen_requires_grad == item.seen.requires_grad
        else "grad"
    )


_IN_PLACE = frozenset((
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow),
    *(operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.setitem),
))  # fmt: skip
_IN_PLACE_METHODS = frozenset(f"__{fn.__name__}__" for fn in _IN_PLACE)


def _writes(node: fx.Node) -> bool:
    """True for an operator that, by its name or arguments, writes its first argument or `out`."""
    if node.target in _IN_PLACE or node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_METHODS


def _is_metadata(node: fx.Node) -> bool:
    """True for `t_`, `squeeze_` and their kind, which change how a tensor lies, and no element."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    packet = getattr(aten, name, None)
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads())


def _overlaps_itself(value: Any) -> bool:
    """True for a tensor that may have two elements in one place of memory (expanded, windows): eager refuses most writes to
    it, or makes them in the order of its elements."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and overlaps_itself(value)


def _meet(written: torch.Tensor, read: torch.Tensor, by_element: bool) -> bool:
    """Whether a read tensor may have elements of a written one, other than each at its own place."""
    if _storage(written) != _storage(read) or not (written.numel() and read.numel()):
        return False
    (a, b), (c, d) = _extent(written), _extent(read)
    if b < c or d < a:
        return False
    same = (a, written.shape, written.stride()) == (c, read.shape, read.stride()) and written.dtype == read.dtype
    return not (same and by_element)


def _is_basic(index: Any) -> bool:
    """Whether an index gives a view."""
    items = index if isinstance(index, tuple) else (index,)
    return all(
        i is None or i is ... or (isinstance(i, slice | int | torch.SymInt) and not isinstance(i, bool)) for i in items
    )


def _extent(t: torch.Tensor) -> tuple[int, int]:
    """The first and the last byte that `t` covers, counted from the start of its storage."""
    first: Any = t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return first * t.element_size(), (last + 1) * t.element_size() - 1


def _by_element(node: fx.Node) -> bool:
    """Whether each element of the result is made of the elements at its place."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    packet = getattr(aten, _OPERATORS.get(name, name).rstrip("_"), None)
    return packet is not None and (
        packet is aten.copy or torch.Tag.pointwise in getattr(packet, packet.overloads()[0]).tags
    )


_OPERATORS = {
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow", "setitem": "copy"
}  # fmt: skip


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node → the nodes whose last reader it is (a node nobody reads dies at once)."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        for read in node.all_input_nodes:
            last[read] = node
    dead: dict[fx.Node, list[fx.Node]] = {}
    for node, reader in last.items():
        if node.op != "output":
            dead.setdefault(reader, []).append(node)
    return dead


def drop_dead(graph: fx.Graph) -> None:
    """Erase nodes without users; operators that do more than compute their results stay."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not node_stays(node):
            graph.erase_node(node)


_NEEDS_PYTHON_DISPATCHER = frozenset(
    # Their C++ composite kernels mutate running statistics through operators whose schemas do not say so.
    (torch.batch_norm, torch.nn.functional.batch_norm, torch.instance_norm, torch.nn.functional.instance_norm)
)
