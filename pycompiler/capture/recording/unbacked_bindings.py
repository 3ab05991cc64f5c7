"""Unbacked symbols of a graph: numbers in tensors, and sizes that depend on data.

In: the operator that produces one, on fakes.  Out: the symbol in its result, the place among the graph's results where
it is read, and a node that checks the assumptions on it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import fx

from pycompiler import config
from pycompiler.capture.breaks import Break
from pycompiler.capture.recording.input_symbols import Sizes
from pycompiler.capture.recording.nodes import has_tensor, name_of, version_of
from pycompiler.ir.node_effects import NodeEffects
from pycompiler.operators.operator_facts import facts_of
from pycompiler.symbolic import unbacked_symbols
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbols import expr_of, is_symbolic
from pycompiler.symbolic.unbacked_symbols import BINDS

if TYPE_CHECKING:
    from pycompiler.torch_compat.fake_mode import FakeMode


class NumberArgument(Break):
    """An operator reads the number in a tensor argument."""

    def __init__(self, fake: torch.Tensor, name: str) -> None:
        super().__init__("data-dependent-value", f"{name}, which reads a number from data without returning it")
        self.fake = fake


class HasNode(Protocol):
    """The value of a tensor of the graph."""

    node: fx.Node


T = TypeVar("T", bound=HasNode)


@dataclass
class SymbolReading(Generic[T]):
    """Where an unbacked symbol is read: a function of a tensor of the graph, at a version."""

    tensor: T
    version: int | None
    read: Callable[..., Any] | None
    args: tuple[int, ...]
    item: fx.Node | None  # the number that contains it


class UnbackedBindings(Generic[T]):
    """The unbacked symbols that calls of one graph bind.  `by_fake`: the values of its tensors."""

    def __init__(self, graph: fx.Graph, sizes: Sizes, by_fake: dict[int, T]) -> None:
        self.graph, self.sizes, self.by_fake = graph, sizes, by_fake
        self.readings: dict[str, SymbolReading[T]] = {}
        self.gives_number = False  # whether the current call returns the number in a tensor
        self.binding: list[tuple[Any, tuple[str, ...]]] = []  # numbers that the current call binds, and their symbols
        self._sizes: dict[Any, Any] = {}  # for unchanged data: the size that an operator returned

    def begin(self, target: Any) -> None:
        """Call before each call of the graph."""
        self.binding = []
        self.gives_number = target in ("item", torch.Tensor.item) or facts_of(target).gives_number

    def bind(self, mode: FakeMode, func: Any, args: Any, kwargs: Any, *, inner: bool, happened: bool) -> Any:
        """The result of an operator that depends on data, if the configuration captures it; else NotImplemented."""
        scalar = func is torch.ops.aten._local_scalar_dense.default
        if not (config.capture_scalar_outputs if scalar else config.capture_dynamic_output_shape_ops):
            return NotImplemented
        symbols = self.sizes.known_symbols
        if inner:
            raise Break("inner-graph", f"{func}, whose result depends on data")
        if happened:
            raise Break(
                "data-dependent-value",
                f"{func}, after a write or a random number: an assumption on its result could fail too late",
            )
        if scalar and not self.gives_number:
            raise NumberArgument(args[0], str(func))

        def new(kind: str, most: Any = None) -> Any:
            same = (func, id(args[0]), args[0]._version)
            if same in self._sizes:
                return self._sizes[same][0]
            known = len(symbols.unbacked)
            facts = {"held": torch.finfo(args[0].dtype).max, "checked": True} if kind == "float" else {}
            made = symbols.bind(kind, None if most is None else expr_of(most), **facts)
            self.binding.append((made, tuple(symbols.unbacked)[known:]))
            if kind == "size":
                self._sizes[same] = made, args[0]
            return made

        with mode:
            return BINDS[func](new, *args, **kwargs)

    def note(self, node: fx.Node, result: Any) -> dict[Any, fx.Node]:
        """Record where the symbols bound by `node` are read: from a size of a result, or from the number that is the
        result.

        Returns the node of that number.
        """
        node.meta["binds"], self.binding = self.binding, []
        if not has_tensor(result):
            return self._note_number(node, result)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for _, names in node.meta["binds"]:
            found = [(t, dim) for t in results if isinstance(t, torch.Tensor)
                     for dim, n in enumerate(t.shape) if is_symbolic(n) and [expr_of(n)] == [*map(Expr.sym, names)]]  # fmt: skip
            if not found:
                raise Break(
                    "data-dependent-value",
                    f"{name_of(node.target)}, which reads a number from data without returning it",
                )
            t, dim = found[0]
            self.readings[names[0]] = SymbolReading(self.by_fake[id(t)], None, unbacked_symbols.size, (dim,), None)
        return {}

    def _note_number(self, node: fx.Node, result: Any) -> dict[Any, fx.Node]:
        if len(node.meta["binds"]) != 1:
            raise Break("data-dependent-value", f"{name_of(node.target)}, which reads several numbers")
        ((_, names),) = node.meta["binds"]
        tensor = self.by_fake[id(node.all_input_nodes[0].meta["example_value"])]
        reads = (unbacked_symbols.positive, unbacked_symbols.negative) if len(names) == 2 else (None,)
        for name, read in zip(names, reads, strict=True):
            self.readings[name] = SymbolReading(tensor, version_of(tensor.node), read, (), node)
        return {result.node.value: node} if len(names) == 2 else {}

    def node_of(self, name: str) -> fx.Node:
        """The node that computes an unbacked symbol."""
        at, symbols = self.readings[name], self.sizes.known_symbols
        if at.item is not None and name in symbols.floats:
            return at.item
        assert at.read is not None
        node = self.graph.call_function(at.read, (at.item or at.tensor.node, *at.args))
        node.meta["example_value"] = symbols.int(Expr.sym(name))
        return node

    def must_check(self) -> bool:
        """Whether there are assumptions on unbacked symbols, so that the graph must run even if it returns nothing."""
        symbols = self.sizes.known_symbols if self.readings else None
        return symbols is not None and bool(symbols.late or symbols.checked)

    def check(self, inputs: Iterable[torch.Tensor], symbol: Callable[[str], fx.Node]) -> None:
        """Insert a node, behind the last binding call, that checks the assumptions on unbacked symbols.

        Later stages may add assumptions on these symbols and on the sizes of inputs.  `symbol` returns a symbol's node.
        """
        if not self.readings:
            return
        symbols = self.sizes.known_symbols
        last = next(n for n in reversed(self.graph.nodes) if "binds" in n.meta)
        symbols.close_checks()
        wanted = {n for r in symbols.late for n in r.expr.symbols} | symbols.checked.keys()
        for fake in inputs:
            wanted |= {s for n in fake.shape if is_symbolic(n) for s in expr_of(n).symbols}
        names = sorted(n for n in (wanted | self.readings.keys()) if n in self.readings or n in self.sizes.origins)
        names = [n for n in names if n not in symbols.floats or n in symbols.checked]
        if self.readings.keys().isdisjoint(names):  # floats within the range of all dtypes carry no assumption
            return
        behind = last.next
        # The getitem nodes of several results, from which sizes are read.
        while behind.target is operator.getitem and behind.args[0] is last:
            behind = behind.next
        with self.graph.inserting_before(behind):
            nodes = tuple(symbol(n) for n in names)
            node = self.graph.call_function(unbacked_symbols.UnbackedCheck(symbols, names), nodes)
        node.meta["effects"], node.meta["example_value"], node.meta["user"] = NodeEffects(acts=True), None, ()
