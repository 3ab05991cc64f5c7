"""Graphs that torch.compile captured: their code is captured again, as any function of tensors and numbers is.

In: a graph, the example inputs (real or fake tensors, ints, SymInts) and knobs.  Out: a `CompiledFunction` of the inputs.

One way for all: sizes that torch has as symbols are symbols here from the first call on, operators that take functions
(checkpoints, `cond`, regions) are what they are in any program, and what cannot be captured breaks this graph alone.
Guards are checked on each call again (2.7 us for 100 tensors): torch's own say nothing of what this compiler assumed.
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
from pycompiler.capture.sizes import Key
from pycompiler.ir.source import Source, local
from pycompiler.ir.texts import forward_of
from pycompiler.pipeline.family import Family


def of_graph(gm: fx.GraphModule, example_inputs: Sequence[Any], knobs: dict[str, Any]) -> Callable[..., Sequence[Any]]:
    """See the module.  Nothing is compiled before the first call."""
    gm = with_checkpoints(gm)
    forward = forward_of(gm)
    assert isinstance(forward, MethodType) and isinstance(forward.__func__, FunctionType)
    family = Family(backends.lookup("native"), "native", knobs=knobs)
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    policy = family.sizes_of(forward.__func__.__code__)
    if policy.marked:
        for node, value in zip(inputs, example_inputs, strict=True):  # a tensor is given without its symbols
            policy.changed.update(symbolic(local(str(node.target)), node.meta.get("example_value", value)))
    return MethodType(functools.update_wrapper(family.compiled(forward.__func__), forward.__func__), gm)


def with_checkpoints(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph with torch's mark of checkpoints replaced by checkpoints: the mark leaves it to the compiler that the
    second run draws the first one's random numbers, also where the graph would run as it is."""
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


def symbolic(source: Source, value: Any) -> Iterator[Key]:
    """What of an example input is a symbol of torch's."""
    if isinstance(value, torch.SymInt):
        yield source, "int", 0
    elif isinstance(value, torch.SymFloat):
        yield source, "float", 0
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield from ((source, "size", d) for d, n in enumerate(value.shape) if not isinstance(n, int))


backends.of_graph = of_graph
