"""Floats that are symbols, for a backend that is not ours: each is a tensor of one number that the graph reads first, as
torch.compile hands them over, since backends made for that do not know numbers of ours.

In: a captured graph and its example inputs.  Out: another graph, examples of torch's own for it, and what calls its result.
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

from pycompiler.ir.fake import as_plain
from pycompiler.ir.numbers import symbol_of
from pycompiler.ir.subclasses import is_wrapper


def places(examples: Sequence[Any]) -> tuple[int, ...]:
    """Which inputs are such floats; none where another input is not what torch has examples of."""
    found = tuple(i for i, e in enumerate(examples) if isinstance(e, torch.SymFloat))
    others = [e for e in examples if not isinstance(e, torch.SymFloat)]
    if any(not isinstance(e, torch.Tensor) or is_wrapper(type(e)) for e in others):
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
    """Fakes of one mode of torch's, of which numbers can be taken: they are symbols of torch's, of which nothing is known."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    zero = torch.zeros((), dtype=torch.float64)
    plain = [zero if isinstance(e, torch.SymFloat) else as_plain(e) for e in examples]
    return [mode.from_tensor(t, static_shapes=True) for t in plain]


class TakesTensors:
    """Calls what a backend made of such a graph; `inside` it is."""

    def __init__(self, inside: Callable[..., Any], floats: Sequence[int]) -> None:
        self.inside, self.floats = inside, frozenset(floats)

    def __call__(self, *inputs: Any) -> Any:
        return self.inside(
            *(
                torch.tensor(v, dtype=torch.float64, device="cpu") if i in self.floats else v
                for i, v in enumerate(inputs)
            )
        )
