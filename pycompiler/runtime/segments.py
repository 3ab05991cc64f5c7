"""A graph whose symbols are bound while it runs: what comes before, what binds, and what comes after.

In: a functional ATen graph in which nodes bind symbols (`meta["binds"]`), and a compiler of graphs.  Out: a callable of the
graph's inputs.  Operators that bind are called from Python; what lies between them is compiled, one graph for all that needs
the same number of bindings, and takes what is bound as inputs: there a bound symbol is a symbol like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pycompiler.ir import late
from pycompiler.ir.effects import ordered
from pycompiler.ir.numbers import SYMBOLIC, symbol_of, value_of

Compiler = Callable[..., Callable[..., Sequence[Any]]]
_READS = (late.positive, late.negative, late.size)


def binds(gm: fx.GraphModule) -> bool:
    return any("binds" in n.meta for n in gm.graph.nodes)


def segmented(gm: fx.GraphModule, compiler: Compiler, name: str) -> Callable[..., Sequence[Any]]:
    cut = _Cut(gm)
    steps: list[Callable[[dict[fx.Node, Any]], None]] = []
    for level in range(cut.depth + 1):
        steps += [_Called(n) for n in cut.called[level] if "binds" not in n.meta]
        part = cut.part(level)
        if part is not None:
            examples = [n.meta["val"] for n in part.module.graph.find_nodes(op="placeholder")]
            steps.append(_Compiled(part.inputs, part.outputs, compiler(part.module, examples, f"{name}_{level}")))
        steps += [_Called(n) for n in cut.called[level] if "binds" in n.meta]
    return _Run(gm.graph.find_nodes(op="placeholder"), steps, gm.graph.output_node().args[0])  # type: ignore[arg-type]


def _is_number(n: fx.Node) -> bool:
    return isinstance(n.meta.get("val"), SYMBOLIC)


@dataclass
class _Part:
    module: fx.GraphModule
    inputs: list[fx.Node]
    outputs: list[fx.Node]


class _Cut:
    """Each node's level: how many bindings, one after the other, it needs.  `called`: by level what Python calls: before
    the compiled part of the level what reads of earlier ones, behind it what binds."""

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
                if ordered(n.target):
                    level = last = max(level, last)
                if self._is_called(n, calls):
                    calls.append(n)
                self.level[n] = level
                self.ready[n] = level + ("binds" in n.meta)
        self.depth = max([0, *self.ready.values()])
        for n in self.level:
            if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable:
                self.level[n] = self.depth  # inputs are written when all has been read
        self.called = [[n for n in calls if self.level[n] == k] for k in range(self.depth + 1)]
        self.by_python = set(calls)

    def _is_called(self, n: fx.Node, calls: list[fx.Node]) -> bool:
        if "binds" in n.meta or n.target in _READS or isinstance(n.target, late.Check):
            return True
        return n.target is operator.getitem and n.args[0] in calls

    def part(self, level: int) -> _Part | None:
        """The graph of a level; None where there is nothing to compute."""
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
        return _Part(module, inputs, outputs)

    def _tensors(self, n: fx.Node) -> list[fx.Node]:
        return [a for a in n.all_input_nodes if not _is_number(a)]

    @staticmethod
    def _is_wanted(n: fx.Node) -> bool:
        """Whether a number is a symbol, which what is compiled may name, or a constant by now that a node still takes."""
        return symbol_of(n.meta["val"]) is not None or (n.op == "placeholder" and bool(n.users))

    def _computed(self, n: fx.Node, env: dict[fx.Node, fx.Node]) -> bool:
        called = n.op == "call_function" and n not in self.by_python
        return called and n not in env and all(a in env for a in n.all_input_nodes)


class _Compiled:
    def __init__(self, inputs: list[fx.Node], outputs: list[fx.Node], run: Callable[..., Sequence[Any]]) -> None:
        self.inputs, self.outputs, self.run = inputs, outputs, run

    def __call__(self, env: dict[fx.Node, Any]) -> None:
        env.update(zip(self.outputs, self.run(*[env[n] for n in self.inputs]), strict=True))


class _Called:
    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def __call__(self, env: dict[fx.Node, Any]) -> None:
        node: Any = self.node
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: _value(n, env))
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
            env[node] = node.target(*args, **kwargs)


class _Run:
    def __init__(self, inputs: list[fx.Node], steps: list[Any], outputs: Sequence[Any]) -> None:
        self.inputs, self.steps, self.outputs = inputs, steps, outputs

    def __call__(self, *args: Any) -> list[Any]:
        env: dict[fx.Node, Any] = dict(zip(self.inputs, args, strict=True))
        for step in self.steps:
            step(env)
        return [_value(o, env) if isinstance(o, fx.Node) else o for o in self.outputs]


def _value(n: fx.Node, env: dict[fx.Node, Any]) -> Any:
    """A value of the run; numbers made of symbols are computed."""
    if n not in env and _is_number(n):
        made: Any = n
        value = value_of(made.meta["val"])
        names = {symbol_of(m.meta["val"]): v for m, v in env.items() if _is_number(m)}
        return value.eval(names) if hasattr(value, "eval") else value
    return env[n]
