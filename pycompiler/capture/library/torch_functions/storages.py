"""Queries about a tensor's memory: its size and the tensor's offset in it, never its address.

For existing tensors both are guarded, since no other guard compares them.  For tensors of the graph they are the
fakes'.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.semantics.torch_polyfills import COMPOSED
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.tensor import METHODS, Storage, Tensor
from pycompiler.operators import ctc_loss


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def offset_of(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset())


def _plain(cx: Capture, args: Args, kwargs: Kwargs, what: str) -> Tensor:
    tensor = args[0]
    if len(args) != 1 or kwargs or not isinstance(tensor, Tensor):
        raise Break("unsupported-operation", f"Tensor.{what} with arguments")
    plain = tensor.layout is torch.strided and not tensor.wrapper and tensor.cls in (torch.Tensor, torch.nn.Parameter)
    if not plain or cx.graph.levels or hasattr(cx.graph, "outer") or cx.facts.swaps or cx.facts.is_copy(tensor.fake):
        raise Break("unsupported-operation", f"Tensor.{what} of {tensor.describe()}")
    return tensor


def _given(cx: Capture, tensor: Tensor) -> Tensor | None:
    """The existing tensor that owns this memory, or None. Breaks if several inputs share it."""
    place = tensor.memory
    found = [t for t in cx.graph.inputs if t.layout is torch.strided and t.memory == place]
    if len(found) > 1 or any(t.source is None or t.real is None for t in found):
        raise Break("unsupported-operation", "a query of the storage that several tensors share")
    return found[0] if found else None


def _asked(cx: Capture, tensor: Tensor, question: Any) -> int:
    assert tensor.source is not None
    answer = question(tensor.real)
    cx.guard("equals", tensor.source.then("begun", question), answer)
    return int(answer)


def untyped_storage(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    tensor = _plain(cx, args, kwargs, "untyped_storage()")
    given = _given(cx, tensor)
    return Storage(tensor, cx.make(bytes_of(tensor.fake)) if given is None else Const(_asked(cx, given, bytes_of)))


def storage_offset(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    tensor = _plain(cx, args, kwargs, "storage_offset()")
    given, at = _given(cx, tensor), tensor.offset
    if given is None:
        return cx.make(at)
    return cx.make(_asked(cx, given, offset_of) + (at - given.offset))


METHODS["untyped_storage"] = untyped_storage
METHODS["storage_offset"] = storage_offset


def _inlined_method(name: str) -> Any:
    """A tensor method that torch has in Python, which calls the function."""
    written = getattr(torch.Tensor, name, None)
    if not isinstance(written, types.FunctionType):
        return None
    return lambda cx, args, kwargs: cx.inline(cx.make(written), args, kwargs)


def _composed(fn: Any, inlined: Any) -> None:
    @builtin(fn)
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if cx.functions.concerns(args, kwargs):
            return cx.graph.call_function(fn, args, kwargs)
        return cx.call(cx.make(inlined), args, kwargs)

    METHODS[fn.__name__] = _inlined_method(fn.__name__) or call


builtin(ctc_loss.losses)(lambda cx, args, kwargs: cx.graph.call_function(ctc_loss.losses, args, kwargs))
for _fn, _inlined in COMPOSED.items():
    _composed(_fn, _inlined)
