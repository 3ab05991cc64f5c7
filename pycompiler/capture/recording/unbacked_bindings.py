"""Symbols that calls of a graph bind: numbers in tensors, and sizes that depend on data.

In: the operator that gives one, on fakes.  Out: the symbol in its result, where it is read of the graph's results, and a node
that looks whether what is assumed of it holds.
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
from pycompiler.capture.nodes import has_tensor, name_of, version_of
from pycompiler.capture.sizes import NeedsSymbols, Sizes
from pycompiler.ir import late
from pycompiler.ir.expr import Expr
from pycompiler.ir.late import BINDS
from pycompiler.ir.symbols import expr_of, is_symbolic

if TYPE_CHECKING:
    from pycompiler.ir.fake import FakeMode

GIVE_NUMBERS = ("item", torch.Tensor.item, torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)
"""Targets whose result is the number in a tensor."""


class ReadsNumber(Break):
    """An operator takes a tensor for a number, and looks into it."""

    def __init__(self, fake: torch.Tensor, name: str) -> None:
        super().__init__("data-dependent-value", f"{name}, which reads a number that no result shows")
        self.fake = fake


class Stands(Protocol):
    """What stands for a tensor of the graph."""

    node: fx.Node


T = TypeVar("T", bound=Stands)


@dataclass
class Reading(Generic[T]):
    """Where a symbol that a call binds is read: a function of a tensor of the graph, as it was then."""

    tensor: T
    version: int | None
    read: Callable[..., Any] | None
    args: tuple[int, ...]
    item: fx.Node | None  # the number of which it is a part


class Bound(Generic[T]):
    """The symbols that calls of one graph bind; `by_fake` is what stands for its tensors."""

    def __init__(self, graph: fx.Graph, sizes: Sizes, by_fake: dict[int, T]) -> None:
        self.graph, self.sizes, self.by_fake = graph, sizes, by_fake
        self.readings: dict[str, Reading[T]] = {}
        self.gives_number = False  # whether the call made now has the number in a tensor for its result
        self.binding: list[tuple[Any, tuple[str, ...]]] = []  # numbers that it binds, and their symbols
        self._sizes: dict[Any, Any] = {}  # of data that has not changed: the size that an operator gave

    def begin(self, target: Any) -> None:
        """A call is made."""
        self.binding, self.gives_number = [], target in GIVE_NUMBERS

    def bind(self, mode: FakeMode, func: Any, args: Any, kwargs: Any, *, inner: bool, happened: bool) -> Any:
        """What an operator gives whose result depends on data, under the knob that wants it captured."""
        scalar = func is torch.ops.aten._local_scalar_dense.default
        if not (config.capture_scalar_outputs if scalar else config.capture_dynamic_output_shape_ops):
            return NotImplemented
        symbols = self.sizes.symbols
        if symbols is None:
            raise NeedsSymbols
        if inner:
            raise Break("inner-graph", f"{func}, whose result depends on data")
        if happened:
            raise Break("data-dependent-value", f"{func}, after a write or a random number: an assumption may not hold")
        if scalar and not self.gives_number:
            raise ReadsNumber(args[0], str(func))

        def new(kind: str, most: Any = None) -> Any:
            same = (func, id(args[0]), args[0]._version)
            if same in self._sizes:
                return self._sizes[same][0]
            known = len(symbols.bound)
            made = symbols.bind(kind, None if most is None else expr_of(most))
            if kind == "float":
                symbols.greatest[tuple(symbols.bound)[known]] = torch.finfo(args[0].dtype).max
                symbols.checked.update(tuple(symbols.bound)[known:])
            self.binding.append((made, tuple(symbols.bound)[known:]))
            if kind == "size":
                self._sizes[same] = made, args[0]
            return made

        with mode:
            return BINDS[func](new, *args, **kwargs)

    def note(self, node: fx.Node, result: Any) -> dict[Any, fx.Node]:
        """Where what `node` binds is read: of results sizes, or the number that is the result, for which the node stands."""
        node.meta["binds"], self.binding = self.binding, []
        if not has_tensor(result):
            return self._note_number(node, result)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for _, names in node.meta["binds"]:
            found = [(t, dim) for t in results if isinstance(t, torch.Tensor)
                     for dim, n in enumerate(t.shape) if is_symbolic(n) and [expr_of(n)] == [*map(Expr.sym, names)]]  # fmt: skip
            if not found:
                raise Break(
                    "data-dependent-value", f"{name_of(node.target)}, which reads a number that no result shows"
                )
            t, dim = found[0]
            self.readings[names[0]] = Reading(self.by_fake[id(t)], None, late.size, (dim,), None)
        return {}

    def _note_number(self, node: fx.Node, result: Any) -> dict[Any, fx.Node]:
        if len(node.meta["binds"]) != 1:
            raise Break("data-dependent-value", f"{name_of(node.target)}, of several numbers")
        ((_, names),) = node.meta["binds"]
        tensor = self.by_fake[id(node.all_input_nodes[0].meta["example_value"])]
        reads = (late.positive, late.negative) if len(names) == 2 else (None,)
        for name, read in zip(names, reads, strict=True):
            self.readings[name] = Reading(tensor, version_of(tensor.node), read, (), node)
        return {result.node.value: node} if len(names) == 2 else {}

    def node_of(self, name: str) -> fx.Node:
        """The node of a symbol that a call binds."""
        at, symbols = self.readings[name], self.sizes.known_symbols
        if at.item is not None and name in symbols.floats:
            return at.item
        assert at.read is not None
        node = self.graph.call_function(at.read, (at.item or at.tensor.node, *at.args))
        node.meta["example_value"] = symbols.int(Expr.sym(name))
        return node

    def must_check(self) -> bool:
        """Whether something is assumed of what a call binds, although nothing of the graph may be returned."""
        symbols = self.sizes.known_symbols if self.readings else None
        return symbols is not None and bool(symbols.late or symbols.late_limits)

    def check(self, inputs: Iterable[torch.Tensor], symbol: Callable[[str], fx.Node]) -> None:
        """A node behind what binds symbols that looks if what is assumed of them holds; more may be assumed later, of these
        and of the sizes of inputs.  `symbol` gives a symbol's node."""
        if not self.readings:
            return
        symbols = self.sizes.known_symbols
        last = next(n for n in reversed(self.graph.nodes) if "binds" in n.meta)
        symbols.checked &= symbols.late_limits.keys()
        wanted = {n for r in symbols.late for n in r.expr.symbols} | symbols.checked
        for fake in inputs:
            wanted |= {s for n in fake.shape if is_symbolic(n) for s in expr_of(n).symbols}
        names = sorted(n for n in (wanted | self.readings.keys()) if n in self.readings or n in self.sizes.origins)
        names = [n for n in names if n not in symbols.floats or n in symbols.checked]
        if self.readings.keys().isdisjoint(names):  # of floats that all dtypes hold nothing is assumed
            return
        behind = last.next
        while behind.target is operator.getitem and behind.args[0] is last:  # several results, which sizes are read of
            behind = behind.next
        with self.graph.inserting_before(behind):
            nodes = tuple(symbol(n) for n in names)
            node = self.graph.call_function(late.Check(symbols, names), nodes)
        node.meta["acts"], node.meta["example_value"], node.meta["user"] = True, None, ()
