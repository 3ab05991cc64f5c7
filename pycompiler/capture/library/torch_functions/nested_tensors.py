"""`torch.nested`: jagged tensors that the program creates are calls of the graph; strided nested tensors break the
graph.

A strided nested tensor is a C++ tensor without sizes or strides, and has no fake.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import LATE_BUILTINS, Args, Kwargs, builtin
from pycompiler.capture.semantics.torch_polyfills import narrowed, rows
from pycompiler.capture.values import tensor as tensors
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.tensor import Tensor, is_row
from pycompiler.torch_compat import jagged_tensors

STRIDED = "a strided nested tensor, whose row sizes are not known during capture (use layout=torch.jagged)"


@functools.cache
def _position(fn: Callable[..., Any], name: str) -> int | None:
    parameters = inspect.signature(fn).parameters
    return list(parameters).index(name) if name in parameters else None


def _maker(fn: Callable[..., Any], inlined: bool) -> Callable[[Capture, Args, Kwargs], Value]:
    """A constructor's handler.
    `inlined`: torch's Python code is inlined down to `VIEWS`; it computes with sizes, maybe symbols."""
    at = _position(fn, "layout")

    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        given = cx.realize(kwargs.get("layout", args[at] if at is not None and at < len(args) else Const(None)))
        if at is not None and (not isinstance(given, Const) or given.value is not torch.jagged):
            raise Break("unsupported-operation", STRIDED)
        return cx.inline(cx.make(fn), args, kwargs) if inlined else call(cx, fn, args, kwargs)

    return make


def call(cx: Capture, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    if cx.graph.levels or cx.functions.concerns(args, kwargs):
        raise Break("tensor-subclass", f"torch.nested.{fn.__name__} under a transform or a mode")
    jagged_tensors.prepare()
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
_narrow = _maker(torch.nested.narrow, True)


@builtin(torch.nested.narrow)
def narrow(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`narrow` by numbers.  For starts and lengths in tensors, torch reads whether rows are adjacent, which decides its
    result."""
    names = ("tensor", "dim", "start", "length", "layout")
    given = dict(zip(names, args, strict=False)) | kwargs
    tensor, dim, start, length, layout = (cx.realize(given.get(n, Const(None))) for n in names)
    numbers = all(v.python_type() is int for v in (start, length))
    whole = isinstance(tensor, Tensor) and type(tensor.fake) is FakeTensor and tensor.rank >= 2
    jagged_ = layout.is_const() and layout.const() is torch.jagged and dim.is_const() and dim.const() == 1
    if numbers and whole and jagged_ and len(given) == 5 and bool(tensor.shape[0] > 0):  # type: ignore[attr-defined]
        return cx.call(cx.make(narrowed), [tensor, start, length], {})
    return _narrow(cx, args, kwargs)


for _fn in (torch.nested.nested_tensor, torch.nested.as_nested_tensor, torch.nested.masked_select):
    builtin(_fn)(_maker(_fn, True))
builtin(torch.nested.nested_tensor_from_jagged)(_maker(torch.nested.nested_tensor_from_jagged, False))
for _name in VIEWS:
    LATE_BUILTINS[_INTERNAL, _name] = _view(_name)
builtin(torch.nested.to_padded_tensor)(to_padded)


# rows ----------------------------------------------------------------------------------------------------------------------
def of_rows(cx: Capture, args: Args, kwargs: Kwargs, dim: int) -> Tensor | None:
    """The jagged tensor that is split along its first dimension, or None.  The split depends on lengths, which are
    data."""
    given = args[0] if args else None
    if (
        not isinstance(given, Tensor)
        or not jagged_tensors.is_jagged(type(given.fake))
        or cx.functions.concerns(args, kwargs)
    ):
        return None
    at = kwargs.get("dim", args[dim] if dim < len(args) else Const(0))
    return given if at.is_const() and at.const() in (0, -given.rank) else None


def unbind(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = of_rows(cx, args, kwargs, 1)
    return cx.graph.call_method("unbind", args, kwargs) if given is None else cx.call(cx.make(rows), [given], {})


def select(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given, index = of_rows(cx, args, kwargs, 1), kwargs.get("index", args[2] if len(args) > 2 else Const(None))
    if given is None or not index.is_const() or not is_row(given, index.const()):
        return cx.graph.call_method("select", args, kwargs)
    return cx.call(cx.make(rows), [given], {}).getitem(cx, index)


tensors.METHODS |= {"unbind": unbind, "select": select}
builtin(torch.unbind)(unbind)
builtin(torch.select)(select)


# attention ------------------------------------------------------------------------------------------------------------------
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False}


@builtin(F.scaled_dot_product_attention)
def attention(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Attention of jagged tensors on the CPU.  Torch splits the rows by lengths, which are data;
    `jagged_tensors.attention` does not."""
    given = dict(zip(_ARGUMENTS, map(cx.realize, args), strict=False)) | kwargs
    tensors = [cx.realize(given[n]) for n in _ARGUMENTS[:3] if n in given]
    heads = [t for t in tensors if isinstance(t, Tensor) and jagged_tensors.is_jagged(type(t.fake))]
    plain = all(name in _ARGUMENTS and _is_default(name, value) for name, value in given.items())
    if len(heads) == 3 and plain and _fits(cx, [t.fake for t in heads]) and all(_is_whole(cx, t) for t in heads[:2]):
        return cx.graph.call_function(
            jagged_tensors.attention, [*heads, *([given["scale"]] if "scale" in given else [])], {}
        )
    return cx.graph.call_function(F.scaled_dot_product_attention, args, kwargs)


def _is_default(name: str, value: Value) -> bool:
    if name not in _DEFAULTS:
        return name != "scale" or (isinstance(value, Const) and type(value.value) in (float, type(None)))
    return isinstance(value, Const) and value.value == _DEFAULTS[name]


def _fits(cx: Capture, heads: Sequence[Any]) -> bool:
    """Whether torch takes the plain path: its other paths raise, draw random numbers, or round otherwise."""
    query, key, value = heads
    if cx.graph.levels or torch.is_autocast_enabled("cpu") or not torch._C._get_math_sdp_enabled():
        return False
    if any(t.device.type != "cpu" or t.dtype not in (torch.float32, torch.float64) or t.dim() != 4 for t in heads):
        return False
    if not all(jagged_tensors.values_of(t).transpose(0, 1).is_contiguous() for t in heads):
        return False  # torch refuses
    alike = all(t._ragged_idx == 2 and t._lengths is None and t.dtype == query.dtype for t in heads)
    sizes = alike and query._size[0] == key._size[0] and query._size[1] == key._size[1] == value._size[1]
    return sizes and query._size[3] == key._size[3] and key._size[:3] == value._size[:3]


def _is_whole(cx: Capture, heads: Tensor) -> bool:
    """Whether the offsets cover all values, and no row is longer than torch's maximum; the graph checks these
    assumptions."""
    fake: Any = heads.fake
    most, total = jagged_tensors.longest(fake), jagged_tensors.values_of(fake).shape[1]
    if most is None:
        return False
    offsets = heads.getattr(cx, "_offsets")
    if not isinstance(offsets, Tensor):
        return False
    if offsets in cx.graph.whole:
        return True
    ends = [cx.graph.call_function(operator.getitem, [offsets, Const(i)], {}) for i in (0, -1)]
    lengths = cx.graph.call_method("diff", [offsets], {})
    holds = [
        cx.graph.call_function(operator.le, [cx.graph.call_method("max", [lengths], {}), cx.make(most)], {}),
        cx.graph.call_function(operator.ge, [cx.graph.call_method("min", [lengths], {}), Const(0)], {}),
        cx.graph.call_function(operator.eq, [ends[0], Const(0)], {}),
        cx.graph.call_function(operator.eq, [ends[1], cx.make(total)], {}),
    ]
    both = functools.reduce(lambda a, b: cx.graph.call_function(torch.logical_and, [a, b], {}), holds)
    if not isinstance(both, Tensor) or not cx.graph.expect(both, True):
        return False
    cx.graph.whole[offsets] = None
    return True
