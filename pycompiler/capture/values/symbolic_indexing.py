"""Indexing by symbols: `a[:, n - 1]` becomes `a[:, :].select(1, n - 1)`, since torch's indexing would need the number.

In: a tensor and a key of numbers, slices, None and `...`.  Out: the key with full slices in place of the symbols, and
(dimension, symbol) of each such slice.  All these keys create views, so their order does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Slice, Tuple
from pycompiler.capture.values.symbolic_numbers import Symbolic
from pycompiler.symbolic.symbols import hint_of

if TYPE_CHECKING:
    from pycompiler.capture.values.tensor import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
FULL: list[Value] = [Const(None)] * 3


def index_by_symbols(cx: Capture, tensor: Tensor, key: Value, *stored: Value) -> Value | None:
    """``tensor[key]`` for a key with symbols, as the result or as the target of a store (`stored`).

    None for another key, and for one that is out of range for the sizes of this call.
    """
    found = _parts(cx, tensor, key)
    if found is None or cx.functions.concerns([tensor, *stored], {}):
        return None
    rest, selects = found
    plain = all(isinstance(item, Slice) and item.parts is FULL for item in rest)
    view = tensor if plain else tensor.getitem(cx, Tuple(rest))
    for dim, index in reversed(selects):
        size = hint_of(view.shape[dim])  # type: ignore[attr-defined]
        if not -size <= hint_of(index.sym) < size:
            return None
        view = cx.graph.call_method("select", [view, Const(dim), index], {})
    return view


def plain_key(key: Value) -> Value:
    """The key with NumPy scalars replaced by Python numbers, and arrays by tensors."""
    if type(key) is Tuple and key.cls is tuple:
        items = [plain_key(v) for v in key.items]
        return Tuple(items) if any(a is not b for a, b in zip(items, key.items, strict=True)) else key
    if isinstance(key, Slice):
        parts = [plain_key(v) for v in key.parts]
        return Slice(parts) if any(a is not b for a, b in zip(parts, key.parts, strict=True)) else key
    return key.as_index()


def index_by_mapped(cx: Capture, tensor: Tensor, key: Value) -> Value | None:
    """``tensor[key]`` inside of `vmap`, for a key with integer tensors that vmap maps; None for another key.

    Each mapped call has other indices, so their values are never read.
    """
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


def index_by_copy(cx: Capture, tensor: Tensor, key: Value) -> Value | None:
    """``tensor[key]`` for a key with integer tensors: a copy instead of eager's view.

    Eager reads the integers and returns a view.  A copy is equivalent while it stays inside of the graph and neither it
    nor the tensor is written (`GraphBuilder.picks`).  None for another key, and where the copy would have another
    layout.
    """
    key = cx.realize(key)
    items = [cx.realize(v) for v in key.items] if isinstance(key, Tuple) and key.cls is tuple else [key]
    plain = all(_is_scalar_tensor(v) or isinstance(v, Slice) or (isinstance(v, Const) and _is_number(v)) for v in items)
    if not plain or not any(map(_is_scalar_tensor, items)) or len(items) > tensor.rank:
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
    """Whether `flex_attention` accepts it as an index: a tensor, or an int (also True)."""
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
    if taken > tensor.rank or sum(_is(v, ...) for v in items) > 1:
        return None
    dim, rest, selects = 0, [], []
    for v in items:
        if isinstance(v, Symbolic):
            selects.append((dim, v))
        rest.append(Slice(FULL) if isinstance(v, Symbolic) else v)
        dim += tensor.rank - taken if _is(v, ...) else 0 if _is_number(rest[-1]) else 1
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
