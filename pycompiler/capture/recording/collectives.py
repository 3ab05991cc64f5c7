"""Functional collectives as nodes of the graph: calls that begin what is over when their results were waited for.

In: an operator and its arguments.  Out: its results.  Example: of ``h = all_reduce(x, "sum", "0")`` nothing but a wait, and
the caller, may have `h`.

A result that was not waited for is in flight: no kernel may read it, or write its memory, and nobody sees an order between
the wait and who has the same memory by another name.  Programs of torch's own functions wait at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.sequences import List, Sequence
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import process_groups
from pycompiler.ir.kernels import memory_of
from pycompiler.ir.process_groups import FLIES


def call(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    process_groups.load_shapes()
    name = process_groups.name_of(fn)
    assert name is not None
    given = [t for a in (*args, *kwargs.values()) for t in _tensors(cx, a)]
    if name in process_groups.WAITS:
        return _wait(cx, fn, given, args, kwargs)
    overload = fn if isinstance(fn, OpOverload) else fn.default
    if overload._schema.is_mutable or name in ("isend", "irecv", "batch_p2p_ops"):
        raise Break("unsupported-operation", f"{name}, which writes what is in flight")
    if name == "broadcast" and not all(t.fake.is_contiguous() for t in given):
        raise Break("unsupported-operation", "broadcast of what is not contiguous")
    made = cx.graph.call_function(fn, args, kwargs)
    for tensor in _tensors(cx, made):
        tensor.node.meta[FLIES] = True
    return made


def _wait(cx: Capture, fn: Any, given: list[Tensor], args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not given or any(FLIES not in t.node.meta for t in given):  # who reads its memory by another name need not wait
        raise Break("unsupported-operation", "a wait for what this graph did not begin")
    cx.graph.lands = True
    waits = torch.ops._c10d_functional.wait_tensor.default
    try:
        if process_groups.name_of(fn) == "wait_tensor":
            made = cx.graph.call_function(fn, args, kwargs)
        else:  # whose shape function gives the very tensors that it was given
            made = List([cx.graph.call_function(waits, [t], {}) for t in given])
    finally:
        cx.graph.lands = False
    if not _is_torchs(cx):
        cx.graph.waited |= {memory_of(t.fake) for t in _tensors(cx, made)}
    elif any(t.fake.requires_grad for t in _tensors(cx, made)):
        # autograd refuses a write to what a wait gives, which is what it was given; eager has a tensor of its own there
        copies = [cx.graph.call_method("clone", [t], {}) for t in _tensors(cx, made)]
        made = copies[0] if isinstance(made, Tensor) else List(copies)
    return made


def _is_torchs(cx: Capture) -> bool:
    """Whether one of torch's functions waits for what only it has begun."""
    return cx.frames[-1].code.co_filename == torch.distributed._functional_collectives.__file__


def _tensors(cx: Capture, value: Value) -> list[Tensor]:
    value = cx.realize(value)
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value.items for t in _tensors(cx, v)] if isinstance(value, Sequence) else []
