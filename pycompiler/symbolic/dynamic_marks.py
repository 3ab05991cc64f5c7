"""Marks on tensors: the dimensions whose sizes become symbols of the captured graph.

In: a tensor, dimensions.  Out: an attribute of the tensor that capture reads.
Capture also reads the attributes of torch's marks with these names, which libraries set.

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
    """The mark of one dimension.  `kind`:

    - "dynamic": a symbol; it is an error if the size must be a number
    - "maybe": a symbol if possible
    - "unbacked": as "maybe"; the bounds also hold for numbers
    - "static": a number
    """

    kind: str
    low: int | None = None
    high: int | None = None

    def admits(self, n: int) -> bool:
        return (self.low is None or n >= self.low) and (self.high is None or n <= self.high)

    def check(self, n: int, name: str) -> None:
        """Raises `UserError` if the mark does not admit the size `n`."""
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
"""Attribute of torch's marks -> kind.  If a dimension has several marks, the last row wins."""


def marks_of(tensor: torch.Tensor) -> dict[int, Mark]:
    """The marks by dimension; our own mark wins over torch's marks."""
    held = getattr(tensor, "__dict__", {})
    if not held:
        return {}
    ranges = {r.dim: (r.min, r.max) for r in held.get("_dynamo_dynamic_range", ())}
    ranges |= held.get("_dynamo_unbacked_bounds", {})
    marks = {d: Mark(kind, *ranges.get(d, ())) for name, kind in TORCHS.items() for d in held.get(name, ())}
    rank = tensor.dim()  # torch's marks may name dimensions that do not exist
    own: dict[int, Mark] = held.get(ATTRIBUTE, {})
    return {d % rank: mark for d, mark in marks.items() if -rank <= d < rank} | own


def mark_dynamic(
    t: torch.Tensor, index: int | Iterable[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Make sizes of a tensor symbols: one compile serves all sizes from 2 (or `min`) to `max`.

    A program that needs such a size to be one number is an error of the compile.  The error names the line.

    Args:
        t: The tensor.
        index: A dimension, or several; negative ones count from the end.
        min: The least size.  None: 2.
        max: The largest size.  None: any.

    Raises:
        ArgumentError: `t` is not a tensor, a dimension does not exist, or a bound is not a size.
        UserError: At a call: the size is 0, 1 or outside of the bounds.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x * 2)
        for rows in (4, 8, 16):
            x = torch.ones(rows, 3)
            pycompiler.mark_dynamic(x, 0, min=2, max=512)
            compiled(x)
        assert pycompiler.counters(compiled)["compiles"] == 1
        ```
    """
    _mark(t, index, Mark("dynamic", *_bounds(min, max)))


def maybe_mark_dynamic(t: torch.Tensor, index: int | Iterable[int]) -> None:
    """As `mark_dynamic`, but a program that needs the size to be one number is compiled for that number.

    Args:
        t: The tensor.
        index: A dimension, or several; negative ones count from the end.

    Raises:
        ArgumentError: `t` is not a tensor, or a dimension does not exist.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x * 2)
        for rows in (4, 8):
            x = torch.ones(rows, 3)
            pycompiler.maybe_mark_dynamic(x, 0)
            compiled(x)
        assert pycompiler.counters(compiled)["compiles"] == 1
        ```
    """
    _mark(t, index, Mark("maybe"))


def mark_static(t: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """Make sizes of a tensor numbers, even where changing sizes become symbols.

    Args:
        t: The tensor.
        index: A dimension, or several; negative ones count from the end.  None: all dimensions.

    Raises:
        ArgumentError: `t` is not a tensor, or a dimension does not exist.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x * 2, dynamic=True)
        for rows in (4, 8):
            x = torch.ones(rows, 3)
            pycompiler.mark_static(x)
            compiled(x)
        assert pycompiler.counters(compiled)["compiles"] == 2
        ```
    """
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
    """As `maybe_mark_dynamic`, or as `mark_dynamic` if `strict`: a size becomes a symbol, with bounds.

    Sizes 0 and 1 are numbers.  The graph of a symbol is compiled for all sizes, not for the symbol's hint.

    Args:
        t: The tensor.
        index: A dimension, or several; negative ones count from the end.
        hint_override: Accepted for compatibility, without effect.
        strict: A program that needs the size to be one number is an error.
        specialize_on: Accepted for compatibility, without effect: no kernel is specialised for a hint.
        shape_id: Accepted for compatibility, without effect.
        min: The least size.  None: 0, or 2 if `strict`.
        max: The largest size.  None: any.

    Raises:
        ArgumentError: `t` is not a tensor, a dimension does not exist, or a bound is not a size.
        UserError: At a call: the size is outside of the bounds.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x * 2)
        for rows in (4, 8):
            x = torch.ones(rows, 3)
            pycompiler.mark_unbacked(x, 0, max=512)
            compiled(x)
        assert pycompiler.counters(compiled)["compiles"] == 1
        ```
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
