"""Graphs that torch.compile captured: their code is captured again, like any function of tensors and numbers.

In: a graph, the example inputs (real or fake tensors, ints, SymInts) and knobs.
Out: a `CompiledFunction` of the inputs.

All graphs take the same path.  torch's symbolic sizes are symbols from the first call.  Operators that take functions
(checkpoints, `cond`, regions) are handled as in any program.  A construct that cannot be captured breaks this graph
only.  Guards are checked again on each call (2.7 us for 100 tensors): torch's own guards do not cover this compiler's
assumptions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils.checkpoint import checkpoint

from pycompiler import backends
from pycompiler.capture.recording.input_symbols import SymbolKey
from pycompiler.ir.generated_source import forward_of
from pycompiler.ir.source import Source, local
from pycompiler.pipeline.family import Family


def of_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], knobs: dict[str, Any]) -> Callable[..., Sequence[Any]]:
    """See the module. Nothing is compiled before the first call."""
    gm = with_checkpoints(gm)
    forward = forward_of(gm)
    assert isinstance(forward, MethodType) and isinstance(forward.__func__, FunctionType)
    family = Family(backends.lookup("native"), "native", knobs=knobs)
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    policy = family.sizes_of(forward.__func__.__code__)
    if policy.marked:
        for node, value in zip(inputs, example_inputs, strict=True):  # a tensor comes without its symbols
            policy.changed.update(symbolic(local(str(node.target)), node.meta.get("example_value", value)))
    return MethodType(functools.update_wrapper(family.compiled(forward.__func__), forward.__func__), gm)


def with_checkpoints(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph with torch's mark of checkpoints replaced by checkpoints.

    With the mark, the compiler must make the second run draw the first run's random numbers, even if the graph runs
    uncompiled.
    """
    if not any(n.target is tag_activation_checkpoint for n in gm.graph.nodes):
        return gm
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if node.target is tag_activation_checkpoint:
            node.target = checkpoint
            policy = getattr(gm, node.args[0].target).meta.get("_checkpoint_context_fn")
            node.kwargs = {**node.kwargs, "preserve_rng_state": True, **({"context_fn": policy} if policy else {})}
    return fx.GraphModule(gm, graph)


def symbolic(source: Source, value: Any) -> Iterator[SymbolKey]:
    """The sizes and numbers of an example input that are torch symbols."""
    if isinstance(value, torch.SymInt):
        yield source, "int", 0
    elif isinstance(value, torch.SymFloat):
        yield source, "float", 0
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield from ((source, "size", d) for d, n in enumerate(value.shape) if not isinstance(n, int))


backends.of_graph = of_graph
