"""The forward of a trace: the captured graph runs once, node by node, on functional wrappers under the recorder.

In: a captured graph and functional inputs.  Out: its results, and observations about writes, hooks and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import fake_tensor

from pycompiler.autograd import attention_arguments
from pycompiler.autograd.checkpoint_policies import PolicyCall
from pycompiler.autograd.recorder import Recorder, tensors_in
from pycompiler.autograd.trace.gradient_paths import Edge, HiddenSavedTensors, is_of_a_list, nodes_in_order
from pycompiler.autograd.trace.inputs import inner, storage_of
from pycompiler.autograd.trace.writes import CallArguments, LayoutVersion, is_metadata, name_of, part_of, refuse_overlap
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir import higher_order
from pycompiler.ir.node_effects import effects_of
from pycompiler.operators import functional_twins
from pycompiler.operators.kernel_type_checks import memory_of, shares_version
from pycompiler.operators.operator_facts import SWITCHES, facts_of
from pycompiler.operators.result_strides import layouts
from pycompiler.operators.value_checks import within
from pycompiler.symbolic import unbacked_symbols
from pycompiler.symbolic.symbolic_node import symbols_refused_by_cpp
from pycompiler.symbolic.symbols import Specialise, hint_of
from pycompiler.torch_compat import interrupts

DATA_DEPENDENT = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)

_NEEDS_PYTHON_DISPATCHER = frozenset(
    # Their C++ composite kernels write running statistics through operators whose schemas do not say so.
    (torch.batch_norm, torch.nn.functional.batch_norm, torch.instance_norm, torch.nn.functional.instance_norm)
)


_AS_OUT = frozenset((torch.sum, torch.prod, torch.mean, torch.nansum, torch.nanmean))
"""Functions that compute in the dtype of `out`; functionalisation would cast a result of another dtype."""
_ALIASES = frozenset(("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"))
"""Operators whose results share memory with their argument, unknown to autograd and functionalisation."""
_QUANTILES = frozenset((torch.quantile, torch.nanquantile, "quantile", "nanquantile"))
"""Functions that read the values of their second argument, on the host."""
_RANGES = frozenset((torch.arange, torch.linspace, torch.logspace, torch.range))
_LARGE = 2**16
"""Elements: larger tensors are not copied for another library's operator that writes them."""
_RANDOM = frozenset(("normal", "uniform", "bernoulli", "exponential", "cauchy", "log_normal", "geometric", "random"))
"""Operators whose kernels draw differently into memory with gaps."""
_EXPANSION: Any = torch._C._functionalization.expand_ViewMeta  # type: ignore[attr-defined]


_creation = torch._C._autograd._get_creation_meta
_WITHOUT_GRAD = torch._C._autograd.CreationMeta.NO_GRAD_MODE


class Forward:
    """Runs `gm` and the graphs inside of it; `branches`: functions for branches and loops (`Branches`)."""

    def __init__(
        self,
        gm: fx.GraphModule,
        recorder: Recorder,
        branches: Mapping[fx.Node, Callable[..., Any]],
        more: Sequence[fx.Node] = (),
    ) -> None:
        """`more`: nodes whose values are further results."""
        self.gm = self.whole = gm
        self.more = more
        self.moved: Collection[fx.Node] = ()  # hooks that are registered on results afterwards
        self.hooks: dict[fx.Node, Edge] = {}
        self.edges: dict[Edge, fx.Node] = {}  # of values of the whole graph, as they were created
        self.recorder = recorder
        self.branches = branches
        self.slices = HiddenSavedTensors()
        self.given: set[int] = set()  # the memory of the inputs
        self.leaves: set[int] = set()  # the memory of inputs that are leaves with gradients
        self.dying: Sequence[fx.Node] = ()  # values that the running node is the last to read
        self.hooked: dict[Any, list[torch.Tensor]] = {}  # autograd nodes with hooks → tensors that these hooks read
        self.remade: dict[Any, set[int]] = {}  # autograd nodes of checkpoints → the memory of the checkpoints' results
        self.rebased: set[int] = set()  # memory of inputs that was written, with gradients, while views of them existed
        self.displaced: set[int] = set()  # memory with another layout than the program's, which has gaps, since a write

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results of `self.gm` for these inputs."""
        values = iter(inputs)
        given = [t for t in tensors_in(inputs) if t.layout is torch.strided]
        self.given |= set(map(storage_of, given))
        self.leaves |= {storage_of(t) for t in given if t.requires_grad and t.is_leaf}
        env: dict[fx.Node, Any] = {}
        last_use = _last_uses(self.gm.graph)
        for node in self.gm.graph.nodes:
            interrupts.check()
            self.recorder.begin(node)
            self.dying = last_use.get(node, ())
            self.recorder.to_bind = list(node.meta.get("binds", ()))
            if node.op == "placeholder":
                env[node] = next(values)
            elif node.op == "output":
                self.recorder.source = None
                out = fx.node.map_arg(node.args[0], env.__getitem__)
                out = tuple(out) if isinstance(out, (tuple, list)) else (out,)
                return (*out, *(env[n] for n in self.more)) if self.gm is self.whole else out
            else:
                env[node] = self._run_node(node, env)
                if self.gm is self.whole and isinstance(env[node], torch.Tensor) and (edge := _edge_of(env[node])):
                    self.edges[edge] = node
            for dead in last_use.get(node, ()):
                if self.gm is not self.whole or dead not in self.more:
                    del env[dead]
        raise AutogradUnsupported("graph without an output node", str(self.gm.graph), "end the graph with an output")

    def _run_node(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        try:
            return self._run_target(node, env)
        except AutogradUnsupported as error:
            error.user = error.user or node.meta.get("user", ())
            raise
        except (Specialise, *DATA_DEPENDENT):
            raise
        except Exception as error:
            if (names := symbols_refused_by_cpp(error)) is not None:
                raise Specialise(names, f"{name_of(node)} takes numbers only") from None
            # The user's error or a limit of tracing: in both cases eager does the right thing.
            seen = f"{node.format_node()}: {type(error).__name__}: {error}"
            refused = AutogradUnsupported("an operator cannot be traced", seen, "the graph runs eagerly")
            refused.user = node.meta.get("user", ())
            raise refused from error

    def _run_target(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":  # tensors are inputs (`lift_attributes`), so this is a nested graph
            return getattr(self.gm, str(node.target))
        args, kwargs = _given(node.args, env), _given(node.kwargs, env)
        if effects_of(node).mutates is False:
            with self.slices.watch(node, ()) as saved:
                out = self._called(node, args, kwargs)
            self.slices.note_results(saved, out)
            return self._read(node, out, args, kwargs)
        given, into = CallArguments(args, kwargs), part_of(node, args)
        with self.slices.watch(node, [p.tensor for places in given.places for p in places]) as saved:
            out = self._called(node, args, kwargs)
        wrote, read = given.written()
        if not wrote:
            self.slices.note_results(saved if is_of_a_list(node) else [], out)
            return self._read(node, out, args, kwargs)
        refuse_overlap(node, wrote, read, into, given.row)
        self._note_views(node, wrote, env)
        given.count()
        self.slices.note(saved, [p.tensor for p in wrote])
        if is_metadata(node):
            return out
        if any(_expands(p.tensor) for p in wrote):
            seen = node.format_node() or ""
            raise AutogradUnsupported("a write to a part of an expanded tensor", seen, "clone it first")
        if not self.displaced.isdisjoint(p.storage for p in (*wrote, *read)):
            if _is_of_a_library(node.target) or name_of(node).rstrip("_") in _RANDOM:
                self._refuse_displaced(node)
        for p in wrote:
            if p.storage and p.tensor.shape == p.shape:
                self._keep_layout(p.tensor, p.strides)
        return out

    def _note_views(self, node: fx.Node, wrote: Sequence[LayoutVersion], env: Mapping[fx.Node, Any]) -> None:
        """Record memory of inputs that had views when it was written.

        The views' histories then start anew at the tensors they view.  If that is a leaf, written with gradients
        disabled, the views have no history in eager.
        """
        if not torch.is_grad_enabled():
            leaves = [p for p in wrote if p.storage in self.leaves]
            live = [t for n, v in env.items() if leaves and (n not in self.dying or node.users) for t in tensors_in(v)]
            views = [t for t in live if t._is_view() and t.requires_grad and _creation(t) != _WITHOUT_GRAD]
            if any(storage_of(t) == p.storage and shares_version(p.tensor, t) for t in views for p in leaves):
                raise AutogradUnsupported(
                    "a view of a leaf that is written", node.format_node() or "", "create the view after the write"
                )
            return
        if not any(p.tensor.requires_grad and p.storage in self.given for p in wrote):
            return
        written = {p.storage for p in wrote}
        views = [t for t in tensors_in([*env.values()]) if t._is_view() and t.layout is torch.strided]
        self.rebased |= written.intersection(map(storage_of, views))

    def _read(self, node: fx.Node, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call that wrote nothing."""
        if isinstance(out, torch.Tensor) and args:
            out = _not_expanded(out, args[0])
        if self.displaced:
            self._same_memory(node, out, (args, kwargs))
        self._hold(node, out, (args, kwargs))
        return out

    def _hold(self, node: fx.Node, out: Any, given: Any) -> None:
        """Give fresh results the strides that capture observed, whatever their decompositions return.

        Strided views, reshapes and writes would show a difference.  (A capture by another compiler only has the final
        strides, which is as good if they did not change.)
        """
        expected = node.meta.get("strides") or layouts(node.meta.get("example_value"))
        results = list(tensors_in(out))
        if len(results) != len(expected) or all(t.stride() == s for t, s in zip(results, expected, strict=True)):
            return
        taken = {storage_of(t) for t in tensors_in(given)}
        for t, strides in zip(results, expected, strict=True):
            if t.layout is torch.strided and t.stride() != strides and storage_of(t) not in taken:
                self._keep_layout(t, strides)

    def _same_memory(self, node: fx.Node, out: Any, given: Any) -> None:
        """Refuse a result that is a view in one of trace and program and a copy in the other (`reshape`); later writes
        would show it."""
        taken = {storage_of(t) for t in tensors_in(given)}
        if self.displaced.isdisjoint(taken):
            return
        if _is_of_a_library(node.target):  # it may depend on the layout of its arguments
            self._refuse_displaced(node)
        theirs = {memory_of(t) for a in node.all_input_nodes for t in tensors_in(a.meta.get("example_value"))}
        for t, seen in zip(tensors_in(out), tensors_in(node.meta.get("example_value")), strict=False):
            if (storage_of(t) in taken) != (memory_of(seen) in theirs) or "as_strided" in str(node.target):
                self._refuse_displaced(node)

    @staticmethod
    def _refuse_displaced(node: fx.Node) -> None:
        what = "a use of a written input that has gaps in memory"
        raise AutogradUnsupported(what, node.format_node() or "", "the graph runs eagerly")

    def _keep_layout(self, written: torch.Tensor, strides: tuple[int, ...]) -> None:
        """Restore the layout of a written tensor.

        A write does not change a tensor's layout.  Functionalisation gives it, and its base, the layout of the new
        value, which strided views, reshapes and results would show.
        """
        if not torch._is_functional_tensor(written):
            return
        value = inner(written)
        doubtful = self._doubtful(value)
        if not value.numel() or (value.stride() == strides and not doubtful):
            return
        torch._disable_functionalization()  # type: ignore[no-untyped-call]
        try:
            laid = self.recorder.laid_out(value, strides, exactly=doubtful)
        finally:
            torch._enable_functionalization(reapply_views=True)
        if laid is value:
            self.displaced.add(storage_of(written))
        else:
            torch._functionalize_replace(written, laid)
            torch._functionalize_commit_update(written)
            torch._functionalize_sync(written)

    def _doubtful(self, value: torch.Tensor) -> bool:
        """Whether the operator that computed `value` may return other strides than its fake in a dimension of one element."""
        made = self.recorder.node(value).target
        return (
            1 in value.shape
            and isinstance(made, OpOverload)
            and torch.Tag.pointwise not in made.tags
            and not made.is_view
        )

    def _checkpoint(
        self, target: object, body: fx.GraphModule, preserve_rng_state: bool, *tensors: Any
    ) -> tuple[Any, ...]:
        """Run the body inside of this graph.

        The backward recomputes its nodes (`partition.py`), except for values saved by the policy of the outermost checkpoint.
        """
        outer, source = (self.gm, self.recorder.region), self.recorder.source
        policy = (
            PolicyCall(target.context_fn)
            if isinstance(target, higher_order.SelectiveCheckpoint) and outer[1] is None
            else None
        )
        self.gm, self.recorder.region = body, self.recorder.next_region()
        if policy is not None:
            self.recorder.policy = policy
        try:
            made = self.run(tensors)
        finally:
            (self.gm, self.recorder.region), self.recorder.source = outer, source
            if policy is not None:
                self.recorder.policy = None
                policy.end()
        results = {storage_of(t) for t in tensors_in(made)} - {storage_of(t) for t in tensors_in(tensors)}
        roots, ends = ([t.grad_fn for t in tensors_in(ts) if t.requires_grad] for ts in (made, tensors))
        for inside in nodes_in_order(roots, ends):
            self.remade.setdefault(inside, set()).update(results)
        return made

    def _called(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name_of(node).partition(".")[0] in _ALIASES:
            raise AutogradUnsupported(
                "results that share memory, unknown to autograd", node.format_node() or "", "clone the pieces"
            )
        if node.op == "call_function":
            assert callable(node.target)
            if higher_order.is_checkpoint(node.target):
                return self._checkpoint(node.target, *args)
            if node in self.branches:
                return self.branches[node](*args[3:])
            if node.target in SWITCHES:
                raise AutogradUnsupported(
                    "the graph changes a setting of torch's kernels", str(node), "change it outside of the graph"
                )
            if node.target is higher_order.register_gradient_hook:
                if node in self.moved:
                    return None
                if self.gm is self.whole:
                    self.hooks[node] = args[1].grad_fn, args[1].output_nr
                self.hooked.setdefault(args[1].grad_fn, []).extend(tensors_in(args[2:]))
            if isinstance(node.target, unbacked_symbols.UnbackedCheck):
                return self.recorder.check(node.target, args)
            if node.target is torch.nn.functional.one_hot:
                return _one_hot(*args, **kwargs)
            if node.target in _AS_OUT and kwargs.get("out") is not None and kwargs.get("dtype") is None:
                kwargs = {**kwargs, "dtype": kwargs["out"].dtype}
            if node.target in _RANGES and kwargs.get("out") is not None and kwargs["out"].dim() != 1:
                seen = node.format_node() or ""  # eager fills `out` if the number of elements fits, and else resizes it
                raise AutogradUnsupported(
                    "a range with an `out` tensor that is not one-dimensional", seen, "reshape the result"
                )
            if node.target in _QUANTILES:
                args, kwargs = _within_unit(node, [*args], dict(kwargs))
            if node.target is attention_arguments.TARGET:
                args, kwargs = attention_arguments.with_contiguous_mask(tuple(args), dict(kwargs))
            if node.target in _NEEDS_PYTHON_DISPATCHER:
                with torch._C._EnablePythonDispatcher():
                    return node.target(*args, **kwargs)
            if (op := functional_twins.writing(node.target)) is not None and not _differentiates((args, kwargs)):
                return self._written_by(node, op, args, kwargs)
            return node.target(*args, **kwargs)
        if node.op == "call_method":
            assert isinstance(node.target, str)
            if kwargs.get("generator") is not None and (op := _drawn_apart(node.target)) is not None:
                return args[0].copy_(op(args[0].detach(), *args[1:], **kwargs))
            if node.target in _QUANTILES:
                args, kwargs = _within_unit(node, [*args], dict(kwargs))
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        raise AutogradUnsupported(f"{node.op} in the graph", str(node.target), "lift modules and attributes to inputs")

    def _written_by(self, node: fx.Node, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of another library's operator that writes.  Its twin computes the new values, which are then
        written here."""
        _, _, places = functional_twins.with_written(op, args, kwargs, lambda t: t)
        given = [*chain.from_iterable(CallArguments(args, kwargs).places)]  # copies do not overlap as the originals do
        told = {id(t) for t in places}
        wrote, read = ([p for p in given if (id(p.tensor) in told) is which] for which in (True, False))
        refuse_overlap(node, wrote, read)
        if any(storage_of(t) in self.given and hint_of(t.numel()) > _LARGE for t in places):
            seen = node.format_node() or ""
            raise AutogradUnsupported(
                "an operator of another library writes a large input", seen, "the graph runs eagerly"
            )
        found = functional_twins.twin_of(op)(*args, **kwargs)
        found = [*found] if isinstance(found, (tuple, list)) else [found]
        count = len(op._schema.returns)
        for place, value in zip(places, found[count:], strict=True):
            place.copy_(value)
        return None if not count else found[0] if count == 1 else tuple(found[:count])


def _is_of_a_library(target: object) -> bool:
    if isinstance(target, OpOverloadPacket):
        return any(facts_of(getattr(target, name)).foreign for name in target.overloads())  # type: ignore[no-untyped-call]
    return facts_of(target).foreign


def _differentiates(given: Any) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(given))


def _within_unit(node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a quantile, with a check of the second one, whose values eager reads."""
    given: Any = args if len(args) > 1 else kwargs
    place: Any = 1 if len(args) > 1 else "q"
    q = given[place]
    if isinstance(q, torch.Tensor) and q.device.type == "cpu":
        if _differentiates(q):
            raise AutogradUnsupported(
                "a gradient with respect to q of a quantile", node.format_node() or "", "detach q"
            )
        given[place] = within(q, "quantile")
    return args, kwargs


def _one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    """Eager's kernel reads the least and the greatest class, then scatters, which checks each class."""
    if tensor.dtype is not torch.int64 or not isinstance(num_classes, int) or num_classes <= 0:
        return torch.nn.functional.one_hot(tensor, num_classes)
    rows = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return rows.scatter(-1, tensor.unsqueeze(-1), 1)


def _given(value: Any, env: Mapping[fx.Node, Any]) -> Any:
    """An argument of a node with the values of its nodes, in plain lists and dicts.

    The graph's own containers are immutable; functions that the graph calls may copy and change theirs.
    """
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, tuple):
        items = [_given(v, env) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_given(v, env) for v in value]
    if isinstance(value, dict):
        return {key: _given(v, env) for key, v in value.items()}
    if isinstance(value, slice):
        return slice(_given(value.start, env), _given(value.stop, env), _given(value.step, env))
    return value


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node → the nodes whose last reader it is (an unused node is its own last reader)."""
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


def _expands(t: torch.Tensor, *, last: bool = False) -> bool:
    """Whether a view on the way to a tensor (`last`: only the last view) is an expand; an expand without effect is not
    recorded."""
    if not torch._is_functional_tensor(t):
        return False
    steps = torch._C._functionalization.get_view_meta_sequence(t)
    return any(isinstance(step, _EXPANSION) for step in (steps[-1:] if last else steps))


def _not_expanded(out: torch.Tensor, given: Any) -> torch.Tensor:
    """`out`; for an expand that does not enlarge `given`, the same view without an expand.

    Functionalisation treats a write to an expanded tensor as a sum, which rounds, and gives NaN where the old value is infinite.
    """
    if not isinstance(given, torch.Tensor) or not _expands(out, last=True) or storage_of(out) != storage_of(given):
        return out
    more = out.dim() - given.dim()
    if out.shape[more:] != given.shape or any(n != 1 for n in out.shape[:more]):
        return out
    view = given if more else given.view(given.shape) if given.is_contiguous() else given.unsqueeze(0).squeeze(0)
    for _ in range(more):
        view = view.unsqueeze(0)
    return view if view.stride() == out.stride() and view.requires_grad == out.requires_grad else out


def _edge_of(t: torch.Tensor) -> Edge | None:
    """The position of a tensor in autograd's graph, or None without a history.

    Also None for a view written with gradients disabled: autograd raises for its history, so no code can use it.
    """
    try:
        return (t.grad_fn, t.output_nr) if t.requires_grad else None
    except RuntimeError:
        return None


@cache
def _drawn_apart(method: str) -> OpOverload | None:
    """The operator that draws what an in-place method draws, if functionalisation cannot call the method with a
    generator."""
    op = getattr(getattr(torch.ops.aten, method.removesuffix("_"), None), "default", None)
    return op if method.endswith("_") and op is not None and facts_of(op).draws_apart else None
