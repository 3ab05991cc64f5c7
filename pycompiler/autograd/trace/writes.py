"""What the call of a captured node writes, told by the versions of what it was given, and which writes eager refuses."""

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
from pycompiler.ir import functional

aten = torch.ops.aten


@dataclass(frozen=True)
class Place:
    """Where a tensor lay before a call, and what it was then."""

    tensor: torch.Tensor
    value: torch.Tensor  # inside of a functional wrapper: a write gives it another
    version: int
    storage: int
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int | torch.SymInt

    @classmethod
    def of(cls, t: torch.Tensor) -> Place:
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

    def meets(self, other: Place, by_element: bool) -> bool:
        """Whether the other, of the same storage, may have elements of this one, other than each at its own place."""
        if 0 in self.shape or 0 in other.shape:
            return False
        (a, b), (c, d) = self.extent, other.extent
        if b < c or d < a:
            return False
        same = (a, self.shape, self.strides) == (c, other.shape, other.strides)
        return not (by_element and same and self.tensor.dtype == other.tensor.dtype)


class Given:
    """What a call is given, as it lay before: `out`, then argument by argument."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        named = (kwargs[k] for k in sorted(kwargs, key=lambda k: k != "out"))
        ordered = chain(named, args) if kwargs.get("out") is not None else chain(args, named)
        self.places = []
        self.listed: list[Place] = []
        self.row: dict[int, int] = {}  # of what is in a list: where, by identity of the place
        for a in ordered:
            self.places.append([Place.of(t) for t in tensors_in(a)])
            if isinstance(a, (list, tuple)):
                self.listed += self.places[-1]
                self.row |= {id(p): i for i, p in enumerate(self.places[-1])}

    def written(self) -> tuple[list[Place], list[Place]]:
        """What the call has written, and what it has only read.  Versions are those of a memory: where several arguments lie
        in one that was written, operators write the first (`out` stands before it)."""
        wrote: list[Place] = []
        read: list[Place] = []
        taken: set[int] = set()
        for places in self.places:
            now = [p for p in places if p.is_written and p.storage not in taken]
            wrote += now
            fresh = {id(p) for p in now}
            read += [p for p in places if id(p) not in fresh]
            taken.update(p.storage for p in now if p.storage)
        return wrote, read

    def count(self) -> None:
        """Writes to tensors of lists are counted by the operators that eager's kernels call for each (`torch._foreach_add_`);
        functional tensors do without these."""
        for p in self.listed:
            if p.tensor._version == p.version and p.is_written:
                torch.autograd.graph.increment_version(p.tensor)


def name_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def is_metadata(node: fx.Node) -> bool:
    """True for `t_`, `squeeze_` and their kind, which change how a tensor lies, and no element."""
    packet = getattr(aten, name_of(node), None)
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, o).tags for o in packet.overloads())


def refuse_overlap(
    node: fx.Node,
    wrote: Sequence[Place],
    read: Sequence[Place],
    into: Place | None = None,
    row: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Eager's kernels refuse some writes to memory that they also read, or make them one after the other; which ones only
    they know.  `into`: the part of what is written that `x[...] = y` writes.  `row`: see `Given`; operators on lists go through
    these, so what an element is made of may be the same in its own row only."""
    by_element = _by_element(node) if node.target is not operator.setitem else into is not None
    lists = str(getattr(node.target, "__name__", "")).startswith(FOREACH)

    def in_place(a: Place, b: Place) -> bool:
        return by_element and (not lists or (id(a) in row and row[id(a)] == row.get(id(b))))

    targets = [into] if into is not None else wrote
    others: dict[int, list[Place]] = {}
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


def part_of(node: fx.Node, args: Sequence[Any]) -> Place | None:
    """The part of its first argument that `x[...] = y` writes, where that is a view."""
    if node.target is not operator.setitem or not _is_basic(args[1]):
        return None
    return Place.of(args[0][args[1]])


def may_overlap(value: Any) -> bool:
    """True for a tensor that may have two elements in one place of memory (expanded, windows): eager refuses most writes to
    it, or makes them in the order of its elements."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and overlaps_itself(value)


def _is_basic(index: Any) -> bool:
    """Whether an index gives a view."""
    items = index if isinstance(index, tuple) else (index,)
    return all(
        i is None or i is ... or (isinstance(i, slice | int | torch.SymInt) and not isinstance(i, bool)) for i in items
    )


def _by_element(node: fx.Node) -> bool:
    """Whether each element of the result is made of the elements at its place."""
    name = name_of(node)
    packet = getattr(aten, _OPERATORS.get(name, name).removeprefix(FOREACH).rstrip("_"), None)
    return (
        packet is not None
        and functional.writing(node.target) is None
        and (packet is aten.copy or torch.Tag.pointwise in getattr(packet, packet.overloads()[0]).tags)
    )


FOREACH = "_foreach_"
_OPERATORS = {
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow", "setitem": "copy"
}  # fmt: skip
