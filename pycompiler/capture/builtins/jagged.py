"""`torch.nested`: jagged tensors that the program makes are calls of the graph; strided nested tensors break it.

A strided one is a tensor of C++ without sizes or strides, for which there are no fakes.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.calls import LATE, Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import jagged

STRIDED = "a strided nested tensor, whose rows fakes do not know (layout=torch.jagged has them)"


@functools.cache
def _position(fn: Callable[..., Any], name: str) -> int | None:
    parameters = inspect.signature(fn).parameters
    return list(parameters).index(name) if name in parameters else None


def _maker(fn: Callable[..., Any], inlined: bool) -> Callable[[Capture, Args, Kwargs], Value]:
    """`inlined`: torch's Python down to `VIEWS`, which computes with sizes that may be symbols."""
    at = _position(fn, "layout")

    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        given = kwargs.get("layout", args[at] if at is not None and at < len(args) else Const(None))
        if at is not None and (not isinstance(given, Const) or given.value is not torch.jagged):
            raise Break("unsupported-operation", STRIDED)
        return cx.inline(cx.make(fn), args, kwargs) if inlined else call(cx, fn, args, kwargs)

    return make


def call(cx: Capture, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    if cx.graph.levels or cx.functions.concerns(args, kwargs):
        raise Break("tensor-subclass", f"torch.nested.{fn.__name__} under a transform or a mode")
    jagged.prepare()
    return cx.graph.call_function(fn, args, kwargs)


def to_padded(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not args or not isinstance(args[0], Tensor):
        raise Break("builtin-call", "torch.nested.to_padded_tensor")
    return call(cx, torch.nested.to_padded_tensor, args, kwargs)


def _view(name: str) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        return call(cx, getattr(sys.modules[_INTERNAL], name), args, kwargs)

    return make


_INTERNAL = "torch.nested._internal.nested_tensor"
VIEWS = ("nested_view_from_values_offsets", "nested_view_from_values_offsets_lengths")
for _fn in (torch.nested.nested_tensor, torch.nested.as_nested_tensor, torch.nested.narrow, torch.nested.masked_select):
    builtin(_fn)(_maker(_fn, True))
builtin(torch.nested.nested_tensor_from_jagged)(_maker(torch.nested.nested_tensor_from_jagged, False))
for _name in VIEWS:
    LATE[_INTERNAL, _name] = _view(_name)
builtin(torch.nested.to_padded_tensor)(to_padded)
