"""In-place writes of a captured node's call, found by the versions of its arguments, and writes that eager refuses.

In: a node and its arguments.  Out: `LayoutVersion`s, before and after the call; `AutogradUnsupported` for refused writes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.recorder import overlaps_itself, tensors_in
from pycompiler.autograd.trace.inputs import inner, storage_of
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.operators import functional_twins

aten = torch.ops.aten


@dataclass(frozen=True)
class LayoutVersion:
    """The layout and version of a tensor before a call."""

    tensor: torch.Tensor
    value: torch.Tensor  # the inner tensor of a functional wrapper: a write replaces it
    version: int
    storage: int
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int | torch.SymInt

    @classmethod
    def of(cls, t: torch.Tensor) -> LayoutVersion:
        if t.layout is not torch.strided:
            return cls(t, inner(t), t._version, 0, t.shape, (), 0)
        return cls(t, inner(t), t._version, storage_of(t), t.shape, t.stride(), t.storage_offset())

    @property
    def is_written(self) -> bool:
        t = self.tensor
        return t._version != self.version or (
            torch._is_functional_tensor(t) and torch._from_functional_tensor(t) is not self.value
        )

    @property
    def extent(self) -> tuple[int, int]:
        """The first and the last byte that it covers, counted from the start of its storage."""
        size = self.tensor.element_size()
        first: Any = self.offset
        last = first + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return first * size, (last + 1) * size - 1

    def meets(self, other: LayoutVersion, by_element: bool) -> bool:
        """Whether another place of the same storage may overlap this one, except element by element."""
        if 0 in self.shape or 0 in other.shape:
            return False
        (a, b), (c, d) = self.extent, other.extent
        if b < c or d < a:
            return False
        same = (a, self.shape, self.strides) == (c, other.shape, other.strides)
        return not (by_element and same and self.tensor.dtype == other.tensor.dtype)


class CallArguments:
    """The arguments of a call, as they were before: `out` first, then argument by argument."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        named = (kwargs[k] for k in sorted(kwargs, key=lambda k: k != "out"))
        ordered = chain(named, args) if kwargs.get("out") is not None else chain(args, named)
        self.places = []
        self.listed: list[LayoutVersion] = []
        self.row: dict[int, int] = {}  # identity of a place -> its index in its list
        for a in ordered:
            self.places.append([LayoutVersion.of(t) for t in tensors_in(a)])
            if isinstance(a, (list, tuple)):
                self.listed += self.places[-1]
                self.row |= {id(p): i for i, p in enumerate(self.places[-1])}

    def written(self) -> tuple[list[LayoutVersion], list[LayoutVersion]]:
        """The places that the call has written, and the places that it has only read.

        A version belongs to a memory.  If several arguments share written memory, the operator writes the first (`out`
        comes first).
        """
        wrote: list[LayoutVersion] = []
        read: list[LayoutVersion] = []
        taken: set[int] = set()
        for places in self.places:
            now = [p for p in places if p.is_written and p.storage not in taken]
            wrote += now
            fresh = {id(p) for p in now}
            read += [p for p in places if id(p) not in fresh]
            taken.update(p.storage for p in now if p.storage)
        return wrote, read

    def count(self) -> None:
        """Count writes to tensors in lists.

        Eager's kernels call further operators for each tensor, which count (`torch._foreach_add_`); functional tensors
        do not.
        """
        for p in self.listed:
            if p.tensor._version == p.version and p.is_written:
                torch.autograd.graph.increment_version(p.tensor)


def name_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def is_metadata(node: fx.Node) -> bool:
    """Whether the call is `t_`, `squeeze_` or similar, which changes a tensor's layout but no element."""
    packet = getattr(aten, name_of(node), None)
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads())


def refuse_overlap(
    node: fx.Node,
    wrote: Sequence[LayoutVersion],
    read: Sequence[LayoutVersion],
    into: LayoutVersion | None = None,
    row: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Refuse writes to memory that the call also reads.

    Eager's kernels refuse some of these writes, and do others element after element; only the kernels know which.
    `into`: the part that `x[...] = y` writes.
    `row`: see `CallArguments`.  Operators on lists go row by row, so an element may share memory only with an argument in its
    own row.
    """
    by_element = _by_element(node) if node.target is not operator.setitem else into is not None
    lists = str(getattr(node.target, "__name__", "")).startswith(FOREACH)

    def in_place(a: LayoutVersion, b: LayoutVersion) -> bool:
        return by_element and (not lists or (id(a) in row and row[id(a)] == row.get(id(b))))

    targets = [into] if into is not None else wrote
    others: dict[int, list[LayoutVersion]] = {}
    for p in (*targets, *read):
        if p.storage:
            others.setdefault(p.storage, []).append(p)
    for t in targets:
        if t.storage and (
            overlaps_itself(t.tensor, t.shape, t.strides)
            or any(o is not t and t.meets(o, in_place(t, o)) for o in others[t.storage])
        ):
            raise AutogradUnsupported(
                "a write to elements that share memory", node.format_node() or "", "clone it first"
            )


def part_of(node: fx.Node, args: Sequence[Any]) -> LayoutVersion | None:
    """The part of its first argument that `x[...] = y` writes, if the part is a view."""
    if node.target is not operator.setitem or not _is_basic(args[1]):
        return None
    return LayoutVersion.of(args[0][args[1]])


def may_overlap(value: Any) -> bool:
    """Whether a tensor may have two elements in one place of memory (expanded, windows).

    Eager refuses most writes to such a tensor, or does them in the order of its elements.
    """
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and overlaps_itself(value)


def _is_basic(index: Any) -> bool:
    """Whether an index gives a view."""
    items = index if isinstance(index, tuple) else (index,)
    return all(
        i is None or i is ... or (isinstance(i, slice | int | torch.SymInt) and not isinstance(i, bool)) for i in items
    )


def _by_element(node: fx.Node) -> bool:
    """Whether each element of the result depends only on the arguments' elements at the same position."""
    name = name_of(node)
    packet = getattr(aten, _OPERATORS.get(name, name).removeprefix(FOREACH).rstrip("_"), None)
    return (
        packet is not None
        and functional_twins.writing(node.target) is None
        and (packet is aten.copy or torch.Tag.pointwise in getattr(packet, packet.overloads()[0]).tags)
    )


FOREACH = "_foreach_"
_OPERATORS = {
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow", "setitem": "copy"
}  # fmt: skip
