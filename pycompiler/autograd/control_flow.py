"""Branches and loops (`torch.cond`, `while_loop`, `scan`, `map`) in ATen graphs: operators that run compiled graphs.

In: a captured graph with calls of `higher_order.cond`, `while_loop` and `scan`.
Out: for each such node a function of its tensors, for the trace.

ATen graphs contain ``pycompiler.branch(pred, tensors, number, numbers)``, ``pycompiler.loop(carried, others, number,
numbers)`` or ``pycompiler.scan(tensors, counts, number, numbers)``.  The gradients of loops are
``pycompiler.unwound(..., tangents)`` and
``pycompiler.unscanned(..., tangents)``.  `number` identifies a `CompiledSides`.  `numbers` are the symbols that the sides
compute with; the sides take them after their tensors.

Each side is a graph of its own, forward and backward.  The backward of a side recomputes its forward, so the
operator saves only its inputs.  The sides of a loop are its test and its body.  The backward of a loop repeats the
passes, saves the inputs of each pass, and goes back through them with a third side, the backward of one pass.
The sides of a scan are its body and the backward of one row.  The body takes the carried tensors, one row of each
tensor that is scanned, and the other tensors.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.autograd.joint import Joint, Output
from pycompiler.autograd.partition import ancestors, forward_only, graph_module
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.views import view_root
from pycompiler.ir import higher_order
from pycompiler.ir.phases import artefact
from pycompiler.operators.operator_facts import facts_of
from pycompiler.operators.operator_facts import row as add_row
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.number_nodes import Numbers, symbol_of, symbols_in, value_of
from pycompiler.symbolic.symbols import Specialise, Symbols, expr_of, hint_of, symbols_of

aten = torch.ops.aten

Side = Callable[..., Sequence[torch.Tensor]]
Tracer = Callable[[fx.GraphModule, Sequence[Any]], Joint]
BranchCompiler = Callable[[fx.GraphModule, list[Any]], Side]
Traced = Callable[..., tuple[torch.Tensor, ...]]


class CompiledSides:
    """Compiled graphs with the same inputs.  The last inputs are the symbols `names`.

    `like`: the metadata of the results (for a loop, of the body's results) over these symbols.
    Graphs refer to a choice by a number that is unique across processes.  It lives as long as the function compiled
    with it.
    """

    def __init__(self, sides: tuple[Side, ...], like: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        self.sides, self.names = sides, tuple(names)
        self.like = [(_known(t.shape), _known(t.stride()), t.dtype) for t in like]
        self.number = secrets.randbits(62)
        _ALIVE[self.number] = self

    def __call__(self, pred: torch.Tensor, given: Sequence[Any]) -> list[torch.Tensor]:
        return list(self.sides[not pred](*given))

    def loop(self, carried: list[torch.Tensor], others: Sequence[Any]) -> list[torch.Tensor]:
        test, body = self.sides
        if not test(*carried, *others)[0]:
            return [t.clone() for t in carried]
        while True:
            carried = list(body(*carried, *others))
            if not test(*carried, *others)[0]:
                return carried

    def scan(self, tensors: list[torch.Tensor], counts: Sequence[int], numbers: Sequence[Any]) -> list[torch.Tensor]:
        """The final carried tensors, and the stacked other results of the body."""
        carried, rows, others = _split_scan_tensors(tensors, counts)
        made = []
        for row in zip(*rows, strict=True):
            results = self.sides[0](*carried, *row, *others, *numbers)
            carried = list(results[: counts[0]])
            made.append(results[counts[0] :])
        return [*carried, *map(torch.stack, zip(*made, strict=True))]

    def unscanned(
        self, tensors: list[torch.Tensor], counts: Sequence[int], numbers: Sequence[Any], given: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The gradients of a scan, where `given` are the gradients of its results.

        In order: of carried floating-point tensors, of ``counts[2]`` scanned tensors, and of other tensors.
        """
        carried, rows, others = _split_scan_tensors(tensors, counts)
        body, back = self.sides
        count = sum(t.is_floating_point() for t in carried)
        slices = list(zip(*rows, strict=True))
        passes = list[list[torch.Tensor]]()
        for row in slices:
            passes.append(carried)
            carried = list(body(*carried, *row, *others, *numbers))[: counts[0]]
        tangents, total, columns = given[:count], list[torch.Tensor](), list[list[torch.Tensor]]()
        for i in range(len(slices) - 1, -1, -1):
            found = list(back(*passes[i], *slices[i], *others, *tangents, *(t[i] for t in given[count:]), *numbers))
            tangents, rest = found[:count], found[count + counts[2] :]
            columns.append(found[count : count + counts[2]])
            total = [a + b for a, b in zip(total, rest, strict=True)] if total else rest
        return [*tangents, *(torch.stack(column[::-1]) for column in zip(*columns, strict=True)), *total]

    def unwound(
        self, carried: list[torch.Tensor], others: list[torch.Tensor], numbers: Sequence[Any], given: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The gradients of a loop's carried tensors, and of other tensors, where `given` are the gradients of its results."""
        test, body, back = self.sides
        passes, tangents, count = list[list[torch.Tensor]](), given, len(given)
        while test(*carried, *others, *numbers)[0]:
            passes.append(carried)
            carried = list(body(*carried, *others, *numbers))
        total: list[torch.Tensor] = []
        for step in reversed(passes):
            found = list(back(*step, *others, *tangents, *numbers))
            tangents, rest = found[:count], found[count:]
            total = [a + b for a, b in zip(total, rest, strict=True)] if total else rest
        if passes:
            return [*tangents, *total]
        return [
            *(t.clone() for t in given),
            *(torch.zeros_like(t, device=given[0].device) for t in self.shapes(numbers)[count:]),
        ]

    def shapes(self, numbers: Sequence[Any]) -> list[torch.Tensor]:
        """Metadata of the results for these values of the symbols."""
        now = {
            k: expr_of(n)
            for k, n in zip(self.names, numbers, strict=True)
            if not isinstance(n, (float, torch.SymFloat))
        }
        env = next((found for n in numbers if (found := symbols_of(n)) is not None), Symbols())
        sizes = [
            [[env.int(Expr.of(e).subst(now)) for e in part] for part in (shape, stride)]
            for shape, stride, _ in self.like
        ]
        return [
            torch.empty_strided(*size, dtype=dtype, device="meta")
            for size, (_, _, dtype) in zip(sizes, self.like, strict=True)
        ]


def _split_scan_tensors(tensors: Sequence[Any], counts: Sequence[int]) -> tuple[list[Any], list[Any], list[Any]]:
    """A scan's tensors: carried, scanned, and others."""
    first, second = counts[0], counts[0] + counts[1]
    return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])


def choice_of(number: int, sides: tuple[Side, ...], like: list[Any], names: Sequence[str]) -> CompiledSides:
    """The choice with this number, which this or another process created."""
    made = _ALIVE.get(number)
    if made is None:
        made = object.__new__(CompiledSides)
        made.sides, made.like, made.number, made.names = sides, like, number, tuple(names)
        made = _ALIVE.setdefault(number, made)
    return made


_ALIVE: weakref.WeakValueDictionary[int, CompiledSides] = weakref.WeakValueDictionary()


def _chosen(number: int) -> CompiledSides:
    choice = _ALIVE.get(number)
    if choice is None:
        raise RuntimeError(
            "this graph has a branch on a tensor's value: only the process that compiled the graph can run it"
        )
    return choice


def _run(pred: torch.Tensor, tensors: list[torch.Tensor], number: int, numbers: Sequence[Any]) -> list[torch.Tensor]:
    return _chosen(number)(pred, [*tensors, *numbers])


def _loop(
    carried: list[torch.Tensor], others: list[torch.Tensor], number: int, numbers: Sequence[Any]
) -> list[torch.Tensor]:
    return _chosen(number).loop(carried, [*others, *numbers])


def _unwound(
    carried: list[torch.Tensor],
    others: list[torch.Tensor],
    number: int,
    numbers: Sequence[Any],
    tangents: list[torch.Tensor],
) -> list[torch.Tensor]:
    return _chosen(number).unwound(carried, others, numbers, tangents)


def _scan(tensors: list[torch.Tensor], counts: list[int], number: int, numbers: Sequence[Any]) -> list[torch.Tensor]:
    return _chosen(number).scan(tensors, counts, numbers)


def _unscanned(
    tensors: list[torch.Tensor], counts: list[int], number: int, numbers: Sequence[Any], tangents: list[torch.Tensor]
) -> list[torch.Tensor]:
    return _chosen(number).unscanned(tensors, counts, numbers, tangents)


def _shapes(_: Any, tensors: Any, number: int, numbers: Sequence[Any], tangents: Any = ()) -> list[torch.Tensor]:
    return _chosen(number).shapes(numbers)


_LIBRARY = torch.library.Library("pycompiler", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("branch(Tensor pred, Tensor[] tensors, int number, Scalar[] numbers) -> Tensor[]")  # type: ignore[no-untyped-call]
_LIBRARY.define("loop(Tensor[] carried, Tensor[] others, int number, Scalar[] numbers) -> Tensor[]")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "unwound(Tensor[] carried, Tensor[] others, int number, Scalar[] numbers, Tensor[] tangents) -> Tensor[]"
)
_LIBRARY.define("scan(Tensor[] tensors, int[] counts, int number, Scalar[] numbers) -> Tensor[]")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "unscanned(Tensor[] tensors, int[] counts, int number, Scalar[] numbers, Tensor[] tangents) -> Tensor[]"
)
_KERNELS: dict[str, Callable[..., list[torch.Tensor]]] = {
    "branch": _run, "loop": _loop, "unwound": _unwound, "scan": _scan, "unscanned": _unscanned,
}  # fmt: skip
for _name, _kernel in _KERNELS.items():
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _key)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(_name, _shapes, "Meta")  # type: ignore[no-untyped-call]
    add_row(f"pycompiler::{_name}", raises="host")
branch = torch.ops.pycompiler.branch.default
loop = torch.ops.pycompiler.loop.default
loop_backward = torch.ops.pycompiler.unwound.default
scan = torch.ops.pycompiler.scan.default
scan_backward = torch.ops.pycompiler.unscanned.default


class _Differentiable(torch.autograd.Function):
    """One choice in the forward, another in the backward; `kinds`: for each result, whether it has a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        forth: CompiledSides,
        back: CompiledSides,
        kinds: Sequence[bool],
        numbers: Any,
        pred: Any,
        *tensors: Any,
    ) -> Any:
        results = branch(pred, list(tensors), forth.number, numbers)
        ctx.save_for_backward(pred, *tensors)
        ctx.back, ctx.kinds, ctx.numbers = back, kinds, numbers
        ctx.mark_non_differentiable(*(r for r, k in zip(results, kinds, strict=True) if not k))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        pred, *tensors = ctx.saved_tensors
        tangents = [g.contiguous() for g, k in zip(grads, ctx.kinds, strict=True) if k]
        made = iter(branch(pred, [*tensors, *tangents], ctx.back.number, ctx.numbers))
        return *[None] * 5, *(next(made) if needed else None for needed in ctx.needs_input_grad[5:])


class _LoopFunction(torch.autograd.Function):
    """A loop or a scan with its gradients.

    `forth` takes the tensors; `back` takes the tensors and the results' gradients, and returns gradients of the tensors `wanted`.
    `kinds`: for each result, whether it has a gradient.
    """

    @staticmethod
    def forward(ctx: Any, forth: Traced, back: Any, kinds: Sequence[bool], wanted: Any, *tensors: Any) -> Any:
        results = forth(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.back, ctx.kinds, ctx.wanted = back, kinds, wanted
        ctx.mark_non_differentiable(*(r for r, k in zip(results, kinds, strict=True) if not k))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        made = ctx.back(ctx.saved_tensors, [g.contiguous() for g, k in zip(grads, ctx.kinds, strict=True) if k])
        found = dict(zip(ctx.wanted, made, strict=True))
        return *[None] * 4, *(found[i] if needed else None for i, needed in enumerate(ctx.needs_input_grad[4:]))


class Branches:
    """The compiled branches of a captured graph: node → function that the trace calls instead."""

    def __init__(self, mode: FakeTensorMode, trace: Callable[..., Joint], compiler: BranchCompiler) -> None:
        self.mode, self.trace, self.compiler = mode, trace, compiler
        self.calls: dict[fx.Node, Traced] = {}
        self.choices: list[CompiledSides] = []

    def prepare(self, gm: fx.GraphModule) -> None:
        """Compile every branch of `gm`, nested branches (also in checkpoints) first."""
        for node in gm.graph.nodes:
            compiled = self.KINDS.get(node.target)  # type: ignore[arg-type]
            if node.op == "call_function" and (compiled or higher_order.is_checkpoint(node.target)):
                bodies = [getattr(gm, str(a.target)) for a in node.args if _is_body(a)]
                if compiled is not None:
                    given = _SideInputs(node)
                    bodies = [given.body(body) for body in bodies]
                for body in bodies:
                    self.prepare(body)
                if compiled is not None:
                    self.calls[node] = compiled(self, node, bodies, given)
        if self.calls and any(
            str(getattr(n.target, "__name__", "")).startswith("set_autocast") for n in gm.graph.nodes
        ):
            raise AutogradUnsupported(
                "a branch or loop in a graph that changes autocast", "set_autocast", "the graph runs eagerly"
            )

    def _branch(self, node: fx.Node, bodies: list[fx.GraphModule], given: _SideInputs) -> Traced:
        kinds: Any
        pred: Any
        kinds, pred = node.args[2:4]
        results = node.meta["example_value"]
        examples = [self._leaf(t) for t in given.tensors]
        wanted = [i for i, e in enumerate(examples) if e.requires_grad and any(kinds) and torch.is_grad_enabled()]
        devices = {t.device for t in (pred.meta["example_value"], *examples, *results)}
        if len(devices) > 1 or (
            wanted and not all(r.is_contiguous() for r, k in zip(results, kinds, strict=True) if k)
        ):
            raise AutogradUnsupported(
                "a branch on several devices, or with results that are not contiguous",
                str(node),
                "use one device, and contiguous results",
            )
        with torch.no_grad():
            plain = [self._joint(body, [*(e.detach() for e in examples), *given.numbers]) for body in bodies]
        forth = self._choice([forward_only(joint) for joint in plain], [results, results], given)
        if not wanted:
            return lambda pred, *operands: tuple(branch(pred, given.seen(operands), forth.number, given.numbers))
        joints = [self._joint(body, [*examples, *given.numbers]) for body in bodies]
        modules = [_backward(joint, kinds, wanted, len(examples)) for joint in joints]
        made = [n.meta["val"] for n in modules[0].graph.output_node().args[0]]  # type: ignore[union-attr]
        back = self._choice(modules, [made, made], given)
        return lambda pred, *operands: _Differentiable.apply(  # type: ignore[no-any-return, no-untyped-call]
            forth, back, kinds, given.numbers, pred, *given.seen(operands)
        )

    def _loop(self, node: fx.Node, bodies: list[fx.GraphModule], given: _SideInputs) -> Traced:
        kinds: Any = node.args[2]
        count = len(kinds)
        results = node.meta["example_value"]
        with torch.no_grad():
            examples = [self._leaf(t).detach() for t in given.tensors]
            if len({t.device for t in (*examples, *results)}) > 1:
                raise AutogradUnsupported("a loop on several devices", str(node), "use one device")
            joints = [self._joint(body, [*examples, *given.numbers]) for body in bodies]
        test = [n.meta["val"] for n in joints[0].fresh]
        modules = [forward_only(joint) for joint in joints]
        choice, back = self._choice(modules, [test, results], given), None
        if torch.is_grad_enabled() and any(kinds):
            if not all(r.is_contiguous() for r, k in zip(results, kinds, strict=True) if k):
                raise AutogradUnsupported(
                    "a loop with results that are not contiguous", str(node), "make them contiguous"
                )
            needed = [*kinds, *(t.requires_grad for t in given.tensors[count:])]
            leaves = [e.requires_grad_() if n else e for e, n in zip(examples, needed, strict=True)]
            wanted = [i for i, n in enumerate(needed) if n]
            one = _backward(self._joint(bodies[1], [*leaves, *given.numbers]), kinds, wanted, len(leaves))
            made = [n.meta["val"] for n in one.graph.output_node().args[0]]  # type: ignore[union-attr]
            back = self._choice([*modules, one], [test, results, made], given)

        def forth(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(loop(list(tensors[:count]), list(tensors[count:]), choice.number, given.numbers))

        if back is None:
            return lambda *operands: forth(*(t.detach() for t in given.seen(operands)))

        def gradients(tensors: Sequence[torch.Tensor], tangents: list[torch.Tensor]) -> list[torch.Tensor]:
            return loop_backward(list(tensors[:count]), list(tensors[count:]), back.number, given.numbers, tangents)  # type: ignore[no-any-return]

        return lambda *operands: _LoopFunction.apply(forth, gradients, kinds, wanted, *given.seen(operands))  # type: ignore[no-any-return, no-untyped-call]

    def _scan(self, node: fx.Node, bodies: list[fx.GraphModule], given: _SideInputs) -> Traced:
        kinds: Any
        counts: Any
        kinds, counts = node.args[1:3]
        [body], results = bodies, node.meta["example_value"]
        first, after = counts[0], sum(counts)
        inputs = [n.meta["example_value"] for n in body.graph.find_nodes(op="placeholder")][: len(given.tensors)]
        with torch.no_grad():
            examples = [self._leaf(t).detach() for t in inputs]
            if len({t.device for t in (*examples, *results)}) > 1:
                raise AutogradUnsupported("a scan on several devices", str(node), "use one device")
            joint = self._joint(body, [*examples, *given.numbers])
        one, graph = [n.meta["val"] for n in joint.fresh], forward_only(joint)
        choice, back = self._choice([graph], [one], given, results), None
        if torch.is_grad_enabled() and any(kinds):
            if not all(r.is_contiguous() for r, k in zip(one, kinds, strict=True) if k):
                raise AutogradUnsupported(
                    "a scan with results that are not contiguous", str(node), "make them contiguous"
                )
            floats = [t.is_floating_point() for t in examples[:first]]
            needed = [*floats, *(t.requires_grad for t in given.tensors[first:])]
            leaves = [e.requires_grad_() if n else e for e, n in zip(examples, needed, strict=True)]
            wanted = [i for i, n in enumerate(needed) if n]
            module = _backward(self._joint(body, [*leaves, *given.numbers]), kinds, wanted, len(leaves))
            made = [n.meta["val"] for n in module.graph.output_node().args[0]]  # type: ignore[union-attr]
            back = self._choice([graph, module], [one, made], given, [_contiguous(given.tensors[i]) for i in wanted])

        def forth(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(scan(list(tensors), [*counts], choice.number, given.numbers))

        if back is None:
            return lambda *operands: forth(*(t.detach() for t in given.seen(operands)))
        columns = sum(first <= i < after for i in wanted)

        def gradients(tensors: Sequence[torch.Tensor], tangents: list[torch.Tensor]) -> list[torch.Tensor]:
            return scan_backward(list(tensors), [*counts, columns], back.number, given.numbers, tangents)  # type: ignore[no-any-return]

        return lambda *operands: _LoopFunction.apply(forth, gradients, kinds, wanted, *given.seen(operands))  # type: ignore[no-any-return, no-untyped-call]

    KINDS: ClassVar[dict[Any, Callable[[Branches, fx.Node, list[fx.GraphModule], _SideInputs], Traced]]] = {
        higher_order.cond: _branch,
        higher_order.while_loop: _loop,
        higher_order.scan: _scan,
    }
    """Builds the function for a node; it takes the node's operands, which are all arguments after the first three."""

    def _leaf(self, example: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), self.mode:
            leaf = example.detach()
        return leaf.requires_grad_(example.requires_grad)

    def _joint(self, body: fx.GraphModule, examples: Sequence[Any]) -> Joint:
        joint = self.trace(body, examples, self)
        if any(
            facts_of(n.target).draws or facts_of(n.target).acts for n in joint.graph.nodes if n.op == "call_function"
        ):
            raise AutogradUnsupported(
                "a branch draws random numbers, or has side effects",
                body.print_readable(False),
                "the graph runs eagerly",
            )
        if joint.mutations or joint.touched or joint.outputs != [Output("fresh", k) for k in range(len(joint.fresh))]:
            raise AutogradUnsupported(
                "a branch writes to its inputs, or returns views",
                body.print_readable(False),
                "clone them in the branch",
            )
        return joint

    def _choice(
        self,
        modules: list[fx.GraphModule],
        likes: Sequence[Sequence[Any]],
        given: _SideInputs,
        results: Sequence[Any] | None = None,
    ) -> CompiledSides:
        """Compile the sides.  `likes`: metadata of each module's results.  `results`: of the operator's (default: of
        the last module's)."""
        sides = []
        for module, like in zip(modules, likes, strict=True):
            made = [n.meta["val"] for n in module.graph.output_node().args[0]]  # type: ignore[union-attr]
            if [_layout(t) for t in made] != [_layout(t) for t in like]:
                raise AutogradUnsupported(
                    "branches whose results have another layout than captured",
                    str(module.graph),
                    "the graph runs eagerly",
                )
            sides.append(self.compiler(module, [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]))
        choice = CompiledSides(tuple(sides), likes[-1] if results is None else results, given.names)
        artefact("branch", (choice.number, modules, given.today(choice.like), choice.names))
        self.choices.append(choice)
        return choice


def _is_body(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("example_value"), fx.GraphModule)


class _SideInputs:
    """The inputs of a node's sides: its tensors in order, then each symbol once.

    The symbols are the symbols of the tensors' sizes and all others that the sides compute with.  A side is compiled
    separately, so all of them are its own inputs.
    """

    def __init__(self, node: fx.Node) -> None:
        operands = [a for a in node.args[3:] if isinstance(a, fx.Node)]
        if node.target is higher_order.cond:
            operands = operands[1:]  # the first operand is the condition
        self.tensors: list[Any] = [e for a in operands if isinstance(e := a.meta["example_value"], torch.Tensor)]
        self.strides = [t.stride() for t in self.tensors]
        values = [a.meta["example_value"] for a in operands]
        self.names = sorted(symbols_in([*values, *node.meta["example_value"]]))
        symbols = next(filter(None, map(symbols_of, _numbers(values))), None)
        if symbols is not None and (late := [n for n in self.names if n in symbols.unbacked]):
            raise Specialise(late, "a branch or a loop on a tensor's value")
        self.numbers = [] if symbols is None else [symbols.symbol(name) for name in self.names]

    def body(self, body: fx.GraphModule) -> fx.GraphModule:
        """A side with its inputs in this order."""
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        placeholders = body.graph.find_nodes(op="placeholder")
        for n in placeholders:
            if isinstance(n.meta["example_value"], torch.Tensor):
                env[n] = graph.node_copy(n)
        numbers = dict[str | None, fx.Node]()
        for name, number in zip(self.names, self.numbers, strict=True):
            numbers[name] = graph.placeholder(name)
            numbers[name].meta["example_value"] = number
        for n in body.graph.nodes:
            if n.op != "placeholder":
                env[n] = graph.node_copy(n, env.__getitem__)
            elif n not in env:
                env[n] = numbers[symbol_of(n.meta["example_value"])]
        return fx.GraphModule(body, graph)

    def today(self, like: Sequence[Any]) -> list[Any]:
        """The metadata of results, with the symbols' hints."""
        now = dict(zip(self.names, map(hint_of, self.numbers), strict=True))
        return [(*(tuple(Expr.of(e).eval(now) for e in part) for part in sizes), dtype) for *sizes, dtype in like]

    def seen(self, operands: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among the operands; raises if their layouts differ from the compiled ones."""
        tensors = [t for t in operands if isinstance(t, torch.Tensor)]
        if any(t.stride() != s for t, s in zip(tensors, self.strides, strict=True)):
            raise AutogradUnsupported(
                "an input of a branch has other strides than captured", str(self.strides), "the graph runs eagerly"
            )
        return tensors


def _numbers(values: Sequence[Any]) -> Iterator[Any]:
    """The numbers among these values, and in the sizes and strides of the tensors."""
    for v in values:
        yield from (*v.shape, *v.stride()) if isinstance(v, torch.Tensor) else (v,)


def _known(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Each size as an int, or as an Expr over symbols."""
    return tuple(value_of(n) if isinstance(n, torch.SymInt) else n for n in sizes)


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return tuple(t.shape), t.stride(), t.dtype, t.device


def _backward(joint: Joint, kinds: Sequence[bool], wanted: Sequence[int], count: int) -> fx.GraphModule:
    """The backward graph of a side.

    `count` tensors, tangents and symbols → gradients of the inputs `wanted`, each in contiguous memory of its own.
    """
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()

    def place(n: fx.Node) -> None:
        env[n] = graph.placeholder(n.name)
        env[n].meta.update(n.meta)

    for n in joint.inputs[:count]:
        place(n)
    tangents = dict(zip(joint.tangent_of, joint.tangents, strict=True))
    for k, kind in enumerate(kinds):
        if kind:
            n = tangents.get(k, joint.fresh[k])
            made = graph.placeholder(f"tangent_{k}")
            made.meta["val"] = n.meta["val"]
            if k in tangents:
                env[n] = made
    for n in joint.inputs[count:]:
        place(n)
    numbers = Numbers(graph, {str(symbol_of(n.meta["val"])): env[n] for n in joint.inputs[count:]})
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
            results.append(_zeros(graph, numbers, like))
            continue
        root = view_root(g)
        own = root.op == "call_function" and root not in taken and g.meta["val"].is_contiguous()
        taken.add(root)
        results.append(env[g] if own else _copied(graph, env[g]))
    graph.output(tuple(results))
    return graph_module(graph, joint.constants)


def _zeros(graph: fx.Graph, numbers: Numbers, like: FakeTensor) -> fx.Node:
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
    made = graph.call_function(aten.full.default, (numbers.arguments([*like.shape]), 0), options)
    made.meta["val"] = _contiguous(like)
    return made


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    copy = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    copy.meta["val"] = _contiguous(node.meta["val"])
    return copy


def _contiguous(like: FakeTensor) -> torch.Tensor:
    with like.fake_mode:
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
