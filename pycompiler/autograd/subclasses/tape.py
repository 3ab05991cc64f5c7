"""Recording of the operators that a function runs on plain tensors, below autograd and below tensor subclasses.

In: a function, fake arguments, and symbols.  Out: a graph of ATen operators with these as placeholders.

Example: for ``lambda a: [TwoTensor(a, a).sin().a]`` the graph contains ``sin(a)`` twice; the second one is unused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from pycompiler.autograd.recorder import functional
from pycompiler.symbolic.number_nodes import Numbers, symbol_of
from pycompiler.torch_compat.dispatch_modes import OwnMode
from pycompiler.torch_compat.jagged_tensors import is_nested_int
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
_MOST = 256  # most elements of a tensor that becomes a list in the graph
_DEVICE = torch.ops.prim.device.default
_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd


IN_FORWARD = "ahead"
"""Marks nodes of the forward: a collective stays in the forward, whichever graph reads its result."""


class Unrecorded(Exception):
    """An operation that no graph of plain tensors can compute."""


def record(
    mode: FakeTensorMode,
    run: Callable[..., Sequence[torch.Tensor]],
    given: Sequence[torch.Tensor],
    symbols: Sequence[Any],
) -> fx.Graph:
    """The graph of `run(*given)`; each node's `meta["val"]` is its value."""
    tape = _OperatorRecorder()
    for i, value in enumerate((*given, *symbols)):
        tape.placeholder(f"arg{i}", value)
    with mode, torch.autograd.set_multithreading_enabled(False), tape:  # type: ignore[attr-defined]
        try:
            results = run(*given)
        except DATA_DEPENDENT as e:
            raise Unrecorded(f"{e}, whose result depends on data") from e
    tape.graph.output([tape.node(t) for t in results])
    return tape.graph


def mark_ahead() -> None:
    """Mark all nodes recorded so far as nodes of the forward."""
    tape = _get_current_dispatch_mode()
    assert isinstance(tape, _OperatorRecorder)
    for node in tape.graph.nodes:
        node.meta[IN_FORWARD] = True


def without_writes(mode: FakeTensorMode, graph: fx.Graph) -> fx.Graph:
    """The graph without in-place writes to its own intermediate values."""
    inputs = graph.find_nodes(op="placeholder")
    given = [n.meta["val"] for n in inputs if isinstance(n.meta["val"], torch.Tensor)]
    module = fx.GraphModule({}, graph, class_name="WritingGraph")

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        with functional():
            tensors = iter(map(torch._to_functional_tensor, given))
            values = [next(tensors) if isinstance(v := n.meta["val"], torch.Tensor) else v for n in inputs]
            made = module(*values)
            for t in made:
                torch._sync(t)  # type: ignore[no-untyped-call]
            return [torch._from_functional_tensor(t) for t in made]

    symbols = [n.meta["val"] for n in inputs if not isinstance(n.meta["val"], torch.Tensor)]
    with torch.no_grad():
        return record(mode, run, given, symbols)


def _name(func: OpOverload) -> str:
    return func.name()  # type: ignore[no-any-return, no-untyped-call]


class _OperatorRecorder(OwnMode):
    """A mode that appends operators to a graph.

    After an in-place write, the written tensor stands for the operator's result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.numbers = Numbers(self.graph, {})
        self._node_of: dict[int, fx.Node] = {}

    def placeholder(self, name: str, value: Any) -> None:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._node_of[id(value)] = node
        elif (symbol := symbol_of(value)) is not None:
            self.numbers.symbols[symbol] = node

    def node(self, t: torch.Tensor) -> fx.Node:
        found = self._node_of.get(id(t))
        return self._constant(t) if found is None else found

    def _constant(self, t: torch.Tensor) -> fx.Node:
        if isinstance(t, FakeTensor) or t.numel() > _MOST or t.requires_grad or t.layout is not torch.strided:
            raise Unrecorded("a tensor that is neither an input nor a small constant")
        with _disable_current_modes():
            numbers = t.tolist()
        node = self.graph.call_function(torch.tensor, (numbers,), {"dtype": t.dtype, "device": t.device})
        node.meta["val"] = t
        self._node_of[id(t)] = node
        return node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_tensor_subclass, types)):
            return NotImplemented  # the class's own `__torch_dispatch__` runs
        if func is _DEVICE:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        if isinstance(func, OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(_name(func), _IMPLICIT):
            with self:
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        out = func(*args, **kwargs)
        nodes = fx.node.map_aggregate((tuple(args), dict(kwargs)), self._argument)
        node = self.graph.call_function(func, *nodes)  # type: ignore[misc, arg-type]
        node.meta["val"] = out
        self._note(out, node)
        return out

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node(value)
        if is_nested_int(value):
            raise Unrecorded("the size of a ragged dimension as an argument")
        return self.numbers.arguments(value)

    def _note(self, out: Any, node: fx.Node) -> None:
        if isinstance(out, torch.Tensor):
            self._node_of[id(out)] = node
        elif isinstance(out, (tuple, list)):
            for i, item in enumerate(out):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    part.meta["val"] = item
                    self._note(item, part)
