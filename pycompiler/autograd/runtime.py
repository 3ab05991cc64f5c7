"""Runtime wrappers: the code that runs on every call around compiled graphs.

In: a `Joint`, its `Partition` and the compiled callables. Out: one callable of the graph's inputs.

Example: a graph without in-place writes, aliases and gradients needs no wrapper: the compiler's callable is returned unchanged.

The autograd nodes of a call run in the engine, from recipes (`ir/autograd_node.py`). Wrappers for writes, aliases and
several nodes are printed as straight-line Python for this one graph, and compiled once; `source_of` returns the source.
The caller guards shapes, devices, ``requires_grad`` and grad mode.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler import _native
from pycompiler.autograd.joint import Joint, NodePlan, Output
from pycompiler.autograd.partition import Partition, without_tangents
from pycompiler.autograd.replay import Replay, states_before, transformed
from pycompiler.autograd.replay_graph import end_of, hooked
from pycompiler.autograd.saved_tensors import (
    NOTHING,
    SavedTensorCheck,
    SavedTensors,
    keeps_graph,
    raiser_of_written,
    strong_reference,
)
from pycompiler.autograd.staged_backward import StagedBackward, TokenFactory, handed_on, rest_of_backward, token_of
from pycompiler.autograd.stages import groups as stage_groups
from pycompiler.autograd.stages import split
from pycompiler.autograd.views import ViewStep, fastest_call
from pycompiler.errors import DoubleBackwardError, Unfit
from pycompiler.ir.autograd_node import BackwardRecipe, ForwardRecipe, GradientRecipe, Tangent
from pycompiler.ir.generated_source import register_source
from pycompiler.ir.lazy_value import Lazy, force
from pycompiler.logs import stage
from pycompiler.symbolic.number_nodes import SYMBOLIC, real_text, symbol_of, symbols_in, text_of, value_of
from pycompiler.symbolic.symbolic_node import Real
from pycompiler.symbolic.symbols import Specialise, hint_of, symbols_of
from pycompiler.torch_compat import torch_compile, torch_state
from pycompiler.torch_compat.process_settings import Lock

Compiled = Callable[..., Sequence[Any]]
BackwardCompiler = Callable[[fx.GraphModule, list[Any]], Compiled]

_log = stage("aot")

_FOREACH_FROM = 4  # so many buffers are copied by one call
_BESIDE = 4  # leading arguments without gradients, for a Function that is one of several


def source_of(fn: Any) -> str:
    """The printed source of a wrapper built here ('' for other functions)."""
    return getattr(fn, "__pycompiler_source__", "")


def _build(name: str, lines: Sequence[str], scope: dict[str, Any]) -> Any:
    return build_text(name, "\n".join(lines) + "\n", scope)


def build_text(name: str, text: str, scope: dict[str, Any]) -> Any:
    """The function `name` defined by `text`; `scope` becomes its globals."""
    filename = f"<pycompiler.autograd {name} {id(scope):x}>"
    exec(compile(text, filename, "exec"), scope)
    fn = scope[name]
    torch_compile.exclude(fn)  # autograd's engine calls it, also inside of torch.compile
    register_source(fn, filename, text)
    fn.__pycompiler_source__ = text
    return fn


def autocast_free(compiled: Compiled) -> Compiled:
    """`compiled` with autocast off: its graph already contains the casts."""
    return functools.partial(_without_autocast, compiled)


@torch_compile.skipped
def _without_autocast(compiled: Compiled, *args: Any) -> Sequence[Any]:
    with torch._C._DisableAutocast():
        return compiled(*args)


def grad_free(compiled: Compiled) -> Compiled:
    """`compiled` under no_grad, for graphs whose inputs require grad and whose outputs do not."""
    return functools.partial(_without_grad, compiled)


@torch_compile.skipped
def _without_grad(compiled: Compiled, *args: Any) -> Sequence[Any]:
    before = _grad_mode()
    try:  # `no_grad()` costs as much as a small graph; a signal may arrive after the first statement
        _set_grad(False)
        return compiled(*args)
    finally:
        _set_grad(before)


_grad_mode, _set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled


# -- the differentiable pair ------------------------------------------------------------------------------------------


Boxed = Callable[[list[Any]], Sequence[Any]]


def boxed(compiled: Compiled) -> Boxed:
    """`compiled` as a callable of one list of inputs, which it may empty: a plan frees each input after its last use."""
    if isinstance(compiled, _native.Plan):
        return compiled
    return functools.partial(_unpacked, compiled)


@torch_compile.skipped
def _unpacked(compiled: Compiled, inputs: list[Any]) -> Sequence[Any]:
    return compiled(*inputs)


def _unseen(compiled: Compiled) -> Compiled:
    """`compiled` as a callable whose frames torch.compile skips: a plan has none, and autocast is off in a marked one."""
    if isinstance(compiled, _native.Plan) or getattr(compiled, "func", None) is _without_autocast:
        return compiled
    return functools.partial(_called, compiled)


@torch_compile.skipped
def _called(compiled: Compiled, *args: Any) -> Sequence[Any]:
    return compiled(*args)


@torch_compile.skipped
def _no_gradients(inputs: list[Any]) -> Sequence[Any]:
    return ()


# Free the saved tensors now, unless this backward must retain the graph.  A torch without the method frees them after the
# backward.
_CLEARS = hasattr(torch._C._FunctionBase, "maybe_clear_saved_tensors")


class LazyBackward:
    """A backward graph that is compiled at its first use; after that, `call` takes the list of its inputs."""

    def __init__(self, module: fx.GraphModule, compiler: BackwardCompiler) -> None:
        self._lock = Lock()
        self._pending: tuple[fx.GraphModule, BackwardCompiler] | Lazy | None = (module, compiler)
        self.call: Boxed | None = None
        if not module.graph.output_node().args[0]:
            self._pending, self.call = None, _no_gradients

    @torch_compile.skipped
    def compile(self) -> Boxed:
        """Compile now, once, whichever thread calls first; returns `call`."""
        with self._lock():
            if self._pending is not None:
                module, compiler = force(self._pending)
                inputs = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
                _native.pause_hook()  # a backward inside of a compiled program is not part of that program
                try:
                    with torch.no_grad(), torch._C._DisableAutocast(), without_assumptions(inputs):
                        self.call = boxed(compiler(module, inputs))
                finally:
                    _native.resume_hook()
                self._pending = None
        assert self.call is not None  # set before `_pending` is cleared
        return self.call


@contextlib.contextmanager
def without_assumptions(inputs: Sequence[Any]) -> Iterator[None]:
    """Context manager: no further assumptions about symbolic sizes among a backward's inputs, since calls do not check them.

    A backward that needs an assumption runs its graph uncompiled.
    """
    symbols = next((s for n in inputs if isinstance(n, SYMBOLIC) and (s := symbols_of(n)) is not None), None)
    with contextlib.nullcontext() if symbols is None else symbols.settled():
        yield


def _dense(tangent: torch.Tensor | None) -> torch.Tensor | None:
    if tangent is None or _native.kind_of(tangent) < 2:
        return tangent
    return tangent.clone() if tangent.layout is torch.strided else tangent.to_dense()


class _TangentMetadata:
    """Shape, strides, dtype and device of a tangent, without its memory.  Sizes are ints or expressions."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape, self.strides = (tuple(map(value_of, sizes)) for sizes in (value.shape, value.stride()))
        self.dtype, self.device = value.dtype, value.device
        self.is_contiguous = value.is_contiguous()


@torch_compile.skipped
def _fitted(
    like: _TangentMetadata, symbols: Sequence[tuple[str, int]], tangent: torch.Tensor, numbers: Sequence[int]
) -> torch.Tensor:
    """`tangent` with the strides that the backward was compiled for, and with resolved conjugate and negative bits."""
    sizes = {name: numbers[k] for name, k in symbols}
    shape, strides = ([n if isinstance(n, int) else n.eval(sizes) for n in dims] for dims in (like.shape, like.strides))
    if tangent.is_neg() or tangent.is_conj():
        tangent = tangent.resolve_conj().resolve_neg()
    if tangent.is_contiguous() and like.is_contiguous:
        return tangent.as_strided(shape, strides)  # they only differ in dimensions of size 1
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device).copy_(tangent)


def differentiable(
    joint: Joint,
    part: Partition,
    forward: Compiled,
    compiler: BackwardCompiler,
    again: Replay,
    name: str,
    ahead: bool = False,
    buckets: Sequence[int] = (),
) -> Compiled:
    """The autograd Functions around the pair: takes the graph inputs, returns the fresh outputs.

    `ahead`: backwards for gradients of all outputs are compiled now.
    `buckets`: the limits of DDP's buckets in bytes; the backward then has stages (`autograd/stages.py`).
    Usually there is one Function, which takes all inputs. If gradients of some outputs reach other nodes than gradients
    of others (`Joint.ways`), or reach no input, each way has a Function.  It takes the inputs that it reaches, and the
    outputs of other ways at which its gradients end.
    """
    ways, tracked = joint.ways(), {i for i, n in enumerate(joint.inputs) if n.meta.get("requires_grad")}
    nodes = [_node_of(joint, part, again, way, buckets) for way in ways] if buckets or len(ways) != 1 else []
    if len(ways) == 1 and ways[0].inputs == tracked and all(len(node.stages) == 1 for node in nodes):
        lone = AutogradNode(
            joint, part, part, again, range(len(joint.tangents)), [range(len(joint.inputs))], alone=True
        )
        run = _function(lone, compiler, name, forward, ahead)
        return functools.partial(_begun, run, lone.begun) if lone.begun else run
    nodes = nodes or [_node_of(joint, part, again, way) for way in ways]
    scope: dict[str, Any] = {"forward_graph": forward, "state": _states(again), "foreach_copy": torch._foreach_copy_}
    scope |= {"set_grad": _set_grad, "grad_mode": _grad_mode, "begin": _pass_through_node, "nowhere": dead_end_input}
    lines = [
        "def run(*args):",
        "    before = grad_mode()",
        "    try:",
        "        set_grad(False)",
    ]  # a signal may arrive after this line
    lines += [f"        rng = {'state(args)' if again.keeps_states else 'None'}", "        outs = forward_graph(*args)"]
    lines += _hidden_lines(joint, "        ")
    lines += ["    finally:", "        set_grad(before)"]
    made, first = {k: f"outs[{k}]" for k in range(len(joint.fresh))}, len(joint.inputs)
    views, sizes = joint.views(), _sizes_of(joint)
    there, pieces = set[int](), dict[int, str]()
    between, inputs = {m.fresh: m.index for m in joint.between()}, {i: f"args[{i}]" for i in range(first)}
    written = dict(between)
    scope |= {"as_it_was": node_before_write, "ref": weakref.ref, "end_of": end_of}
    ended = set[int]()

    def write(k: int, later: Sequence[AutogradNode]) -> None:
        """Write fresh output `k` into its input; gradients by the old value then belong to the input's old history."""
        i = between.pop(k)
        if any(i in node.inputs for node in later):
            lines.append(f"    old{i} = as_it_was(args[{i}])")
            inputs[i] = f"old{i}"
        lines.append(f"    args[{i}].copy_({made[k]})")

    def reach(cut: tuple[str, int]) -> str:
        """The expression of a cut, once it exists; views are created between the nodes."""
        kind, k = cut
        if kind == "fresh":
            return f"args[{written[k]}]" if k in written else made[k]
        if k not in there:
            output = joint.outputs[k]
            if output.of_result:
                base = reach(joint.cut_of(output.index))
            else:
                base = f"args[{output.index}]" if output.of_input else made[output.index]
            lines.extend(_step_lines(k, base, output, scope, sizes, pieces))
            there.add(k)
        return f"r{k}"

    for j, node in enumerate(nodes):
        cuts = [joint.cuts[i - first] for i in node.inputs if i >= first]
        for k in [*between]:
            if k in map(joint.begins, cuts):
                write(k, nodes[j:])
        node.behind = frozenset(written.values()) - frozenset(between.values())
        scope[f"apply{j}"] = _function(node, compiler, name, forward, ahead)
        reached = {i: inputs[i] if i < first else reach(joint.cuts[i - first]) for i in node.inputs}
        ends = {i - first: held_by for i, held_by in reached.items() if i >= first}
        for c in sorted(ends.keys() - ended):
            lines.append(f"    end{c} = (ref({ends[c]}), end_of({ends[c]}), {ends[c]}._version)")
        ended |= ends.keys()
        behind = f"{{{', '.join(f'{c}: end{c}' for c in ends)}}}" if ends else "None"
        later: list[str] = []
        for s in range(len(node.stages) - 1, 0, -1):
            scope[f"stage{j}_{s}"] = _stage_function(node, s, name)
            lines.append(f"    later{j} = stage{j}_{s}({', '.join([*(reached[i] for i in node.stages[s]), *later])})")
            later = [f"later{j}"]
        leads_to = ", ".join([*(reached[i] for i in node.stages[0]), *later]) or "nowhere()"
        lines.append(f"    made{j} = apply{j}(args, outs, rng, {behind}, {leads_to})")
        lines += [f"    begin(made{j}[{p}])" for p, k in enumerate(node.outputs) if k in node.begun]
        made |= {k: f"made{j}[{p}]" for p, k in enumerate(node.outputs)}
    given = [*(made[k] for k in range(len(joint.fresh))), *(f"r{k}" for k in views)]
    lines.append(f"    return ({' '.join(f'{g},' for g in given)})")
    return _build("run", lines, scope)  # type: ignore[no-any-return]


class _NodeBeforeWrite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return value.new_empty(()).expand(value.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def node_before_write(value: torch.Tensor) -> torch.Tensor:
    """A tensor without memory that passes gradients on to the current history of `value`, for use after a write."""
    return _NodeBeforeWrite.apply(value)  # type: ignore[no-untyped-call,no-any-return]


def dead_end_input() -> torch.Tensor:
    """An argument for a node that reaches no input: gradients end there, and no hook of an input runs."""
    return torch.empty(0, requires_grad=True)


_pass_through_node: Any = torch.ops.aten.lift.default
"""Returns the tensor itself; its gradient then passes a node that does nothing."""


@torch_compile.skipped
def _begun(run: Compiled, outputs: Sequence[int], *args: Any) -> Sequence[Any]:
    made = run(*args)
    for k in outputs:
        _pass_through_node(made[k])
    return made


class AutogradNode:
    """An autograd node that a call creates.

    - whole: the values saved by all nodes; part: the values saved by this one
    - outputs: the fresh outputs whose gradients it takes; inputs: the inputs (then cuts) whose gradients it gives
    - alone: there is no other node, and its forward runs the graph
    - behind: the inputs that are written before the node is created
    - stages: its inputs in groups, one for each stage of its backward (`autograd/stages.py`).  Each stage is an autograd
      node that leads to the next stage.  The first one has the outputs, and all that is saved.
    """

    def __init__(
        self, joint: Joint, whole: Partition, part: Partition, again: Replay, tangents: Iterable[int],
        stages: Sequence[Sequence[int]], *, alone: bool
    ) -> None:  # fmt: skip
        self.joint, self.whole, self.part, self.again = joint, whole, part, again
        self.tangents, self.stages, self.alone = list(tangents), stages, alone
        self.inputs = [i for group in stages for i in group]
        self.behind = frozenset[int]()
        self.others = frozenset(range(len(joint.tangents))) - frozenset(self.tangents)
        self.differentiable = [joint.tangent_of[k] for k in self.tangents]
        self.outputs = list(range(len(joint.fresh))) if alone else self.differentiable
        self.kept = joint.kept(self.tangents)
        itself = {("fresh", i) if kind == "output" else ("input", i) for kind, i in part.saved}
        self.watched = sorted(k for k in self.kept if k not in itself and (k[0] == "fresh" or again.has_version(k[1])))

    @property
    def token(self) -> TokenFactory:
        return token_of(self.joint, self.differentiable[0])

    @property
    def beside(self) -> int:
        """The number of leading arguments of its Function that get no gradients."""
        return 0 if self.alone else _BESIDE + (not self.inputs)

    @property
    def begun(self) -> list[int]:
        """The fresh outputs that start nodes of their own, which only pass gradients on.

        In eager, gradients of the other outputs do not pass these outputs, so their hooks must not run.
        """
        if len({self.joint.paths[k].begins for k in self.tangents}) == 1:
            return []
        return [
            k for k in self.differentiable if not self.joint.fresh[k].meta["val"].is_complex()
        ]  # `_pass_through_node` refuses complex tensors

    @property
    def takes_apart(self) -> bool:
        """Whether the backwards of some outputs take only their own share of the saved tensors."""
        tensors = any(isinstance(n.meta["val"], torch.Tensor) for n in self.part.saved_nodes)
        return len(self.tangents) > 1 and (tensors or self.frees(self.tangents))

    def asks(self, tangents: Iterable[int]) -> bool:
        """Whether a backward of these tangents reads the saved tensors (even if there are none), which checks that they
        are not freed."""
        return any(isinstance(n.meta["val"], torch.Tensor) for n in self.part.saved_nodes) or self.frees(tangents)

    def frees(self, tangents: Iterable[int]) -> bool:
        """Whether eager's backward of these tangents frees tensors, so that a second backward must fail."""
        return any(self.joint.paths[k].nodes for k in tangents)


def _node_of(joint: Joint, part: Partition, again: Replay, way: NodePlan, buckets: Sequence[int] = ()) -> AutogradNode:
    others = frozenset(range(len(joint.tangents))) - frozenset(way.tangents)
    mine = without_tangents(joint, part, others) if others else part
    inputs = sorted(way.inputs)
    stages = stage_groups(joint, mine, inputs, buckets) if buckets else [inputs]
    return AutogradNode(joint, part, mine, again.of(mine), way.tangents, stages, alone=False)


def _function(node: AutogradNode, compiler: BackwardCompiler, name: str, forward: Compiled, ahead: bool) -> Compiled:
    recipe = _forward_recipe(node, forward)
    return apply_of(f"Compiled_{name}", _native.NodeForward(recipe), _backward(node, compiler, ahead))


def _stage_function(node: AutogradNode, s: int, name: str) -> Compiled:
    """The autograd Function of stage `s`, not the first: it takes the inputs of its group and the token of the stage behind."""
    count = len(node.stages[s]) + (s + 1 < len(node.stages))
    forward = ["def forward(ctx, *reached):", "    ctx.set_materialize_grads(False)", "    return token()"]
    backward = [
        "def backward(ctx, token):",
        "    if token is None:",
        f"        return ({'None, ' * count})",
        "    return rest_of_backward(token)",
    ]
    scope: dict[str, Any] = {"token": node.token}
    made = _build("forward", forward, scope), _build("backward", backward, {"rest_of_backward": rest_of_backward})
    return apply_of(f"Compiled_{name}_stage{s}", *made)


def _states(again: Replay) -> Callable[..., Any]:
    """A function that saves the inputs' and generators' states which change during the call."""
    return functools.partial(states_before, again.random, again.generators, again.before)


def apply_of(name: str, forward: Any, backward: Any) -> Compiled:
    """`apply` of an autograd Function built from two functions."""
    called = _passed_on(backward) if isinstance(backward, _native.NodeBackward) else backward
    members = {"forward": staticmethod(forward), "backward": staticmethod(called)}
    function: Any = type(name, (torch.autograd.Function,), members)
    if called is not backward:
        nodes = function._backward_cls
        nodes.apply = nodes.apply_boxed = backward  # autograd's engine calls it without Python code in between
        if _BOXED:
            # Torch's compiled autograd refuses nodes of a class with the flag.  So they belong to the class without it.
            function = type(name, (function,), {"boxed_grads_call": True})
            function._backward_cls = nodes
    # Not Function.apply: its checks for functorch are the caller's guards on dispatch keys.
    return super(torch.autograd.Function, function).apply  # type: ignore[misc,no-any-return]


# Whether torch can pass tangents as a list, so that a backward may free each after its last use.
_BOXED = hasattr(torch.autograd.function.BackwardCFunction, "apply_boxed")


def functions_of(function: Any) -> tuple[Any, Any]:
    """The forward and the backward from which `apply_of` built an autograd Function."""
    return function.forward, function._backward_cls.__dict__.get("apply", function.backward)


def _passed_on(backward: _native.NodeBackward) -> Callable[..., tuple[Any, ...]]:
    """`backward` for torch's compiled autograd, which traces the function of the class, but not this one."""

    def run(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        return backward(ctx, *tangents)

    made: Any = run
    torch_compile.exclude(made)
    return made  # type: ignore[no-any-return]


def _forward_recipe(node: AutogradNode, forward: Compiled) -> ForwardRecipe:
    joint, part, again = node.joint, node.part, node.again
    is_tensor = [isinstance(n.meta["val"], torch.Tensor) for n in part.saved_nodes]
    # these are still to be written, once
    counted = {m.index for m in joint.mutations if m.how != "hidden"} - node.behind
    kept = [((_KINDS[kind], i), int(kind == "input" and i in counted)) for kind, i in node.watched]
    hidden = tuple((m.index, m.fresh) for m in joint.mutations if m.how == "hidden") if node.alone else ()
    # A new value of an input may be another input itself, whose own history must not change.
    itself = [not node.alone and joint.fresh[k].op == "placeholder" for k in node.outputs]
    inputs = [i for kind, i in part.saved if kind == "input" and joint.is_tensor(i)]
    return ForwardRecipe(
        graph=_unseen(forward),
        alone=node.alone,
        states=_states(again) if again.keeps_states else None,
        writes=functools.partial(_write_hidden, hidden) if hidden else None,
        tensors=tuple(s for s, t in zip(part.saved, is_tensor, strict=True) if t),
        numbers=tuple(s for s, t in zip(part.saved, is_tensor, strict=True) if not t),
        takes_apart=node.takes_apart,
        versions=tuple(inputs) if node.takes_apart else (),
        watched=tuple((i, i in again.held, again.has_version(i)) for i in again.watched),
        made=tuple(again.kept),
        kept=tuple(kept),
        fixed=tuple(k for k in node.outputs if not joint.differentiable[k]),
        ends=any(i >= len(joint.inputs) for i in node.inputs),
        results=tuple(zip(node.outputs, itself, strict=True)),
        empty=NOTHING,
        holder=strong_reference,
    )


_KINDS = {"input": "input", "fresh": "output"}  # `Joint` -> `ir.autograd_node.Place`


@torch_compile.skipped
def _write_hidden(pairs: Sequence[tuple[int, int]], args: Sequence[Any], outs: Sequence[Any]) -> None:
    """Copy results into inputs without a version change."""
    torch._foreach_copy_([args[i].data for i, _ in pairs], [outs[k] for _, k in pairs])


def _backward(node: AutogradNode, compiler: BackwardCompiler, ahead: bool) -> Any:
    """The backward of the pair: selects the gradients for the given tangents."""
    variants = _Variants(node, compiler, ahead)
    if ahead or len(node.tangents) == 1:
        variants.find((False,) * len(node.tangents))
    places = {k: p for p, k in enumerate(node.outputs)}
    return _native.NodeBackward(
        BackwardRecipe(
            is_unusual=_native.PlainState(_is_unusual),
            unusual=variants.unusual,
            find=variants.find,
            tangents=tuple(places[k] for k in node.differentiable),
            n_inputs=node.beside + len(node.stages[0]) + (len(node.stages) > 1),
            n_outputs=len(node.outputs),
        )
    )


@torch_compile.skipped
def _is_unusual() -> bool:
    return torch.is_grad_enabled() or torch._C._is_any_autocast_enabled() or transformed()


class _Variants:
    """The functions that run compiled backwards: one per set of a node's outputs without a gradient."""

    def __init__(self, node: AutogradNode, compiler: BackwardCompiler, ahead: bool) -> None:
        self._node: AutogradNode | Lazy = node
        self.compiler, self.ahead = compiler, ahead
        self.known: dict[tuple[bool, ...], Any] = {}
        self._lock = Lock()

    @property
    def node(self) -> AutogradNode:
        return force(self._node)  # type: ignore[no-any-return]

    @torch_compile.skipped
    def find(self, pattern: tuple[bool, ...]) -> Any:
        """The function for this pattern of missing tangents."""
        with self._lock():
            if pattern not in self.known:
                tangents = self.node.tangents
                self.known[pattern] = self.make(frozenset(k for k, gone in zip(tangents, pattern, strict=True) if gone))
            return self.known[pattern]

    def make(self, missing: frozenset[int]) -> Any:
        node, gone = self.node, missing | self.node.others
        part = without_tangents(node.joint, node.whole, gone) if missing else node.part
        lazy = self._lazy(part)
        if self.ahead and not missing:
            lazy.compile()
        tangents, saved = [k for k in node.tangents if k not in missing], None
        if node.takes_apart:
            holds = bool(node.again.held)
            saved = SavedTensors(node.joint, node.part, part, tangents, self._positions, holds=holds)
        recipe = _gradient_recipe(node, part, tangents, lazy, saved, functools.partial(self.from_odd, missing))
        return _native.NodeGradients(recipe)

    def _lazy(self, part: Partition) -> LazyBackward | StagedBackward:
        if len(self.node.stages) == 1:
            return LazyBackward(part.backward, self.compiler)
        stages = split(self.node.joint, part, self.node.stages)
        return StagedBackward(stages, [LazyBackward(stage.module, self.compiler) for stage in stages], self.node.token)

    def _positions(self, tangents: Sequence[int]) -> set[int]:
        saved: SavedTensors = self._recipe(tangents).saved
        return {*saved.positions, *saved.checked, *self.node.again.reads(saved.positions)}

    def _recipe(self, tangents: Sequence[int]) -> GradientRecipe:
        return self.find(tuple(k not in tangents for k in self.node.tangents)).recipe  # type: ignore[no-any-return]

    def again(self, ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients, computed by the replay of the captured graph."""
        node = self.node
        given = dict(zip(node.outputs, tangents, strict=True))
        look = self._look([k for k in node.tangents if given[node.joint.tangent_of[k]] is not None])
        if node.alone:
            return node.again(ctx, tangents, look)
        found = node.again(ctx, [given.get(k) for k in range(len(node.joint.fresh))], look)
        return (*(None,) * node.beside, *handed_on([[found[i] for i in group] for group in node.stages], node.token))

    def _look(self, tangents: Sequence[int]) -> SavedTensorCheck:
        """A `SavedTensorCheck` with the checks of the compiled backward of these tangents."""
        node, recipe = self.node, self._recipe(tangents)
        return SavedTensorCheck(
            recipe.saved, node.asks(tangents), recipe.checks, len(node.again.tensors), bool(node.again.held)
        )

    @torch_compile.skipped
    def from_odd(self, missing: frozenset[int], ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients for tangents without dense memory (sparse tensors, zero tensors without memory).

        The replay computes them; if it cannot run, the compiled backward takes dense copies.
        """
        try:
            return self.again(ctx, tangents)
        except DoubleBackwardError:
            dense = [*map(_dense, tangents)]
            if any(t is not None and _native.kind_of(t) > 1 for t in dense):
                raise
        gradients = self.find(tuple(k in missing for k in self.node.tangents))
        return gradients(ctx, dense)  # type: ignore[no-any-return]

    @torch_compile.skipped
    def unusual(self, backward: Any, ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients under autocast (its casts are in the graph), or if gradients are differentiated or transformed."""
        if torch.is_grad_enabled() or transformed():
            return self.again(ctx, tangents)
        with torch._C._DisableAutocast():
            return backward(ctx, *tangents)  # type: ignore[no-any-return]


def _names(values: Iterable[Any], form: str) -> dict[str, str]:
    """Symbol -> `form` of its first position among the values."""
    found = ((name, form.format(k)) for k, v in enumerate(values) if (name := symbol_of(v)) is not None)
    return dict(reversed([*found]))


def _gradient_recipe(
    node: AutogradNode, part: Partition, defined: Sequence[int], graph: LazyBackward | StagedBackward,
    saved: SavedTensors | None, from_odd: Callable[..., tuple[Any, ...]]
) -> GradientRecipe:  # fmt: skip
    joint, places = node.joint, {k: p for p, k in enumerate(node.outputs)}
    numbers = [n.meta["val"] for n in node.part.saved_nodes if not isinstance(n.meta["val"], torch.Tensor)]
    sizes = [(k, v) for k, v in enumerate(numbers) if not isinstance(v, torch.SymFloat)]
    found = [(name, k) for k, v in sizes if (name := symbol_of(v)) is not None]
    symbols = tuple(dict(reversed(found)).items())
    tangents = []
    for k in defined:
        like = _TangentMetadata(joint.tangents[k].meta["val"])
        tangents.append(Tangent(places[joint.tangent_of[k]], like.strides, functools.partial(_fitted, like, symbols)))
    kept = joint.kept(defined)
    checks = [
        (j, raiser_of_written((joint.inputs if kind == "input" else joint.fresh)[i].meta["val"]))
        for j, (kind, i) in enumerate(node.watched)
        if (kind, i) in kept
    ]
    is_tensor = tuple(isinstance(n.meta["val"], torch.Tensor) for n in part.saved_nodes)
    order = {k: p for p, k in enumerate(defined)}
    given = [part.grads[i] for i in node.inputs]
    gradients = tuple((g[0], order[g[1]]) if g is not None and g[0] == "tangent" else g for g in given)
    return GradientRecipe(
        graph=graph,
        tangents=tuple(tangents),
        symbols=symbols,
        from_odd=from_odd,
        saved=saved,
        asks=node.asks(defined),
        is_tensor=is_tensor,
        checks=tuple(checks),
        clears=_CLEARS and (saved is not None or node.asks(defined)),
        keeps_graph=keeps_graph if node.again.held and saved is None else None,
        gradients=gradients if len(node.stages) == 1 else None,
        beside=node.beside,
    )


# -- inputs that share memory ----------------------------------------------------------------------------------------


def raise_unfit(*args: Any) -> Sequence[Any]:
    """Replaces a captured graph that may raise in its middle, after writes.

    Its whole frame runs eagerly instead.  So the program's own error is raised, and its handlers run, as in eager.
    """
    raise Unfit("a call that the graph was not compiled for, and that may raise")


def restoring_state(eager: Compiled) -> Compiled:
    """A captured graph that switches torch's state; an error restores the state at the call."""
    return functools.partial(_switched_back, eager)


def _switched_back(eager: Compiled, *args: Any) -> Sequence[Any]:
    state = torch_state.read_state()
    try:
        return eager(*args)
    except BaseException:
        torch_state.restore_after_error(state)
        raise


def unless_shared(
    run: Compiled, written: Sequence[int], eager: Compiled, *, name: str, pairs: Sequence[tuple[int, int]] = ()
) -> Compiled:
    """`run`, but `eager` for calls in which an input at a position of `written` shares memory with another input.

    The trace assumed that each written input has memory of its own; only a call shows which inputs share memory.
    pairs: inputs, one of them empty, which share no memory but may share a version counter.
    """
    left = functools.partial(_left, "an input that the graph writes shares memory with another input", name, eager)
    if isinstance(run, _native.Plan):
        _native.unless_shared(run, written, left)
        return run
    if pairs:
        return functools.partial(_unless_stored, run, left, written, pairs)
    return functools.partial(_unless_shared, run, left, written)


def _left(why: str, name: str, eager: Compiled, *args: Any) -> Sequence[Any]:
    _log.info("graph %s: %s; this call runs eagerly", name, why)
    return eager(*args)


def _unless_shared(run: Compiled, left: Compiled, written: Sequence[int], *args: Any) -> Sequence[Any]:
    return left(*args) if _native.shares_memory(args, written) else run(*args)


def _unless_stored(
    run: Compiled, left: Compiled, written: Sequence[int], pairs: Sequence[tuple[int, int]], *args: Any
) -> Sequence[Any]:
    together = _native.shares_memory(args, written) or any(_one_storage(args[i], args[j]) for i, j in pairs)
    return left(*args) if together else run(*args)


def unless_moved(run: Compiled, joint: Joint, eager: Compiled, *, name: str) -> Compiled:
    """`run`, but `eager` for calls in which an input has another storage offset than in the trace.

    Used for a graph that counts elements from the start of a storage.
    """
    inputs = [node.meta["val"] for node in joint.inputs]
    starts = [(i, hint_of(t.storage_offset())) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)]
    left = functools.partial(_left, "an input has another storage offset than at compile time", name, eager)
    return functools.partial(_unless_moved, run, left, starts)


def _unless_moved(run: Compiled, left: Compiled, starts: Sequence[tuple[int, int]], *args: Any) -> Sequence[Any]:
    return left(*args) if any(args[i].storage_offset() != start for i, start in starts) else run(*args)


def unless_retained(run: Compiled, joint: Joint, eager: Compiled, *, name: str) -> Compiled:
    """`run`, but `eager` for calls with one of three properties.

    - An input that is written, with gradients, retains its gradient (`retain_grad`).  In eager, gradients of values
      computed after the write pass through its new value.
    - Autograd refuses a write.  Other writes would be done by then, and could not be undone.
    - An input of `Joint.rebased` is a view, or is written without autograd.  The history of such a view starts anew there.
    """
    written = [m.index for m in joint.recorded]
    counted = [i for i, _ in joint.stores] + [m.index for m in joint.mutations if m.how == "no_grad"] + joint.touched
    views = sorted({*joint.rebased, *(joint.arrived.intersection(counted) if joint.needs_backward else ())})
    if not written and not views:
        return run
    left = functools.partial(
        _left, "an input that the graph writes retains its gradient, or autograd refuses the write", name, eager
    )
    return functools.partial(_unless_retained, run, left, written, views)


def _unless_retained(
    run: Compiled, left: Compiled, written: Sequence[int], views: Sequence[int], *args: Any
) -> Sequence[Any]:
    if any(_keeps_or_refuses(args[i]) for i in written) or any(args[i]._base is not None for i in views):
        return left(*args)
    return run(*args)


def _keeps_or_refuses(written: torch.Tensor) -> bool:
    """Whether a tensor retains its gradient, or autograd refuses to write it with gradients enabled.

    Refused are a leaf, a view of a leaf, and one of several views.
    """
    base = written._base  # its history changes with the write
    if base is None:
        return written.retains_grad or (written.is_leaf and written.requires_grad)
    if written.retains_grad or base.retains_grad:
        return True
    return written.requires_grad and ((base.is_leaf and base.requires_grad) or _creation(written) != _PLAIN)


_creation, _PLAIN = torch._C._autograd._get_creation_meta, torch._C._autograd.CreationMeta.DEFAULT


def empty_pairs(joint: Joint, counted: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of a written input (of `counted`) and another input, one of them empty, if a backward counts versions."""
    if not joint.needs_backward:
        return []
    tensors = [i for i in range(len(joint.inputs)) if joint.is_tensor(i)]
    empty = {i for i in tensors if any(type(n) is int and n == 0 for n in joint.inputs[i].meta["val"].shape)}
    return [(i, j) for i in counted for j in tensors if i != j and (i in empty or j in empty)]


def _one_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    strided = a.layout is b.layout is torch.strided
    return strided and a.untyped_storage()._cdata == b.untyped_storage()._cdata


# -- in-place writes and aliases --------------------------------------------------------------------------------------


def epilogue(joint: Joint, inner: Compiled, *, name: str) -> Compiled:
    """`inner` (inputs → fresh outputs) followed by the in-place writes and the construction of the caller's outputs."""
    plain = [Output("fresh", i) for i in range(len(joint.fresh))]
    if not joint.mutations and not joint.touched and not joint.more and not joint.hooks and joint.outputs == plain:
        return inner
    scope: dict[str, Any] = {
        "inner": inner,
        "set_grad": _set_grad,
        "grad_mode": _grad_mode,
    }
    scope |= {"foreach_copy": torch._foreach_copy_, "touch": torch._C._autograd._unsafe_set_version_counter}
    lines = ["def run(*args):"]
    # Before anything is saved.  Tensors that earlier nodes saved then raise in their backward, as after any write.
    lines += [f"    touch((args[{i}],), (args[{i}]._version + 1,))" for i in joint.touched]
    lines.append("    outs = inner(*args)")
    lines += _mutation_lines(joint)
    sizes = _sizes_of(joint)
    views, pieces = joint.views(), dict[int, str]()
    for k in graphlib.TopologicalSorter(
        {k: [o.index] * o.of_result for k, o in enumerate(joint.outputs)}
    ).static_order():
        if k in views:
            lines.append(f"    r{k} = outs[{len(joint.fresh) + views.index(k)}]")
        else:
            lines += _output_lines(k, joint.outputs[k], scope, sizes, pieces)
    for j, hook in enumerate(joint.hooks):
        scope |= {"hooked": hooked, f"body{j}": hook.body}
        lines.append(f"    hooked(body{j}, {', '.join(f'r{i}' for i in (hook.result, *hook.reads))})")
    lines.append(f"    return ({' '.join(f'r{k},' for k in range(len(joint.outputs) - len(joint.more)))})")
    run = _build("run", lines, scope)
    run.__name__ = run.__qualname__ = f"run_{name}"
    return run  # type: ignore[no-any-return]


def _mutation_lines(joint: Joint) -> list[str]:
    """Copies into inputs: writes that autograd records one by one, others grouped by kind."""
    groups: dict[str, list[tuple[str, str]]] = {"recorded": [], "quiet": [], "plain": []}
    between = joint.between()
    for m in joint.mutations:
        if m in between:
            continue
        value = f"outs[{m.fresh}]"
        if m.how == "hidden":
            if not joint.needs_backward:
                groups["plain"].append((f"args[{m.index}].data", value))
        elif m.how == "grad":
            groups["recorded"].append((f"args[{m.index}]", value))
        else:
            requires_grad = joint.inputs[m.index].meta.get("requires_grad")
            groups["quiet" if requires_grad else "plain"].append((f"args[{m.index}]", value))
    lines = [f"    {target}.copy_({value})" for target, value in groups["recorded"]]
    lines += _copies(groups["plain"], "    ")
    if groups["quiet"]:
        lines += [
            "    before = grad_mode()",
            "    try:",
            "        set_grad(False)",
            *_copies(groups["quiet"], "        "),
        ]
        lines += ["    finally:", "        set_grad(before)"]
    return lines


def _hidden_lines(joint: Joint, indent: str) -> list[str]:
    """Copies into inputs without a version change.  They come before tensors are saved, since a checkpoint may end the
    call there."""
    hidden = [m for m in joint.mutations if m.how == "hidden"]
    return _copies([(f"args[{m.index}].data", f"outs[{m.fresh}]") for m in hidden], indent)


def _copies(pairs: list[tuple[str, str]], indent: str) -> list[str]:
    if len(pairs) < _FOREACH_FROM:
        return [f"{indent}{target}.copy_({value})" for target, value in pairs]
    targets, values = (", ".join(names) for names in zip(*pairs, strict=True))
    return [f"{indent}foreach_copy([{targets}], [{values}])"]


def _output_lines(
    k: int, output: Output, scope: dict[str, Any], sizes: Mapping[str, str], pieces: dict[int, str]
) -> list[str]:
    if output.kind == "constant" and isinstance(output.value, SYMBOLIC):
        scope["math"] = math
        return [f"    r{k} = {_number_text(output.value, sizes)}"]
    if output.kind == "constant":
        scope[f"constant{k}"] = output.value
        return [f"    r{k} = constant{k}"]
    if output.kind == "same":
        return [f"    r{k} = r{output.index}"]
    base = f"r{output.index}" if output.of_result else f"{'args' if output.of_input else 'outs'}[{output.index}]"
    if output.kind != "view":
        return [f"    r{k} = {base}"]
    return _step_lines(k, base, output, scope, sizes, pieces)


def _sizes_of(joint: Joint) -> dict[str, str]:
    return _names((n.meta["val"] for n in joint.inputs), "args[{}]")


def _step_lines(
    k: int, base: str, output: Output, scope: dict[str, Any], sizes: Mapping[str, str], pieces: dict[int, str]
) -> list[str]:
    """`r{k}`, a view of `base`.

    pieces: `Output.pieces` -> variable with all results of one operator; this function adds entries.
    """
    if output.pieces in pieces:
        return [f"    r{k} = {pieces[output.pieces]}[{output.steps[-1].item}]"]
    lines, made = [], base
    for j, step in enumerate(output.steps):
        called = scope[f"op{k}_{j}"] = fastest_call(step.target)
        kwargs = dict(step.kwargs)
        offset = kwargs.pop("offset", None)
        inside = [s for s in step.args if isinstance(s, ViewStep)]
        if names := symbols_in((*kwargs.values(), *(a for s in inside for a in (*s.args, *s.kwargs.values())))):
            raise Specialise(names, "a keyword argument of a view takes numbers only")
        arguments = [made]
        if text := text_of(step.args, sizes) or _literal(step.args):
            arguments.append(text[1:-1].rstrip(", "))
        elif step.args:
            scope[f"args{k}_{j}"] = step.args
            arguments.append(f"*args{k}_{j}")
        if offset is not None:
            arguments.append(f"{made}.storage_offset() + {text_of(offset, sizes) or offset}")
        if kwargs:
            scope[f"kwargs{k}_{j}"] = kwargs
            arguments.append(f"**kwargs{k}_{j}")
        # An operator's `__call__` only calls `_op`, which costs a quarter of a microsecond.
        own = "._op" if isinstance(called, torch._ops.OpOverload) else ""
        call = f"op{k}_{j}{own}({', '.join(arguments)})"
        if step.item is not None and step is output.steps[-1] and output.pieces is not None:
            pieces[output.pieces] = f"pieces{k}"
            lines.append(f"    pieces{k} = {call}")
            call = f"pieces{k}"
        made = f"r{k}"
        lines.append(f"    {made} = {call}{'' if step.item is None else f'[{step.item}]'}")
    return lines


def _literal(args: tuple[Any, ...]) -> str | None:
    """Python code of numbers and lists of numbers; None for other values."""
    plain = all(type(a) is int or (isinstance(a, (list, tuple)) and all(type(n) is int for n in a)) for a in args)
    return repr(args) if args and plain else None


def _number_text(value: Any, sizes: Mapping[str, str]) -> str:
    """A number of the program as Python code."""
    found = value_of(value)
    return real_text(found, sizes) if isinstance(found, Real) else text_of(value, sizes) or repr(found)
