"""Functional collectives as graph nodes: calls whose results are ready only after a wait.

In: an operator and its arguments.  Out: its results.  Example: the `h` of ``h = all_reduce(x, "sum", "0")`` may only go
to a wait or to the caller.

A result before its wait is in flight: no kernel may read it or write its memory.  The wait has no order relative to
other names of the memory.  torch's own functions wait at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.containers.sequences import List, Sequence
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import process_groups
from pycompiler.operators.process_groups import IN_FLIGHT


def call(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    process_groups.load_shapes()
    name = process_groups.name_of(fn)
    assert name is not None
    given = [t for a in (*args, *kwargs.values()) for t in _tensors(cx, a)]
    if name in process_groups.WAITS:
        return _wait(cx, fn, given, args, kwargs)
    overload = fn if isinstance(fn, OpOverload) else fn.default
    if overload._schema.is_mutable or name in ("isend", "irecv", "batch_p2p_ops"):
        raise Break("unsupported-operation", f"{name}, which uses its arguments' memory after the call")
    if name == "broadcast" and not all(t.is_contiguous for t in given):
        raise Break("unsupported-operation", "broadcast of a tensor that is not contiguous")
    made = cx.graph.call_function(fn, args, kwargs)
    for tensor in _tensors(cx, made):
        tensor.node.meta[IN_FLIGHT] = True
    return made


def _wait(cx: Capture, fn: Any, given: list[Tensor], args: list[Value], kwargs: dict[str, Value]) -> Value:
    # A reader of the memory under another name need not wait.
    if not given or any(IN_FLIGHT not in t.node.meta for t in given):
        raise Break("unsupported-operation", "a wait for a collective that this graph did not start")
    cx.graph.lands = True
    waits = torch.ops._c10d_functional.wait_tensor.default
    try:
        if process_groups.name_of(fn) == "wait_tensor":
            made = cx.graph.call_function(fn, args, kwargs)
        else:  # its shape function returns the arguments themselves
            made = List([cx.graph.call_function(waits, [t], {}) for t in given])
    finally:
        cx.graph.lands = False
    if not _is_torchs(cx):
        for t in _tensors(cx, made):
            cx.facts.storage(t.fake).waited = True
    elif any(t.requires_grad for t in _tensors(cx, made)):
        # Autograd rejects a write to the result of a wait, which is its argument; eager has a separate tensor there.
        copies = [cx.graph.call_method("clone", [t], {}) for t in _tensors(cx, made)]
        made = copies[0] if isinstance(made, Tensor) else List(copies)
    return made


def _is_torchs(cx: Capture) -> bool:
    """Whether a torch function waits for a collective that only it has started."""
    return cx.frames[-1].code.co_filename == torch.distributed._functional_collectives.__file__


def _tensors(cx: Capture, value: Value) -> list[Tensor]:
    value = cx.realize(value)
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value.items for t in _tensors(cx, v)] if isinstance(value, Sequence) else []
