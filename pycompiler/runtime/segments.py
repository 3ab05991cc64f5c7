"""Segments: a graph cut at operators that Python must call, with a compiled graph between two of them.

In: a functional ATen graph whose nodes bind unbacked symbols (`meta["binds"]`) or draw from a generator of the program,
and a compiler of graphs.  Out: `Run`, data that is called with the graph's inputs.  Python calls these operators.  The
other nodes are compiled, one graph for all nodes that depend on the same number of them (the level).  Their results are
inputs of later graphs, where a bound symbol is an ordinary one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from pycompiler.ir.plan import OTHER_SIZES, mark_lasting
from pycompiler.operators.operator_facts import facts_of
from pycompiler.symbolic import unbacked_symbols
from pycompiler.symbolic.number_nodes import SYMBOLIC, symbol_of, value_of

SegmentCompiler = Callable[..., Callable[..., Sequence[Any]]]
_READS = (unbacked_symbols.positive, unbacked_symbols.negative, unbacked_symbols.size)


def needs_segments(gm: fx.GraphModule) -> bool:
    """Whether Python must call some of the graph's operators."""
    return any(map(_ends_level, gm.graph.nodes))


def _ends_level(n: fx.Node) -> bool:
    """Whether nodes that need its result, or must come after it, belong to a later graph."""
    return "binds" in n.meta or any(isinstance(a.meta.get("val"), torch.Generator) for a in n.all_input_nodes)


def segmented(gm: fx.GraphModule, compiler: SegmentCompiler, name: str) -> Run:
    levels = _Levels(gm)
    inputs = [*gm.graph.find_nodes(op="placeholder")]
    known = dict.fromkeys(inputs)

    def called(n: fx.Node) -> PythonCall:
        args, kwargs = fx.map_arg((n.args, n.kwargs), read)
        known[n] = None
        return PythonCall(n.name, n.target, args, kwargs, _layout(n))  # type: ignore[arg-type]

    def read(n: fx.Node) -> Any:
        return LazyNumber(n.meta["val"]) if n not in known and _is_number(n) else ValueRef(n.name)

    steps: list[CompiledPart | PythonCall] = []
    for level in range(levels.depth + 1):
        steps += [called(n) for n in levels.called[level] if not _ends_level(n)]
        part = levels.part(level)
        if part is not None:
            examples = [n.meta["val"] for n in part.module.graph.find_nodes(op="placeholder")]
            made = compiler(part.module, examples, f"{name}_{level}")
            steps.append(CompiledPart(_names(part.inputs), _names(part.outputs), made))
            known |= dict.fromkeys(part.outputs)
        steps += [called(n) for n in levels.called[level] if _ends_level(n)]
    outputs = fx.map_arg(gm.graph.output_node().args[0], read)
    symbols = tuple((n.name, n.meta["val"]) for n in known if _is_number(n))
    return Run(_names(inputs), tuple(steps), tuple(outputs), symbols)  # type: ignore[arg-type]


def _layout(n: fx.Node) -> tuple[Any, Any, torch.dtype] | None:
    """The layout that compiled graphs expect of a random draw."""
    value = n.meta.get("val")
    if not isinstance(value, torch.Tensor) or "binds" in n.meta or n.target is operator.getitem:
        return None
    shape, stride = (
        tuple(LazyNumber(k) if isinstance(k, SYMBOLIC) else k for k in ks) for ks in (value.shape, value.stride())
    )
    return shape, stride, value.dtype


def _names(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    return tuple(n.name for n in nodes)


def _is_number(n: fx.Node) -> bool:
    return isinstance(n.meta.get("val"), SYMBOLIC)


@dataclass
class _Segment:
    module: fx.GraphModule
    inputs: list[fx.Node]
    outputs: list[fx.Node]


class _Levels:
    """The level of each node: the length of the longest chain of bindings and draws that it needs.

    `called`: level -> operators that Python calls.  Reads of earlier results come before the compiled part of the
    level; bindings and draws come after it.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.level: dict[fx.Node, int] = {}
        self.ready: dict[fx.Node, int] = {}  # the level at which a node's value can be used
        self.roots = [n for n in gm.graph.nodes if n.op == "placeholder" and _is_number(n) or "bound" in n.meta]
        calls: list[fx.Node] = []
        last = 0
        for n in gm.graph.nodes:
            if n.op in ("placeholder", "get_attr"):
                self.ready[n] = 0
            elif n.op == "call_function":
                level = max([self.ready[a] for a in n.all_input_nodes], default=0)
                ends = _ends_level(n)
                if facts_of(n.target).ordered:
                    level = max(level, last)
                    last = level + ends  # it may draw from the same generator as compiled operators
                if self._is_called(n, calls):
                    calls.append(n)
                self.level[n] = level
                self.ready[n] = level + ends
        self.depth = max([0, *self.ready.values()])
        for n in self.level:
            if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable:
                self.level[n] = self.depth  # inputs are written after all reads
        self.called = [[n for n in calls if self.level[n] == k] for k in range(self.depth + 1)]
        self.by_python = set(calls)

    def _is_called(self, n: fx.Node, calls: list[fx.Node]) -> bool:
        if _ends_level(n) or n.target in _READS or isinstance(n.target, unbacked_symbols.UnbackedCheck):
            return True
        return n.target is operator.getitem and n.args[0] in calls

    def part(self, level: int) -> _Segment | None:
        """The graph of a level; None if it has nothing to compute."""
        nodes = [
            n
            for n in self.gm.graph.nodes
            if self.level.get(n) == level and n not in self.by_python and not _is_number(n)
        ]
        if not nodes:
            return None
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        inside = set(nodes)
        inputs = [n for n in self.roots if self.ready[n] <= level and self._is_wanted(n)]
        wanted = dict.fromkeys(a for n in nodes for a in self._tensors(n) if a not in inside)
        inputs += [a for a in wanted if a.op != "get_attr"]
        for n in inputs:
            env[n] = graph.placeholder(n.name)
            env[n].meta["val"] = n.meta["val"]
        for n in self.gm.graph.nodes:
            if n in inside or (n.op == "get_attr" and n in wanted) or (_is_number(n) and self._computed(n, env)):
                env[n] = graph.node_copy(n, env.__getitem__)
        used = {a for n in self.gm.graph.nodes if n not in inside for a in n.all_input_nodes}
        outputs = [n for n in nodes if n in used and isinstance(n.meta.get("val"), torch.Tensor)]
        graph.output(tuple(env[n] for n in outputs))
        module = fx.GraphModule(self.gm, graph)
        module.meta["inference"] = self.gm.meta.get("inference", False)
        return _Segment(module, inputs, outputs)

    def _tensors(self, n: fx.Node) -> list[fx.Node]:
        return [a for a in n.all_input_nodes if not _is_number(a)]

    @staticmethod
    def _is_wanted(n: fx.Node) -> bool:
        """Whether a number is a symbol that compiled code may refer to, or an input that became a constant but still
        has users."""
        return symbol_of(n.meta["val"]) is not None or (n.op == "placeholder" and bool(n.users))

    def _computed(self, n: fx.Node, env: dict[fx.Node, fx.Node]) -> bool:
        called = n.op == "call_function" and n not in self.by_python
        return called and n not in env and all(a in env for a in n.all_input_nodes)


@dataclass(frozen=True)
class ValueRef:
    """A value of the run, by the name of its node."""

    name: str


@dataclass(frozen=True)
class LazyNumber:
    """A number over symbols (torch's SymInt or SymFloat), computed on demand."""

    value: Any

    def of(self, symbols: Mapping[str | None, Any]) -> Any:
        value = value_of(self.value)
        return value.eval(symbols) if hasattr(value, "eval") else value


@dataclass(frozen=True)
class CompiledPart:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[..., Sequence[Any]]

    def __call__(self, run: Run, env: dict[str, Any]) -> None:
        env.update(zip(self.outputs, self.run(*[env[n] for n in self.inputs]), strict=True))


@dataclass(frozen=True)
class PythonCall:
    """A call from Python.  `args`, `kwargs`: with `ValueRef` and `LazyNumber` in place of nodes.

    `layout`: the required sizes, strides and dtype of the result, since torch's fakes are wrong for a few operators.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: tuple[Any, Any, torch.dtype] | None = None

    def __call__(self, run: Run, env: dict[str, Any]) -> None:
        args, kwargs = map_aggregate((self.args, self.kwargs), lambda a: run.value(a, env))
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
            env[self.name] = made = self.target(*args, **kwargs)
            if self.layout is None:
                return
            shape, stride, dtype = map_aggregate(self.layout, lambda a: run.value(a, env))  # type: ignore[misc]
            if made.shape != shape:
                raise RuntimeError(OTHER_SIZES.format([*made.shape], [*shape]))
            if made.stride() != stride or made.dtype != dtype:
                env[self.name] = torch.empty_strided(shape, stride, dtype=dtype, device=made.device).copy_(made)


@dataclass(frozen=True)
class Run:
    """The graph as data.  `symbols`: values of the run that are symbols' values (`LazyNumber.of` evaluates with them)."""

    inputs: tuple[str, ...]
    steps: tuple[CompiledPart | PythonCall, ...]
    outputs: tuple[Any, ...]
    symbols: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Any) -> list[Any]:
        env = dict(zip(self.inputs, args, strict=True))
        for step in self.steps:
            try:
                step(self, env)
            except BaseException as error:
                if step is not self.steps[0]:
                    mark_lasting(error)
                raise
        return [self.value(o, env) for o in self.outputs]

    def value(self, of: Any, env: dict[str, Any]) -> Any:
        if isinstance(of, LazyNumber):
            return of.of({symbol_of(number): env[name] for name, number in self.symbols if name in env})
        return env[of.name] if isinstance(of, ValueRef) else of
