"""Results of a trace: the graph's fresh outputs, and how to build the caller's results from them and from the inputs.

In: the results of the captured graph in the trace, and the inputs.  Out: `Joint.fresh` and `Joint.outputs`.

Example: ``y = x @ w; y.relu_(); return y, y[0]`` has the fresh output ``relu(x @ w)``.  The second output is a view of
it, which the runtime rebuilds, so that it aliases the first one as in eager.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.autograd.function import BackwardCFunction

from pycompiler.autograd.joint import Joint, Output
from pycompiler.autograd.recorder import Recorder, is_dense, same_places, unrecorded_fakes
from pycompiler.autograd.trace.gradient_paths import Edge
from pycompiler.autograd.trace.inputs import TracedInput, inner, storage_of
from pycompiler.autograd.trace.split_views import share_calls
from pycompiler.autograd.trace.writes import may_overlap
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import (
    ViewStep,
    as_a_functions,
    as_one_of_several,
    as_without_grad,
    base_of,
    data_of,
    strided_step,
    under_grad,
    under_no_grad,
    view_root,
    view_steps,
)
from pycompiler.operators.kernel_type_checks import shares_version
from pycompiler.symbolic.number_nodes import symbols_in
from pycompiler.symbolic.symbols import hint_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Base:
    """The base of results that are views: input, fresh output or result `index`.

    `tensor`: the base in the trace; `seen`: in the captured graph; `lies`: with the caller's layout.
    behind: the base is the tensor that result `index` itself views.
    """

    tensor: torch.Tensor
    lies: torch.Tensor
    seen: Any
    index: int
    of_input: bool = False
    of_result: bool = False
    behind: bool = False

    def step(self, result: Any) -> ViewStep | None:
        """The view in the captured graph as one `as_strided`; None if there is no such view, or if it also changes elements."""
        seen = self.seen
        if not (isinstance(result, torch.Tensor) and isinstance(seen, torch.Tensor)):
            return None
        if storage_of(seen) != storage_of(result):
            return None
        if (seen.dtype, seen.is_conj(), seen.is_neg()) != (result.dtype, result.is_conj(), result.is_neg()):
            return None
        return strided_step(result, seen)

    def leads(self, steps: Sequence[ViewStep], seen: ViewStep) -> bool:
        """Whether `steps` build the same view of the caller's base as `seen`."""
        made = self.lies
        for step in steps:
            made = step(made)
        offset = made.storage_offset() - self.lies.storage_offset()
        return [list(made.shape), list(made.stride()), offset] == [*seen.args, seen.kwargs["offset"]]


class TraceResults:
    """The results of one trace.

    `fresh_tensors`: the tensors of ``joint.fresh``; `expected`: each result in the captured graph; `hooked`: autograd
    nodes with hooks.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        recorder: Recorder,
        joint: Joint,
        inputs: Sequence[TracedInput | None],
        hooked: Container[Any],
    ) -> None:
        self.recorder = recorder
        self.hooked = hooked
        self.joint = joint
        self.inputs = inputs
        self.input_of_storage = {storage_of(x.seen): i for i, x in enumerate(inputs) if x is not None}
        self.fresh_tensors: list[torch.Tensor] = []
        self.bases: dict[int, torch.Tensor] = {}  # the bases of results, with the caller's layouts
        outputs: Any = gm.graph.output_node().args[0]  # one node may stand for several results
        nodes = enumerate((*outputs, *joint.more) if isinstance(outputs, (tuple, list)) else ())
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.expected = {k: n.meta.get("example_value") for k, n in nodes if isinstance(n, fx.Node)}

    def fresh(self, t: torch.Tensor, origin: tuple[str, int], differentiable: bool = True) -> int:
        """Index of the graph output that holds `t`; gradients flow into it if `t` requires them."""
        self.joint.origins.append(origin)
        node = self.recorder.node(inner(t))
        if is_lazy(node.meta["val"]):
            node = self._made(aten.clone.default, node)
        seen = self._seen(origin)
        if _holds_more(node, seen):
            node = self._made(aten.clone.default, node)
        self.joint.fresh.append(self._laid_out(node, seen))
        self.joint.differentiable.append(differentiable and t.requires_grad)
        self.fresh_tensors.append(t)
        return len(self.joint.fresh) - 1

    def _seen(self, origin: tuple[str, int]) -> Any:
        """The tensor of the captured graph for a fresh output, if known."""
        kind, k = origin
        expected = None if kind == "input" else self.expected.get(k)
        return getattr(expected, "_base", None) if kind == "base" else expected

    def _laid_out(self, node: fx.Node, expected: Any) -> fx.Node:
        """`node` with the strides in the captured graph: a result has eager's strides, whatever its decomposition returns."""
        value = node.meta["val"]
        if not isinstance(expected, torch.Tensor) or value.stride() == expected.stride():
            return node
        if value.shape != expected.shape:
            return node
        shape, stride = list(expected.shape), list(expected.stride())
        if not is_dense(expected) and not same_places(value, expected):
            return node if may_overlap(expected) else self._with_gaps(node, shape, stride)
        if not same_places(value, expected):
            order = sorted(range(len(shape)), key=lambda d: -hint_of(stride[d]))
            node = self._made(aten.permute.default, node, order)
            node = self._made(aten.clone.default, node, memory_format=torch.contiguous_format)
            node = self._made(aten.permute.default, node, [order.index(d) for d in range(len(shape))])
        if node.meta["val"].stride() != expected.stride():
            node = self._made(aten.as_strided.default, node, shape, stride)
        return node

    def _with_gaps(self, node: fx.Node, shape: list[int], stride: list[int]) -> fx.Node:
        """A copy that spans more memory than its elements, as copies that keep strides do (`slice_scatter`)."""
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        memory = self._made(aten.new_zeros.default, node, [span])
        memory = self._made(aten.as_strided_scatter.default, memory, node, shape, stride)
        return self._made(aten.as_strided.default, memory, shape, stride)

    def _made(self, op: OpOverload, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        made = self.recorder.graph.call_function(op, (node, *self.recorder.numbers.arguments(args)), kwargs)
        with unrecorded_fakes(self.recorder.fake_mode):
            vals = [a.meta["val"] if isinstance(a, fx.Node) else a for a in (node, *args)]
            made.meta.update(node.meta, val=op(*vals, **kwargs))
        return made

    def find(self, results: tuple[Any, ...]) -> None:
        """Set ``joint.outputs``: how to build each result of the captured graph."""
        self.tensors = results
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
                groups.setdefault(storage_of(t), []).append(k)
                outputs.append(None)
        for storage, members in groups.items():
            for k, out in zip(members, self._group(storage, {k: results[k] for k in members}), strict=True):
                outputs[k] = out
        with unrecorded_fakes(self.recorder.fake_mode):
            self.joint.outputs = share_calls([o for o in outputs if o is not None], self.bases)

    def _group(self, storage: int, members: dict[int, torch.Tensor]) -> list[Output]:
        """Outputs (by index) that share one storage: views of an input, or of one fresh output."""
        tensors = list(members.values())
        for t in tensors:
            if t.requires_grad and t.is_leaf:
                raise AutogradUnsupported(
                    "the graph creates a leaf tensor",
                    "requires_grad_() on an intermediate",
                    "create it outside of the graph",
                )
        i = self.input_of_storage.get(storage)
        if i is not None:
            item = self.inputs[i]
            assert item is not None
            seen = self.placeholders[i].meta.get("example_value")
            place = Base(item.seen, item.example, seen, i, of_input=True)
            return [self._view(k, t, self._nearest(k, members, place)) for k, t in members.items()]
        if len(tensors) == 1 and not is_lazy(tensors[0]):
            return [self._alone(k, t) for k, t in members.items()]
        base, origin = next(
            ((t, ("result", k)) for k, t in members.items() if not t._is_view() and self._owns(t)), (None, ("", -1))
        )
        if base is None:
            k = next((k for k, t in members.items() if t._base is not None), next(iter(members)))
            base, origin = (
                (members[k]._base, ("base", k)) if members[k]._base is not None else (members[k], ("result", k))
            )
            assert base is not None
        if not self._owns(base):
            raise AutogradUnsupported(
                "outputs are views of memory that no tensor of the graph owns",
                str(tuple(base.shape)),
                "clone one of them",
            )
        if is_lazy(base):
            base, origin = self._resolved(base), ("", -1)
        index = self.fresh(base, origin)
        place = Base(base, self.joint.fresh[index].meta["val"], self._seen(origin), index)
        return [
            Output("fresh", index) if t is base else self._view(k, t, self._nearest(k, members, place))
            for k, t in members.items()
        ]

    def _owns(self, t: torch.Tensor) -> bool:
        """Whether a tensor covers all of its memory.  A tensor without a base in autograd may be a detached piece."""
        node = self.recorder.node(inner(t))
        return view_root(node) is node

    def _nearest(self, k: int, members: Mapping[int, torch.Tensor], base: Base) -> Base:
        """The base of result `k` for autograd: another result, through which its gradient passes, or `base`."""
        edges = {(t.grad_fn, t.output_nr): j for j, t in members.items() if t.requires_grad and t is not base.tensor}
        for edge in _views_behind(members[k], base.tensor):
            seen = self.expected.get(j) if (j := edges.get(edge, k)) != k else None
            if isinstance(seen, torch.Tensor):
                return Base(members[j], seen, seen, j, of_result=True)
        return self._beside(k, members, base) or base

    def _beside(self, k: int, members: Mapping[int, torch.Tensor], base: Base) -> Base | None:
        """Another result that shares with `k` a property that `base` does not share.

        The property is autograd's base of both views, or a version counter.  The first such result is built from
        `base`, and leads to the others.
        """
        t, root = members[k], _root(members[k])
        if t.requires_grad or root is _root(base.tensor):
            return None
        roots = {j: _root(m) for j, m in members.items() if m is not base.tensor and not m.requires_grad}
        alike = [j for j, r in roots.items() if r is root]
        first = next((j for j in alike if members[j] is root), alike[0])
        if k == first:
            if shares_version(root, base.tensor):
                return None
            counted = (j for j, r in roots.items() if r is not _root(base.tensor) and shares_version(r, root))
            other = next(counted)
            if roots[other] is root:
                return None
            root, first = roots[other], next((j for j in roots if members[j] is roots[other]), other)
        seen = self.expected.get(first)
        behind = members[first] is not root
        seen = getattr(seen, "_base", None) if behind else seen
        return Base(root, seen, seen, first, of_result=True, behind=behind) if isinstance(seen, torch.Tensor) else None

    def _alone(self, k: int, t: torch.Tensor) -> Output:
        """Result `k`, which is `t`, whose memory no other result shares."""
        index = self.fresh(t, ("result", k))
        # Without a history, in memory of its own: a mark would cost more than the graph (docs/known_differences.md).
        if t.requires_grad and t._is_view() and (marks := _MARKS.get(_creation(t))) is not None:
            return Output("view", index, steps=(_ALIAS, ViewStep(marks, (), {})))
        return Output("fresh", index)

    @staticmethod
    def _resolved(t: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor with a conjugate or negative bit and without a known base."""
        if t.requires_grad:
            raise AutogradUnsupported(
                "an output is a conjugated or negated view of unknown memory",
                str(t.dtype),
                "call resolve_conj() or resolve_neg()",
            )
        t = t.conj() if t.is_conj() else t
        return t._neg_view() if t.is_neg() else t

    def _view(self, k: int, t: torch.Tensor, place: Base) -> Output:
        """Result `k`, which is `t`, as a view of another tensor."""
        base, index = place.tensor, place.index
        if t.requires_grad and not (base.requires_grad and t._base is (base if base._base is None else base._base)):
            raise AutogradUnsupported(
                "an output requires grad, and the tensor that it views does not",
                f"a detached alias of {'input' if place.of_input else 'output'} {index} was mutated under grad",
                "clone it before the write",
            )
        if t.requires_grad and not self._is_plain_view(t, base):
            raise AutogradUnsupported(
                "an output is a view with a gradient of its own",
                "a hook, or an autograd Function that returns a view",
                "clone it",
            )
        self.bases[k] = place.lies
        value, base_value = inner(t), inner(base)
        steps = view_steps(self.recorder.node(value), self.recorder.node(base_value))
        seen = place.step(self.expected.get(k))
        if steps is None:
            seen = seen or strided_step(value, base_value)
            if seen is None:
                raise AutogradUnsupported("an output aliases another value in another dtype", str(t.dtype), "clone it")
            steps = [seen, *(step for lazy, step in _LAZY.items() if lazy(t) != lazy(base))]
        elif seen is not None:
            with unrecorded_fakes(self.recorder.fake_mode):
                steps = steps if place.leads(steps, seen) else [seen]
        apart = t._is_view() and t._base is not _root(base)
        made = self._cut_off(t, base) if apart else with_history(steps, t, base)
        if place.behind:
            made = [_BASE, *made]
        bound = {n for n, node in self.recorder.numbers.symbols.items() if "bound" in node.meta}
        if late := bound & _symbols_of(
            made
        ):  # the view is built outside of the graph, where the graph's unbacked symbols are unknown
            names = ", ".join(sorted(late))
            raise AutogradUnsupported("an output is a view whose size depends on data", names, "clone it")
        return Output("view", index, place.of_input, place.of_result, tuple(made))

    def _cut_off(self, t: torch.Tensor, base: torch.Tensor) -> list[ViewStep]:
        """The steps to a view of a detached alias, which aliases `base` or a view of it.

        They are the steps to the alias, then the steps behind it.
        """
        root = t._base
        assert root is not None
        nodes = [self.recorder.node(inner(v)) for v in (base, root, t)]
        before, behind = view_steps(nodes[1], nodes[0]), view_steps(nodes[2], nodes[1])
        if before is None or behind is None:
            raise AutogradUnsupported("an output is a view of a detached alias", str(tuple(t.shape)), "clone it")
        return [*before, *with_history([], root, base), *with_history(behind, t, root)]

    def _is_plain_view(self, t: torch.Tensor, base: torch.Tensor) -> bool:
        """Whether only autograd's own views lie between `base` and `t`: no hook, no Function of the program."""
        for node, number in _views_behind(t, base):
            if (node, number) == (base.grad_fn, base.output_nr) or getattr(node, "variable", None) is base:
                return True
            if node is None or node in self.hooked or isinstance(node, BackwardCFunction):
                return False
        return False

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all fresh outputs except these."""
        self.fresh_tensors = [self.fresh_tensors[i] for i in indices]

    def own_storage(self) -> None:
        """Give each fresh output memory of its own: clone (views of) inputs, constants and other outputs.

        The new value of an input may be another input, which is copied after the graph has run.  Excluded are an input
        that is written by then, and one that autograd would treat as the result's base.
        """
        taken: set[fx.Node] = set()
        written = {self.joint.inputs[i] for i in self.joint.written}
        for k, node in enumerate(self.joint.fresh):
            root, val = view_root(node), node.meta["val"]
            is_new_value = (
                k < len(self.joint.mutations) and self.joint.mutations[k].how != "grad" and root not in written
            )
            if root in taken:
                self.joint.fresh[k] = self._laid_out(self._copied(node, root), val)
            elif root.op in ("placeholder", "get_attr") and not is_new_value:
                self.joint.fresh[k] = self._laid_out(self._copied(node, node if is_dense(val) else root), val)
            taken.add(view_root(self.joint.fresh[k]))

    def _copied(self, node: fx.Node, root: fx.Node) -> fx.Node:
        """The value of `node` rebuilt, through the same views, from a copy of `root`."""
        graph = self.recorder.graph
        if node is root:
            copy = graph.call_function(aten.clone.default, (node,), {})
            with unrecorded_fakes(self.recorder.fake_mode):
                value = node.meta["val"].clone()
        else:
            parent = node.args[0]
            assert isinstance(parent, fx.Node)
            args = (self._copied(parent, root), *node.args[1:])
            copy = graph.call_function(node.target, args, dict(node.kwargs))  # type: ignore[arg-type]
            with unrecorded_fakes(self.recorder.fake_mode):
                vals = fx.map_arg((args, dict(node.kwargs)), lambda n: n.meta["val"])
                value = node.target(*vals[0], **vals[1])  # type: ignore[operator]
        copy.meta.update(node.meta, val=value)
        return copy


def _holds_more(node: fx.Node, seen: Any) -> bool:
    """Whether a value is a piece of a larger value, while the captured tensor covers all of its memory.

    In a functional graph, a copy of a piece is the piece itself, which would keep the rest alive.
    """
    root = view_root(node)
    if root is node or not isinstance(seen, torch.Tensor) or isinstance(root.meta["val"], (tuple, list)):
        return False
    size, own = hint_of(seen.numel()), hint_of(seen.untyped_storage().nbytes())
    return bool(own == size * seen.itemsize and size < hint_of(root.meta["val"].numel()))


def _views_behind(t: torch.Tensor, base: torch.Tensor) -> Iterator[Edge]:
    """The edges of autograd's graph from `t` to `base`, as long as there is a single way."""
    followers: list[Edge] = [(t.grad_fn, t.output_nr)]
    while len(followers) == 1:
        edge = followers[0]
        yield edge
        if edge == (base.grad_fn, base.output_nr):
            return
        followers = [f for f in getattr(edge[0], "next_functions", ()) if f[0] is not None]


def _symbols_of(steps: Sequence[Any]) -> set[str]:
    inner_steps = [s for step in steps for s in step.args if isinstance(s, ViewStep)]
    own = symbols_in([(step.args, tuple(dict(step.kwargs).values())) for step in steps])
    return own | _symbols_of(inner_steps) if inner_steps else own


_DETACH = ViewStep(aten.detach.default, (), {})
_ALIAS = ViewStep(aten.alias.default, (), {})
_DATA = ViewStep(data_of, (), {})
_BASE = ViewStep(base_of, (), {})


def _root(t: torch.Tensor) -> torch.Tensor:
    """The tensor that `t` views for autograd, or `t` itself."""
    return t if t._base is None else t._base


def with_history(steps: list[ViewStep], t: torch.Tensor, base: torch.Tensor) -> list[ViewStep]:
    """`steps`, which build `t` from `base`, adjusted so that autograd treats the result as a view of the same tensor as `t`.

    If `t` is not a view, the result must not be one either.
    """
    ends = _DETACH if shares_version(t, base) else _DATA
    if not t._is_view():
        return [*steps, ends]
    steps = steps or [_ALIAS]
    if base.requires_grad and not t.requires_grad:
        return [ViewStep(under_no_grad, (s,), {}) for s in steps]
    creation = _creation(t)
    if creation in (_PLAIN, _WITHOUT_GRAD):  # the grad mode at run time equals the current one
        if (creation == _PLAIN) == torch.is_grad_enabled():
            return steps
        if creation == _PLAIN:
            return [ViewStep(under_grad, (s,), {}) for s in steps]
    return [*steps, ViewStep(_MARKS[creation], (), {})]


_creation = torch._C._autograd._get_creation_meta
_PLAIN = torch._C._autograd.CreationMeta.DEFAULT
_WITHOUT_GRAD = torch._C._autograd.CreationMeta.NO_GRAD_MODE
_MARKS = {
    torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE: as_one_of_several,
    torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION: as_a_functions,
    torch._C._autograd.CreationMeta.INFERENCE_MODE: as_without_grad,
    _WITHOUT_GRAD: as_without_grad,
}


def is_lazy(t: torch.Tensor) -> bool:
    """Whether reading `t` conjugates or negates the contents of its memory; no compiled graph returns such a tensor."""
    return t.is_conj() or t.is_neg()


_LAZY = {
    torch.is_conj: ViewStep(aten._conj.default, (), {}),
    torch.is_neg: ViewStep(aten._neg_view.default, (), {}),
}
