"""Branches and loops on a tensor's value (`torch.cond`, `while_loop`) in ATen graphs: operators that run compiled graphs.

In: a captured graph with calls of `transforms.cond` and `transforms.while_loop`.  Out: for each such node a function of
its tensors, for the trace.  Example: in ATen graphs it is ``pycompiler.branch(pred, tensors, number)`` or
``pycompiler.loop(carried, others, number)``, whose `number` names a `Choice`.

Both sides are graphs of their own, forward and backward; the backward of a side computes its forward again, so that the
operator keeps what it was given and nothing else. A loop's sides are its test and its body; it has no backward.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.autograd.joint import Joint, Output
from pycompiler.autograd.partition import ancestors, forward_only, graph_module
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import view_root
from pycompiler.ir import transforms
from pycompiler.ir.effects import acts, draws
from pycompiler.ir.numbers import symbols_in
from pycompiler.ir.symbols import Specialise
from pycompiler.ir.watch import artefact

aten = torch.ops.aten

Side = Callable[..., Sequence[torch.Tensor]]
Tracer = Callable[[fx.GraphModule, Sequence[Any]], Joint]
Compiler = Callable[[fx.GraphModule, list[Any]], Side]
Traced = Callable[..., tuple[torch.Tensor, ...]]


class Choice:
    """Two compiled graphs of the same inputs; `like` is the metadata of the results, of a loop those of its body.

    Graphs name it by a number that no other process has. It lives as long as the function that was compiled with it.
    """

    def __init__(self, sides: tuple[Side, Side], like: Sequence[torch.Tensor]) -> None:
        self.sides = sides
        self.like = [(tuple(t.shape), t.stride(), t.dtype) for t in like]
        self.number = secrets.randbits(62)
        _ALIVE[self.number] = self

    def __call__(self, pred: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(self.sides[not pred](*tensors))

    def loop(self, carried: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
        test, body = self.sides
        if not test(*carried, *others)[0]:
            return [t.clone() for t in carried]
        while True:
            carried = list(body(*carried, *others))
            if not test(*carried, *others)[0]:
                return carried


def choice_of(number: int, sides: tuple[Side, Side], like: list[Any]) -> Choice:
    """The choice of that number, which another process has made, or this one."""
    made = _ALIVE.get(number)
    if made is None:
        made = object.__new__(Choice)
        made.sides, made.like, made.number = sides, like, number
        made = _ALIVE.setdefault(number, made)
    return made


_ALIVE: weakref.WeakValueDictionary[int, Choice] = weakref.WeakValueDictionary()


def _chosen(number: int) -> Choice:
    choice = _ALIVE.get(number)
    if choice is None:
        raise RuntimeError(
            "this graph has a branch on a tensor's value, which only the process that compiled it can run"
        )
    return choice


def _run(pred: torch.Tensor, tensors: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    return _chosen(number)(pred, tensors)


def _loop(carried: list[torch.Tensor], others: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    return _chosen(number).loop(carried, others)


def _shapes(_: Any, tensors: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    like = _chosen(number).like
    return [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in like]


_LIBRARY = torch.library.Library("pycompiler", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("branch(Tensor pred, Tensor[] tensors, int number) -> Tensor[]")  # type: ignore[no-untyped-call]
_LIBRARY.define("loop(Tensor[] carried, Tensor[] others, int number) -> Tensor[]")  # type: ignore[no-untyped-call]
for _name, _kernel in (("branch", _run), ("loop", _loop)):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _key)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(_name, _shapes, "Meta")  # type: ignore[no-untyped-call]
branch = torch.ops.pycompiler.branch.default
loop = torch.ops.pycompiler.loop.default


class _Differentiable(torch.autograd.Function):
    """One choice in the forward, another in the backward; `kinds` says which results have gradients."""

    @staticmethod
    def forward(ctx: Any, forth: Choice, back: Choice, kinds: Sequence[bool], pred: Any, *tensors: Any) -> Any:
        results = branch(pred, list(tensors), forth.number)
        ctx.save_for_backward(pred, *tensors)
        ctx.back, ctx.kinds = back, kinds
        ctx.mark_non_differentiable(*(r for r, k in zip(results, kinds, strict=True) if not k))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        pred, *tensors = ctx.saved_tensors
        tangents = [g.contiguous() for g, k in zip(grads, ctx.kinds, strict=True) if k]
        made = iter(branch(pred, [*tensors, *tangents], ctx.back.number))
        return None, None, None, None, *(next(made) if needed else None for needed in ctx.needs_input_grad[4:])


class Branches:
    """The branches of a captured graph, compiled: node → what the trace calls instead."""

    def __init__(self, mode: FakeTensorMode, trace: Callable[..., Joint], compiler: Compiler) -> None:
        self.mode, self.trace, self.compiler = mode, trace, compiler
        self.calls: dict[fx.Node, Traced] = {}
        self.choices: list[Choice] = []

    def prepare(self, gm: fx.GraphModule) -> None:
        """Compile every branch of `gm`, those in its branches and checkpoints first."""
        for node in gm.graph.nodes:
            compiled = self.KINDS.get(node.target)  # type: ignore[arg-type]
            if node.op == "call_function" and (compiled or transforms.is_checkpoint(node.target)):
                bodies = [getattr(gm, str(a.target)) for a in node.args if _is_body(a)]
                for body in bodies:
                    self.prepare(body)
                if compiled is not None:
                    self.calls[node] = compiled(self, node, bodies)
        if self.calls and any(
            str(getattr(n.target, "__name__", "")).startswith("set_autocast") for n in gm.graph.nodes
        ):
            raise AutogradUnsupported("autocast around a branch", "autocast changes", "the graph runs eagerly")

    def _branch(self, node: fx.Node, bodies: list[fx.GraphModule]) -> Traced:
        given: Any = node.args
        _, _, kinds, pred, *operands = given
        results = node.meta["example_value"]
        _refuse_symbols(operands, results, "a branch on a tensor's value")
        examples = [self._leaf(n.meta["example_value"]) for n in operands]
        wanted = [i for i, e in enumerate(examples) if e.requires_grad and any(kinds) and torch.is_grad_enabled()]
        devices = {t.device for t in (pred.meta["example_value"], *examples, *results)}
        if len(devices) > 1 or (
            wanted and not all(r.is_contiguous() for r, k in zip(results, kinds, strict=True) if k)
        ):
            raise AutogradUnsupported("a branch on several devices, or with transposed results", str(node), "none")
        with torch.no_grad():
            plain = [self._joint(body, [e.detach() for e in examples]) for body in bodies]
        forth = self._choice([forward_only(joint) for joint in plain], [results, results])
        strides = [e.stride() for e in examples]
        if not wanted:
            return lambda pred, *tensors: tuple(branch(pred, _as_seen(tensors, strides), forth.number))
        joints = [self._joint(body, examples) for body in bodies]
        modules = [_backward(joint, kinds, wanted) for joint in joints]
        made = [n.meta["val"] for n in modules[0].graph.output_node().args[0]]  # type: ignore[union-attr]
        back = self._choice(modules, [made, made])
        return lambda pred, *tensors: _Differentiable.apply(  # type: ignore[no-any-return, no-untyped-call]
            forth, back, kinds, pred, *_as_seen(tensors, strides)
        )

    def _loop(self, node: fx.Node, bodies: list[fx.GraphModule]) -> Traced:
        given: Any = node.args
        _, _, count, *operands = given
        results = node.meta["example_value"]
        _refuse_symbols(operands, results, "a loop on a tensor's value")
        with torch.no_grad():
            examples = [self._leaf(n.meta["example_value"]).detach() for n in operands]
            if len({t.device for t in (*examples, *results)}) > 1:
                raise AutogradUnsupported("a loop on several devices", str(node), "none")
            joints = [self._joint(body, examples) for body in bodies]
        test = [n.meta["val"] for n in joints[0].fresh]
        choice = self._choice([forward_only(joint) for joint in joints], [test, results])
        strides = [e.stride() for e in examples]

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen = [t.detach() for t in _as_seen(tensors, strides)]
            return tuple(loop(seen[:count], seen[count:], choice.number))

        return run

    KINDS: ClassVar[dict[Any, Callable[[Branches, fx.Node, list[fx.GraphModule]], Traced]]] = {
        transforms.cond: _branch,
        transforms.while_loop: _loop,
    }
    """What is called with the tensors of such a node: its arguments but for the first three."""

    def _leaf(self, example: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), self.mode:
            leaf = example.detach()
        return leaf.requires_grad_(example.requires_grad)

    def _joint(self, body: fx.GraphModule, examples: Sequence[torch.Tensor]) -> Joint:
        joint = self.trace(body, examples, self)
        if any(draws(n.target) or acts(n.target) for n in joint.graph.nodes if n.op == "call_function"):
            raise AutogradUnsupported("a branch draws random numbers, or acts", body.print_readable(False), "none")
        if joint.mutations or joint.touched or joint.outputs != [Output("fresh", k) for k in range(len(joint.fresh))]:
            raise AutogradUnsupported("a branch writes, or returns views", body.print_readable(False), "clone them")
        return joint

    def _choice(self, modules: list[fx.GraphModule], likes: Sequence[Sequence[Any]]) -> Choice:
        """`likes`: of each module what its results are like."""
        sides = []
        for module, like in zip(modules, likes, strict=True):
            made = [n.meta["val"] for n in module.graph.output_node().args[0]]  # type: ignore[union-attr]
            if [_layout(t) for t in made] != [_layout(t) for t in like]:
                raise AutogradUnsupported("branches whose results lie otherwise", str(module.graph), "none")
            sides.append(self.compiler(module, [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]))
        choice = Choice((sides[0], sides[1]), likes[1])
        artefact("branch", (choice.number, modules, choice.like))
        self.choices.append(choice)
        return choice


def _is_body(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("example_value"), fx.GraphModule)


def _refuse_symbols(operands: Sequence[fx.Node], results: Sequence[torch.Tensor], what: str) -> None:
    """A side is compiled for sizes and numbers that are known."""
    if found := symbols_in([*(n.meta["example_value"] for n in operands), *results]):
        raise Specialise(sorted(found), what)


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return tuple(t.shape), t.stride(), t.dtype, t.device


def _as_seen(tensors: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """The tensors, if they lie as they did when the sides were compiled."""
    if any(t.stride() != s for t, s in zip(tensors, strides, strict=True)):
        raise AutogradUnsupported("a branch's tensor lies otherwise than captured", str(strides), "none")
    return list(tensors)


def _backward(joint: Joint, kinds: Sequence[bool], wanted: Sequence[int]) -> fx.GraphModule:
    """Inputs and tangents → gradients of the inputs `wanted`, contiguous memory of their own."""
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for n in joint.inputs:
        env[n] = graph.placeholder(n.name)
        env[n].meta.update(n.meta)
    tangents = dict(zip(joint.tangent_of, joint.tangents, strict=True))
    for k, kind in enumerate(kinds):
        if kind:
            n = tangents.get(k, joint.fresh[k])
            made = graph.placeholder(f"tangent_{k}")
            made.meta["val"] = n.meta["val"]
            if k in tangents:
                env[n] = made
    grads = [joint.grads[i] if joint.grads else None for i in wanted]
    live = ancestors(g for g in grads if g is not None)
    for n in joint.graph.nodes:
        if n in live and n not in env:
            env[n] = graph.node_copy(n, env.__getitem__)
    taken: set[fx.Node] = set()
    results = []
    for i, g in zip(wanted, grads, strict=True):
        like = joint.inputs[i].meta["val"]
        if g is None:
            results.append(_zeros(graph, like))
            continue
        root = view_root(g)
        own = root.op == "call_function" and root not in taken and g.meta["val"].is_contiguous()
        taken.add(root)
        results.append(env[g] if own else _copied(graph, env[g]))
    graph.output(tuple(results))
    return graph_module(graph, joint.constants)


def _zeros(graph: fx.Graph, like: FakeTensor) -> fx.Node:
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
    made = graph.call_function(aten.full.default, ([*like.shape], 0), options)
    made.meta["val"] = _contiguous(like)
    return made


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    copy = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    copy.meta["val"] = _contiguous(node.meta["val"])
    return copy


def _contiguous(like: FakeTensor) -> torch.Tensor:
    with like.fake_mode:
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
