"""Indices that are symbols: `a[:, n - 1]` is `a[:, :].select(1, n - 1)`, since torch's indexing asks for the numbers of indices.

In: a tensor and a key.  Out: the key with full slices in the places of symbols, and (dimension, symbol) of each such slice.
Keys of numbers, slices, None and `...` only: they give views, whatever the order in which they are taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.sequences import Slice, Tuple
from pycompiler.capture.values.symbolic import Symbolic
from pycompiler.ir.symbols import hint_of

if TYPE_CHECKING:
    from pycompiler.capture.values.tensor import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
FULL: list[Value] = [Const(None)] * 3


def selected(cx: Capture, tensor: Tensor, key: Value, *stored: Value) -> Value | None:
    """``tensor[key]`` of a key with symbols, which is read, or where something is `stored`; None for another key, and one that
    does not fit today's sizes."""
    found = _parts(cx, tensor, key)
    if found is None or cx.functions.concerns([tensor, *stored], {}):
        return None
    rest, selects = found
    plain = all(isinstance(item, Slice) and item.parts is FULL for item in rest)
    view = tensor if plain else tensor.getitem(cx, Tuple(rest))
    for dim, index in reversed(selects):
        size = hint_of(view.fake.shape[dim])  # type: ignore[attr-defined]
        if not -size <= hint_of(index.sym) < size:
            return None
        view = cx.graph.call_method("select", [view, Const(dim), index], {})
    return view


def plain_key(key: Value) -> Value:
    """A key with integers and arrays of NumPy's as one with Python's and tensors."""
    if type(key) is Tuple and key.cls is tuple:
        items = [plain_key(v) for v in key.items]
        return Tuple(items) if any(a is not b for a, b in zip(items, key.items, strict=True)) else key
    if isinstance(key, Slice):
        parts = [plain_key(v) for v in key.parts]
        return Slice(parts) if any(a is not b for a, b in zip(parts, key.parts, strict=True)) else key
    return key.as_index()


def by_mapped(cx: Capture, tensor: Tensor, key: Value) -> Value | None:
    """``tensor[key]`` inside of `vmap`, of a key with integers as tensors that it maps: each call would get another one, so no
    call asks for their numbers; None for another key."""
    key = cx.realize(key)
    items = [cx.realize(v) for v in key.items] if isinstance(key, Tuple) and key.cls is tuple else [key]
    if cx.graph.indexes and not cx.functions.concerns(items, {}) and all(map(_is_index, items)):
        return cx.graph.indexed(tensor, items)
    numbers: list[Any] = [v for v in items if _is_scalar_tensor(v)]
    if (
        not numbers
        or not cx.graph.levels
        or not all(map(cx.graph.is_mapped, numbers))
        or cx.functions.concerns(items, {})
    ):
        return None
    return cx.graph.index_mapped(tensor, key)


def picked(cx: Capture, tensor: Tensor, key: Value) -> Value | None:
    """``tensor[key]`` of a key with integers as tensors, which eager asks for their numbers and gives a view of: a copy, while it
    stays inside of the graph and nobody writes it or the tensor (`GraphBuilder.picks`).  None for another key, and where a
    copy would lie otherwise."""
    key = cx.realize(key)
    items = [cx.realize(v) for v in key.items] if isinstance(key, Tuple) and key.cls is tuple else [key]
    plain = all(_is_scalar_tensor(v) or isinstance(v, Slice) or (isinstance(v, Const) and _is_number(v)) for v in items)
    if not plain or not any(map(_is_scalar_tensor, items)) or len(items) > tensor.fake.dim():
        return None
    if cx.graph.is_inner or cx.graph.takes_items() or cx.functions.concerns([tensor, *items], {}):
        return None
    view, before = tensor, list[Value]()
    for item in items:
        if not _is_scalar_tensor(item):
            before.append(item)
            continue
        view = _taken(cx, view, before)
        dim = sum(isinstance(v, Slice) for v in before)
        row = cx.graph.pick(view, dim, item)
        if row is None:
            return None
        view, before = row, [Slice(FULL)] * dim
    made: Value = _taken(cx, view, before)
    return made


def _taken(cx: Capture, view: Any, items: list[Value]) -> Any:
    if all(isinstance(v, Slice) and v.parts is FULL for v in items):
        return view
    return view.getitem(cx, Tuple(items))


def _is_index(value: Value) -> bool:
    """Whether `flex_attention` takes it for one: a tensor, or an integer, as which True is one, too."""
    if isinstance(value, Symbolic):
        return value.python_type() is int
    return isinstance(getattr(value, "fake", None), torch.Tensor) or (
        isinstance(value, Const) and isinstance(value.value, int)
    )


def _is_scalar_tensor(value: Value) -> bool:
    fake = getattr(value, "fake", None)
    return isinstance(fake, torch.Tensor) and not fake.dim() and fake.dtype in INTEGERS


def _parts(cx: Capture, tensor: Tensor, key: Value) -> tuple[list[Value], list[tuple[int, Symbolic]]] | None:
    key = cx.realize(key)
    items = [cx.realize(v) for v in key.items] if isinstance(key, Tuple) and key.cls is tuple else [key]
    if not any(isinstance(v, Symbolic) for v in items) or not all(map(_is_basic, items)) or cx.graph.levels:
        return None
    taken = sum(isinstance(v, (Symbolic, Slice)) or type(v.const()) is int for v in items)
    if taken > tensor.fake.dim() or sum(_is(v, ...) for v in items) > 1:
        return None
    dim, rest, selects = 0, [], []
    for v in items:
        if isinstance(v, Symbolic):
            selects.append((dim, v))
        rest.append(Slice(FULL) if isinstance(v, Symbolic) else v)
        dim += tensor.fake.dim() - taken if _is(v, ...) else 0 if _is_number(rest[-1]) else 1
    return rest, selects


def _is(value: Value, constant: object) -> bool:
    return not isinstance(value, (Symbolic, Slice)) and value.const() is constant


def _is_number(value: Value) -> bool:
    return not isinstance(value, (Symbolic, Slice)) and type(value.const()) is int


def _is_basic(value: Value) -> bool:
    if isinstance(value, Symbolic):
        return value.python_type() is int
    return isinstance(value, Slice) or (
        isinstance(value, Const) and (_is_number(value) or _is(value, None) or _is(value, ...))
    )
