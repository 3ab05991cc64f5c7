"""The captured graph runs once, node by node, on functional wrappers: the recorder sees what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import fake_tensor

from pycompiler.autograd import attention
from pycompiler.autograd.policies import Policy
from pycompiler.autograd.recorder import Recorder, tensors_in
from pycompiler.autograd.trace.inputs import inner, storage_of
from pycompiler.autograd.trace.paths import Edge, Slices, is_of_a_list, nodes_in_order
from pycompiler.autograd.trace.writes import Given, Place, is_metadata, name_of, part_of, refuse_overlap
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir import functional, interrupts, late, transforms
from pycompiler.ir.checked import within
from pycompiler.ir.effects import SWITCHES, fails
from pycompiler.ir.kernels import counts_with, memory_of
from pycompiler.ir.strides import layouts
from pycompiler.ir.symbolic_node import taken_for_numbers
from pycompiler.ir.symbols import Specialise, hint_of

DATA_DEPENDENT = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)

_NEEDS_PYTHON_DISPATCHER = frozenset(
    # Their C++ composite kernels mutate running statistics through operators whose schemas do not say so.
    (torch.batch_norm, torch.nn.functional.batch_norm, torch.instance_norm, torch.nn.functional.instance_norm)
)


_DRAWN: dict[str, Any] = {  # functionalisation asks their shape functions in place, which refuse a generator
    f"{op.__name__}_": op
    for op in (torch.ops.aten.cauchy, torch.ops.aten.exponential, torch.ops.aten.geometric, torch.ops.aten.log_normal)
}
_AS_OUT = frozenset((torch.sum, torch.prod, torch.mean, torch.nansum, torch.nanmean))
"""What computes in the dtype of `out`, of which functionalisation makes a copy of the result in another one."""
_ALIASES = frozenset(("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"))
"""Operators whose results lie in the memory of their argument, which autograd and functionalisation do not know."""
_QUANTILES = frozenset((torch.quantile, torch.nanquantile, "quantile", "nanquantile"))
"""What looks at the numbers of its second argument, on the host."""
_RANGES = frozenset((torch.arange, torch.linspace, torch.logspace, torch.range))
_LARGE = 2**16
"""Elements: what is larger is not copied for an operator of another library that writes it."""
_RANDOM = frozenset(("normal", "uniform", "bernoulli", "exponential", "cauchy", "log_normal", "geometric", "random"))
"""Whose kernels draw otherwise into memory with gaps."""
_EXPANSION: Any = torch._C._functionalization.expand_ViewMeta  # type: ignore[attr-defined]


_creation = torch._C._autograd._get_creation_meta
_WITHOUT_GRAD = torch._C._autograd.CreationMeta.NO_GRAD_MODE


class Forward:
    """Runs `gm` and the graphs inside of it; `branches`: what is called for branches and loops (`Branches`)."""

    def __init__(
        self,
        gm: fx.GraphModule,
        recorder: Recorder,
        branches: Mapping[fx.Node, Callable[..., Any]],
        more: Sequence[fx.Node] = (),
    ) -> None:
        """`more`: nodes whose values are results, too."""
        self.gm = self.whole = gm
        self.more = more
        self.moved: Collection[fx.Node] = ()  # hooks that are registered on results, afterwards
        self.hooks: dict[fx.Node, Edge] = {}
        self.edges: dict[Edge, fx.Node] = {}  # of values of the whole graph, as they were made
        self.recorder = recorder
        self.branches = branches
        self.slices = Slices()
        self.given: set[int] = set()  # the memory of the inputs
        self.leaves: set[int] = set()  # of those among them that are leaves with gradients
        self.dying: Sequence[fx.Node] = ()  # what the node that runs reads last
        self.hooked: dict[Any, list[torch.Tensor]] = {}  # autograd's nodes that hooks hang on → what these read
        self.remade: dict[Any, set[int]] = {}  # autograd's nodes of checkpoints → the memory of these' results
        self.rebased: set[int] = set()  # memory of inputs that was written while there were views of it, with gradients
        self.displaced: set[int] = set()  # memory that lies otherwise than the program's, which has gaps, since a write

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What `self.gm` gives for these inputs."""
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
            if (names := taken_for_numbers(error)) is not None:
                raise Specialise(names, f"{name_of(node)} takes numbers only") from None
            # The user's error or a limit of tracing: in both cases eager does the right thing.
            seen = f"{node.format_node()}: {type(error).__name__}: {error}"
            refused = AutogradUnsupported("an operator cannot be traced", seen, "the graph runs eagerly")
            refused.user = node.meta.get("user", ())
            raise refused from error

    def _run_target(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":  # tensors are inputs (`lift_attributes`): a graph inside of this one
            return getattr(self.gm, str(node.target))
        args, kwargs = _given(node.args, env), _given(node.kwargs, env)
        if not node.meta.get("mutates", True):
            with self.slices.watch(node, ()) as saved:
                out = self._called(node, args, kwargs)
            self.slices.note_results(saved, out)
            return self._read(node, out, args, kwargs)
        given, into = Given(args, kwargs), part_of(node, args)
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

    def _note_views(self, node: fx.Node, wrote: Sequence[Place], env: Mapping[fx.Node, Any]) -> None:
        """Which memory of inputs had views when it was written: their histories begin anew at what they view; where that is a
        leaf, written where gradients are off, they have none in eager."""
        if not torch.is_grad_enabled():
            leaves = [p for p in wrote if p.storage in self.leaves]
            live = [t for n, v in env.items() if leaves and (n not in self.dying or node.users) for t in tensors_in(v)]
            views = [t for t in live if t._is_view() and t.requires_grad and _creation(t) != _WITHOUT_GRAD]
            if any(storage_of(t) == p.storage and counts_with(p.tensor, t) for t in views for p in leaves):
                raise AutogradUnsupported(
                    "a view of a leaf that is written", node.format_node() or "", "make it afterwards"
                )
            return
        if not any(p.tensor.requires_grad and p.storage in self.given for p in wrote):
            return
        written = {p.storage for p in wrote}
        views = [t for t in tensors_in([*env.values()]) if t._is_view() and t.layout is torch.strided]
        self.rebased |= written.intersection(map(storage_of, views))

    def _read(self, node: fx.Node, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives that wrote nothing."""
        if isinstance(out, torch.Tensor) and args:
            out = _not_expanded(out, args[0])
        if self.displaced:
            self._same_memory(node, out, (args, kwargs))
        self._hold(node, out, (args, kwargs))
        return out

    def _hold(self, node: fx.Node, out: Any, given: Any) -> None:
        """Fresh results lie as capture saw them lie, whatever their operators were made of: views by strides, reshapes and
        writes would show it.  (Another capture than ours tells how they lay at its end, which is as good where they stay.)"""
        expected = node.meta.get("strides") or layouts(node.meta.get("example_value"))
        results = list(tensors_in(out))
        if len(results) != len(expected) or all(t.stride() == s for t, s in zip(results, expected, strict=True)):
            return
        taken = {storage_of(t) for t in tensors_in(given)}
        for t, strides in zip(results, expected, strict=True):
            if t.layout is torch.strided and t.stride() != strides and storage_of(t) not in taken:
                self._keep_layout(t, strides)

    def _same_memory(self, node: fx.Node, out: Any, given: Any) -> None:
        """Whether a result is a view or a copy depends on how its argument lies (`reshape`); later writes show which."""
        taken = {storage_of(t) for t in tensors_in(given)}
        if self.displaced.isdisjoint(taken):
            return
        if _is_of_a_library(node.target):  # it may look at how its arguments lie
            self._refuse_displaced(node)
        theirs = {memory_of(t) for a in node.all_input_nodes for t in tensors_in(a.meta.get("example_value"))}
        for t, seen in zip(tensors_in(out), tensors_in(node.meta.get("example_value")), strict=False):
            if (storage_of(t) in taken) != (memory_of(seen) in theirs) or "as_strided" in str(node.target):
                self._refuse_displaced(node)

    @staticmethod
    def _refuse_displaced(node: fx.Node) -> None:
        what = "a use of an input with gaps that was written"
        raise AutogradUnsupported(what, node.format_node() or "", "the graph runs eagerly")

    def _keep_layout(self, written: torch.Tensor, strides: tuple[int, ...]) -> None:
        """A write leaves a tensor where it lies; functionalisation gives it, and what it views, the layout of the new
        value, which views by strides, reshapes and results would show."""
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
        """Whether the operator that made `value` may give a dimension of one element another stride than its fake has."""
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
        """The body, in this graph: what it records is computed again in the backward (`partition.py`), but for what the
        policy of the outermost checkpoint saves."""
        outer, source = (self.gm, self.recorder.region), self.recorder.source
        policy = Policy(target.context_fn) if isinstance(target, transforms.Selective) and outer[1] is None else None
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
            raise AutogradUnsupported("views that are taken for copies", node.format_node() or "", "clone the pieces")
        if node.op == "call_function":
            assert callable(node.target)
            if transforms.is_checkpoint(node.target):
                return self._checkpoint(node.target, *args)
            if node in self.branches:
                return self.branches[node](*args[3:])
            if node.target in SWITCHES:
                raise AutogradUnsupported("kernels become others within the graph", str(node), "set it outside")
            if node.target is transforms.hooked:
                if node in self.moved:
                    return None
                if self.gm is self.whole:
                    self.hooks[node] = args[1].grad_fn, args[1].output_nr
                self.hooked.setdefault(args[1].grad_fn, []).extend(tensors_in(args[2:]))
            if isinstance(node.target, late.Check):
                return self.recorder.check(node.target, args)
            if node.target is torch.nn.functional.one_hot:
                return _one_hot(*args, **kwargs)
            if node.target in _AS_OUT and kwargs.get("out") is not None and kwargs.get("dtype") is None:
                kwargs = {**kwargs, "dtype": kwargs["out"].dtype}
            if node.target in _RANGES and kwargs.get("out") is not None and kwargs["out"].dim() != 1:
                seen = node.format_node() or ""  # eager fills it where it has as many elements, and else resizes it
                raise AutogradUnsupported("a range into what has other dimensions", seen, "reshape it afterwards")
            if node.target in _QUANTILES:
                args, kwargs = _within_unit(node, [*args], dict(kwargs))
            if node.target is attention.TARGET:
                args, kwargs = attention.prepared(tuple(args), dict(kwargs))
            if node.target in _NEEDS_PYTHON_DISPATCHER:
                with torch._C._EnablePythonDispatcher():
                    return node.target(*args, **kwargs)
            if (op := functional.writing(node.target)) is not None and not _differentiates((args, kwargs)):
                return self._written_by(node, op, args, kwargs)
            return node.target(*args, **kwargs)
        if node.op == "call_method":
            assert isinstance(node.target, str)
            if node.target in _DRAWN and kwargs.get("generator") is not None:
                return args[0].copy_(_DRAWN[node.target](args[0].detach(), *args[1:], **kwargs))
            if node.target in _QUANTILES:
                args, kwargs = _within_unit(node, [*args], dict(kwargs))
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        raise AutogradUnsupported(f"{node.op} in the graph", str(node.target), "lift modules and attributes to inputs")

    def _written_by(self, node: fx.Node, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator of another library gives.  It computes what it would write, which is written here."""
        _, _, places = functional.with_written(op, args, kwargs, lambda t: t)
        given = [*chain.from_iterable(Given(args, kwargs).places)]  # copies do not share what these share
        told = {id(t) for t in places}
        wrote, read = ([p for p in given if (id(p.tensor) in told) is which] for which in (True, False))
        refuse_overlap(node, wrote, read)
        if any(storage_of(t) in self.given and hint_of(t.numel()) > _LARGE for t in places):
            seen = node.format_node() or ""
            raise AutogradUnsupported("a large input that an operator writes", seen, "the graph runs eagerly")
        found = functional.twin_of(op)(*args, **kwargs)
        found = [*found] if isinstance(found, (tuple, list)) else [found]
        count = len(op._schema.returns)
        for place, value in zip(places, found[count:], strict=True):
            place.copy_(value)
        return None if not count else found[0] if count == 1 else tuple(found[:count])


def _is_of_a_library(target: object) -> bool:
    if isinstance(target, OpOverloadPacket):
        return any(fails(getattr(target, name)) for name in target.overloads())  # type: ignore[no-untyped-call]
    return fails(target)


def _differentiates(given: Any) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(given))


def _within_unit(node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a quantile, of which eager's function looks at the second one."""
    given: Any = args if len(args) > 1 else kwargs
    place: Any = 1 if len(args) > 1 else "q"
    q = given[place]
    if isinstance(q, torch.Tensor) and q.device.type == "cpu":
        if _differentiates(q):
            raise AutogradUnsupported("gradients by the place of a quantile", node.format_node() or "", "detach it")
        given[place] = within(q, "quantile")
    return args, kwargs


def _one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    """Eager's kernel reads the least and the largest class, then scatters, which looks at each."""
    if tensor.dtype is not torch.int64 or not isinstance(num_classes, int) or num_classes <= 0:
        return torch.nn.functional.one_hot(tensor, num_classes)
    rows = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return rows.scatter(-1, tensor.unsqueeze(-1), 1)


def _given(value: Any, env: Mapping[fx.Node, Any]) -> Any:
    """An argument of a node with what its nodes have given, in lists and dicts as the program had them: those of a graph refuse
    to be changed, and functions that the graph calls may copy and change them."""
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


def _expands(t: torch.Tensor, *, last: bool = False) -> bool:
    """Whether a view that leads to a tensor (`last`: the last one) expands another; one that stays as it is is not recorded."""
    if not torch._is_functional_tensor(t):
        return False
    steps = torch._C._functionalization.get_view_meta_sequence(t)
    return any(isinstance(step, _EXPANSION) for step in (steps[-1:] if last else steps))


def _not_expanded(out: torch.Tensor, given: Any) -> torch.Tensor:
    """An expanded tensor that is no larger as another view of it: to functionalisation a write to an expanded one is a sum,
    which rounds, and which is no number where the old value is infinite."""
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
    """Where autograd has a tensor; None for what has no history, and for a view that was written where gradients are off, whose
    history autograd refuses to tell: nobody can ask for it."""
    try:
        return (t.grad_fn, t.output_nr) if t.requires_grad else None
    except RuntimeError:
        return None
