"""Marks on tensors: which of their sizes are to be symbols of the graphs that they are passed to.

In: a tensor, dimensions.  Out: an attribute of the tensor that capture reads; it reads the attributes of torch's marks of these
names as well, which libraries set.

    mark_dynamic(x, 0, min=2, max=512)      # compiled once for all sizes of dimension 0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pycompiler.errors import ArgumentError, UserError, describe

ATTRIBUTE = "_pycompiler_sizes"


@dataclass(frozen=True)
class Mark:
    """`kind`: "dynamic" (a number instead is an error), "maybe" (a symbol if that can be), "unbacked" (a "maybe" whose bounds
    hold for numbers, too), "static" (a number)."""

    kind: str
    low: int | None = None
    high: int | None = None

    def admits(self, n: int) -> bool:
        return (self.low is None or n >= self.low) and (self.high is None or n <= self.high)

    def check(self, n: int, name: str) -> None:
        """An error where the size cannot be what the mark says."""
        if not self.admits(n):
            low, high = self.low or (2 if self.kind == "dynamic" else 0), self.high
            raise UserError(f"{name} is {n}, but marked to be from {low} to {'any size' if high is None else high}")
        if n < 2 and self.kind == "dynamic":
            raise UserError(
                f"{name} is marked dynamic, but is {n}: sizes 0 and 1 are always numbers; pass a larger one first"
            )


TORCHS = {
    "_dynamo_static_indices": "static",
    "_dynamo_weak_dynamic_indices": "maybe",
    "_dynamo_unbacked_indices": "unbacked",
    "_dynamo_strict_unbacked_indices": "dynamic",
    "_dynamo_dynamic_indices": "dynamic",
}
"""Of several marks of a dimension the last row's counts."""


def marks_of(tensor: torch.Tensor) -> dict[int, Mark]:
    """The marks by dimension; ours count, where torch has marked it, too."""
    held = getattr(tensor, "__dict__", {})
    if not held:
        return {}
    ranges = {r.dim: (r.min, r.max) for r in held.get("_dynamo_dynamic_range", ())}
    ranges |= held.get("_dynamo_unbacked_bounds", {})
    marks = {d: Mark(kind, *ranges.get(d, ())) for name, kind in TORCHS.items() for d in held.get(name, ())}
    rank = tensor.dim()  # torch's marks may be of dimensions that there are not
    own: dict[int, Mark] = held.get(ATTRIBUTE, {})
    return {d % rank: mark for d, mark in marks.items() if -rank <= d < rank} | own


def mark_dynamic(
    t: torch.Tensor, index: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """The size of dimension `index` (or of each of several) is a symbol: one compile serves all sizes from 2 (or `min`) to
    `max`.  A program that needs it to be one number is an error, which names the line."""
    _mark(t, index, Mark("dynamic", *_bounds(min, max)))


def maybe_mark_dynamic(t: torch.Tensor, index: int | Iterable[int]) -> None:
    """Like `mark_dynamic`; a program that needs it to be one number is compiled for that number."""
    _mark(t, index, Mark("maybe"))


def mark_static(t: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """The size (all sizes without `index`) is a number, also where sizes that change become symbols."""
    _mark(t, range(t.dim()) if index is None and isinstance(t, torch.Tensor) else index, Mark("static"))


def mark_unbacked(
    t: torch.Tensor,
    index: int | Iterable[int],
    hint_override: int | None = None,
    strict: bool = False,
    specialize_on: list[object] | None = None,
    shape_id: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Like `maybe_mark_dynamic`, or `mark_dynamic` if `strict`: this package compiles for all sizes of a symbol, whatever
    today's is.  Sizes 0 and 1 are numbers.  A size outside of `min` to `max` is an error.

    hint_override, specialize_on, shape_id: accepted, without effect; no kernel is made for a hint.
    """
    _mark(t, index, Mark("dynamic" if strict else "unbacked", *_bounds(min, max)))


def _bounds(low: int | None, high: int | None) -> tuple[int | None, int | None]:
    for bound in (low, high):
        if bound is not None and (type(bound) is not int or bound < 0):
            raise ArgumentError(f"min and max must be sizes or None, got {describe(bound)}")
    if low is not None and high is not None and low > high:
        raise ArgumentError(f"min={low} is greater than max={high}")
    return low, high


def _mark(t: torch.Tensor, index: int | Iterable[int] | None, mark: Mark) -> None:
    if not isinstance(t, torch.Tensor):
        raise ArgumentError(f"a tensor was expected, got {describe(t)}")
    if isinstance(index, int):
        index = (index,)
    marks = dict(marks_of(t))
    for d in index if isinstance(index, Iterable) else (index,):
        if type(d) is not int or not -t.dim() <= d < t.dim():
            most = f"a dimension from {-t.dim()} to {t.dim() - 1}" if t.dim() else "no dimension can be marked"
            raise ArgumentError(f"a tensor of sizes {[*t.shape]}: {most}; got {describe(d)}")
        marks[d % t.dim()] = mark
    setattr(t, ATTRIBUTE, marks)
