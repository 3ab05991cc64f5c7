"""Which nodes of a captured graph write what they are given, and which of those writes eager refuses."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.recorder import overlaps_itself, tensors_in
from pycompiler.autograd.trace.inputs import storage_of
from pycompiler.autograd.unsupported import AutogradUnsupported

aten = torch.ops.aten

_IN_PLACE = frozenset((
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow),
    *(operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.setitem),
))  # fmt: skip
_IN_PLACE_METHODS = frozenset(f"__{fn.__name__}__" for fn in _IN_PLACE)


def writes(node: fx.Node) -> bool:
    """True for an operator that, by its name or arguments, writes its first argument or `out`."""
    if node.target in _IN_PLACE or node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_METHODS


def is_metadata(node: fx.Node) -> bool:
    """True for `t_`, `squeeze_` and their kind, which change how a tensor lies, and no element."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    packet = getattr(aten, name, None)
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads())


def refuse_overlap(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Eager's kernels refuse some writes to memory that they also read; which ones only they know."""
    by_element = _by_element(node)
    targets, read = [args[0], kwargs.get("out")], [args[1:], {k: v for k, v in kwargs.items() if k != "out"}]
    if node.target is operator.setitem:
        by_element = _is_basic(args[1])  # else `index_put_`
        targets = [args[0][args[1]] if by_element else args[0]]
    elif kwargs.get("out") is not None:
        targets, read[0] = targets[1:], args
    for t in targets:
        if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
            continue
        others = [o for o in tensors_in(read) if o.layout is torch.strided]
        if may_overlap(t) or any(_meet(t, o, by_element) for o in others):
            raise AutogradUnsupported(
                "a write to elements that share memory", node.format_node() or "", "clone it first"
            )


def may_overlap(value: Any) -> bool:
    """True for a tensor that may have two elements in one place of memory (expanded, windows): eager refuses most writes to
    it, or makes them in the order of its elements."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and overlaps_itself(value)


def _meet(written: torch.Tensor, read: torch.Tensor, by_element: bool) -> bool:
    """Whether a read tensor may have elements of a written one, other than each at its own place."""
    if storage_of(written) != storage_of(read) or not (written.numel() and read.numel()):
        return False
    (a, b), (c, d) = _extent(written), _extent(read)
    if b < c or d < a:
        return False
    same = (a, written.shape, written.stride()) == (c, read.shape, read.stride()) and written.dtype == read.dtype
    return not (same and by_element)


def _is_basic(index: Any) -> bool:
    """Whether an index gives a view."""
    items = index if isinstance(index, tuple) else (index,)
    return all(
        i is None or i is ... or (isinstance(i, slice | int | torch.SymInt) and not isinstance(i, bool)) for i in items
    )


def _extent(t: torch.Tensor) -> tuple[int, int]:
    """The first and the last byte that `t` covers, counted from the start of its storage."""
    first: Any = t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return first * t.element_size(), (last + 1) * t.element_size() - 1


def _by_element(node: fx.Node) -> bool:
    """Whether each element of the result is made of the elements at its place."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    packet = getattr(aten, _OPERATORS.get(name, name).rstrip("_"), None)
    return packet is not None and (
        packet is aten.copy or torch.Tag.pointwise in getattr(packet, packet.overloads()[0]).tags
    )


_OPERATORS = {
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow", "setitem": "copy"
}  # fmt: skip
