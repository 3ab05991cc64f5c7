"""Existing wrappers (`ir/subclasses.py`) as inputs of the graph: what decides what operators do with them is guarded.

In: a tensor of a class with `__torch_dispatch__`.  Out: a `Tensor` whose fake is the same wrapper around fakes, so operators ask
the class while shapes are computed, and again when the graph is compiled.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import guard_mro, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.containers import Dict, Sequence
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import TensorSpec
from pycompiler.ir.source import Source
from pycompiler.ir.source import const as const_source
from pycompiler.ir.subclasses import CONTRACT, answers_by_itself, flatten, same

_KNOWN = (int, float, str, bool, type(None), types.FunctionType, type)


def wrap_wrapper(cx: Capture, real: torch.Tensor, source: Source) -> Value:
    cls = type(real)
    if not answers_by_itself(real):
        raise Break("tensor-subclass", f"{cls.__qualname__}, which is asked for its sizes")
    leaves: list[torch.Tensor] = []
    spec = flatten(real, leaves)
    assert spec is not None
    for leaf in leaves:
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.requires_grad:
            raise Break("tensor-subclass", f"{cls.__qualname__} around a tensor of another kind")
    for name in CONTRACT:
        lookup(cx, cls, name)
    guard_mro(cx, cls)
    hook = lookup(cx, cls, "__torch_dispatch__")
    _guard_names(cx, getattr(hook, "__func__", hook), set())
    cx.guard("tensor", source, TensorSpec.of(real))
    value = cx.graph.add_input(real, source, None, cls)
    _guard_inside(cx, value, real)
    made: list[torch.Tensor] = []
    if not same(flatten(value.fake, made), spec):
        raise Break("tensor-subclass", f"{cls.__qualname__}, which __tensor_unflatten__ makes otherwise")
    return value


def _guard_inside(cx: Capture, value: Tensor, real: torch.Tensor) -> None:
    """What `__tensor_flatten__` reads, by inlining it; and the tensors, whose sizes are numbers."""
    before = bool(cx.effects)
    flat = cx.call(value.getattr(cx, "__tensor_flatten__"), [], {})
    if bool(cx.effects) != before:
        raise Break("tensor-subclass", f"{value.cls.__qualname__}, whose __tensor_flatten__ changes something")
    _settle(cx, flat)
    for name in real.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        inner = cx.realize(value.getattr(cx, name))
        if not isinstance(inner, Tensor) or inner.source is None or inner.real is None:
            raise Break("tensor-subclass", f"{value.cls.__qualname__}.{name}, which is computed")
        cx.guard("tensor", inner.source, TensorSpec.of(inner.real))


def _settle(cx: Capture, value: Value) -> None:
    """Each constant in a context is guarded; nothing else may be in it."""
    value = cx.realize(value)
    if isinstance(value, Sequence):
        for item in [*value.items]:
            _settle(cx, item)
    elif isinstance(value, Dict):
        for key, item in value.pairs(cx):
            _settle(cx, key)
            _settle(cx, item)
    elif value.is_const():
        value.const()
    else:
        raise Break("tensor-subclass", f"{value.describe()} in the context of __tensor_flatten__")


def _guard_names(cx: Capture, fn: Any, seen: set[int]) -> None:
    """Constants, functions and classes that `__torch_dispatch__` names, and what those functions of the program name in turn."""
    if not isinstance(fn, types.FunctionType) or id(fn) in seen:
        return
    seen.add(id(fn))
    cx.wrap(fn, const_source(fn))
    named = [(fn.__globals__.get(n, cx), const_source(fn.__globals__).dict_item(n)) for n in _names(fn.__code__)]
    for i, cell in enumerate(fn.__closure__ or ()):
        named.append((_contents(cell), const_source(fn).then("closure").item(i).then("cell")))
    for found, source in named:
        if type(found) in _KNOWN:
            value = cx.wrap(found, source)
            if value.is_const():
                value.const()
        if not str(getattr(found, "__module__", "torch")).startswith("torch."):
            _guard_names(cx, found, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return cell
