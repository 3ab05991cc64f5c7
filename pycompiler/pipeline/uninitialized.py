"""Result elements that depend on unwritten memory: `torch.empty` and similar operators.

In: a run of a graph by eager.
Out: for each result, the elements that change with the content of such memory.  They cannot be compared: eager's own
next call gives others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycompiler.operators.operator_facts import facts_of
from pycompiler.torch_compat.dispatch_modes import OwnMode

# The fill values: floats, integers (which may be indices), bools.
FILLS = ((-1.5, -1, False), (0.75, 0, True), (math.nan, 1, True))

Run = Callable[[], Sequence[Any]]


class Filled(OwnMode):
    """Fills memory that an operator leaves unwritten with a value of `fills`.
    `count`: how often there was such memory."""

    def __init__(self, fills: tuple[float, int, bool]) -> None:
        super().__init__()
        self.fills = fills
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        facts = facts_of(func)
        if (
            facts.unwritten
            and not facts.writes
            and isinstance(made, torch.Tensor)
            and made.numel()
            and not made.is_quantized
        ):
            self.count += 1
            made.fill_(self.value(made.dtype))
        return made

    def value(self, dtype: torch.dtype) -> float | int | bool:
        real, whole, truth = self.fills
        if dtype is torch.bool:
            return truth
        return real if dtype.is_floating_point or dtype.is_complex else whole if dtype.is_signed else abs(whole)


def unwritten(run: Run) -> list[torch.Tensor | None]:
    """Masks of the elements that depend on unwritten memory, one per result; None: no element does.

    An empty list: no result depends on such memory.
    """
    runs: list[Sequence[Any]] = []
    for fills in FILLS:
        with Filled(fills) as mode, contextlib.suppress(Exception):  # for example an index out of range
            runs.append(run())
        if not mode.count:
            return []
    if len({len(values) for values in runs}) != 1:  # a run without gradients proves nothing
        return []
    masks = [_changing(values) for values in zip(*runs, strict=True)]
    return masks if any(mask is not None and bool(mask.any()) for mask in masks) else []


def _changing(values: Sequence[Any]) -> torch.Tensor | None:
    first, *others = values
    if not all(isinstance(v, torch.Tensor) and v.shape == getattr(first, "shape", None) for v in values):
        return None
    if first.layout is not torch.strided or first.is_quantized:
        return None
    differ = [(first != v) & ~((first != first) & (v != v)) for v in others]
    return torch.stack(differ).any(0) if differ else None


def without(values: Sequence[Any], masks: Sequence[torch.Tensor | None]) -> list[Any]:
    """The values with zeros at the masks' elements."""
    return [_without(v, mask) for v, mask in zip(values, masks, strict=True)]


def _without(value: Any, mask: torch.Tensor | None) -> Any:
    if mask is None or not isinstance(value, torch.Tensor) or value.shape != mask.shape:
        return value
    return value.detach().masked_fill(mask, 0)
