"""Symbolic floats for a user's backend: each becomes a tensor of one number, which the graph reads first.

torch.compile passes floats this way.  Backends made for it do not know the symbolic numbers of this package.  In: a
captured graph and its example inputs.  Out: another graph, examples of torch's own for it, and a wrapper of its
result.
Example: ``f(x, lr): x * lr`` becomes ``f(x, t): x * t.item()``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from pycompiler.symbolic.number_nodes import symbol_of
from pycompiler.torch_compat.fake_mode import as_plain
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass


def places(examples: Sequence[Any]) -> tuple[int, ...]:
    """The positions of symbolic floats; empty if torch has no examples for another input."""
    found = tuple(i for i, e in enumerate(examples) if isinstance(e, torch.SymFloat))
    others = [e for e in examples if not isinstance(e, torch.SymFloat)]
    if any(not isinstance(e, torch.Tensor) or is_tensor_subclass(type(e)) for e in others):
        return ()
    return found


def names(examples: Sequence[Any]) -> list[str]:
    return [str(symbol_of(e)) for e in examples if isinstance(e, torch.SymFloat)]


def read_first(gm: fx.GraphModule, floats: Sequence[int]) -> fx.GraphModule:
    """A copy of the graph that takes tensors for its inputs at `floats`."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(gm.graph, copied)
    old = [n for n in gm.graph.nodes if n.op == "placeholder"]
    last = copied[old[-1]]
    for i in reversed(floats):
        given = copied[old[i]]
        with graph.inserting_after(last):
            number = graph.call_method("item", (given,))
        number.meta = dict(given.meta)
        given.replace_all_uses_with(number, delete_user_cb=partial(operator.is_not, number))
    graph.output(result).meta = dict(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph, type(gm).__name__)


def examples_for(examples: Sequence[Any]) -> list[torch.Tensor]:
    """Fakes of one torch fake mode. Their numbers are symbols of torch, without assumptions."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    zero = torch.zeros((), dtype=torch.float64)
    plain = [zero if isinstance(e, torch.SymFloat) else as_plain(e) for e in examples]
    return [mode.from_tensor(t, static_shapes=True) for t in plain]


class TakesTensors:
    """The callable of a backend for such a graph, called with tensors for floats; `inside`: the backend's callable."""

    def __init__(self, inside: Callable[..., Any], floats: Sequence[int]) -> None:
        self.inside, self.floats = inside, frozenset(floats)

    def __call__(self, *inputs: Any) -> Any:
        return self.inside(
            *(
                torch.tensor(v, dtype=torch.float64, device="cpu") if i in self.floats else v
                for i, v in enumerate(inputs)
            )
        )
