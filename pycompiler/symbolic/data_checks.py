"""Assumptions of an entry about numbers in host tensors: the data of one guard.

In: comparisons of values that a program computes from such a number.
Out: `DataChecks`, the argument of the guard kind "data" (`ir/guards.py`).
The guard's sources are the tensors, then the tensors that the graph writes.

    step = local("step")
    decision = Decision(Real("mul", (X, 2.0)), "gt", 5.0, True, (0,))  # step.item() * 2.0 > 5.0
    Guard("data", step, DataChecks(((torch.Tensor, torch.float32, 4),), (decision,)))
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycompiler.ir.source import Source
from pycompiler.symbolic.symbolic_node import Real

Span = tuple[int, int]
NAME = "x"
X = Real.named(NAME)
"""The number in the tensor of a decision."""

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def value_of(side: Real | float, numbers: Mapping[str, float]) -> float:
    """The value of one side of a decision; raises the exceptions of Python's floats."""
    return side.eval(numbers) if isinstance(side, Real) else side


@dataclass(frozen=True)
class Decision:
    """The assumption that `left op right` is `holds`, for the number of each tensor at `at`.  It fails if Python's
    floats raise."""

    left: Real | float
    op: str
    right: Real | float
    holds: bool
    at: tuple[int, ...] = ()

    def passes(self, numbers: Mapping[str, float]) -> bool:
        return COMPARISONS[self.op](value_of(self.left, numbers), value_of(self.right, numbers)) is self.holds

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset[str]().union(*(side.symbols for side in (self.left, self.right) if isinstance(side, Real)))

    def __str__(self) -> str:
        text = f"{self.op}({self.left}, {self.right})"
        return text if self.holds else f"not {text}"


@dataclass(frozen=True)
class DataChecks:
    """The argument of one "data" guard.

    `reads`: class, dtype and bytes of the number, for the first sources.  These are host tensors with one element.
    No two of them share memory, and none shares memory with the sources after them.
    """

    reads: tuple[tuple[type, torch.dtype, int], ...]
    decisions: tuple[Decision, ...]

    def numbers(self, values: Sequence[Any]) -> list[float]:
        """The numbers; raises ValueError if a number cannot be read, or if its memory is also reachable under another name."""
        found, places = [], []
        for t, (cls, dtype, _) in zip(values, self.reads, strict=False):
            if (
                type(t) is not cls
                or not isinstance(t, torch.Tensor)
                or t.dtype != dtype
                or t.device.type != "cpu"
                or t.numel() != 1
            ):
                raise ValueError(f"a {cls.__name__} of one {dtype} was expected, not {type(t).__name__}")
            found.append(t.item())
            places.append(place_of(t))
        written = [memory_around(t) for t in values[len(self.reads) :]]
        if any(overlap(a, b) for i, a in enumerate(places) for b in places[:i]):
            raise ValueError("two numbers in the same memory")
        if any(overlap(a, b) for a in places for b in written):
            raise ValueError("a number in memory that is written under another name")
        return found

    def holds(self, values: Sequence[Any]) -> bool:
        numbers = self.numbers(values)
        return all(decision.passes({NAME: numbers[i]}) for decision in self.decisions for i in decision.at)

    def seen(self, values: Sequence[Any]) -> str:
        try:
            numbers = self.numbers(values)
        except ValueError as e:
            return str(e)
        for decision in self.decisions:
            for i in decision.at:
                try:
                    passes = decision.passes({NAME: numbers[i]})
                except (ArithmeticError, TypeError) as e:
                    return f"{numbers[i]!r}, for which {decision} raises {type(e).__name__}"
                if not passes:
                    return f"{numbers[i]!r}: not {decision}"
        return "all hold"

    def show(self, sources: Sequence[Source]) -> str:
        texts = [
            f"{decision} where {NAME} = {_names([sources[i] for i in decision.at])}" for decision in self.decisions
        ]
        return " and ".join(texts)


def _names(sources: Sequence[Source]) -> str:
    first = f"{sources[0].name}.item()"
    return first if len(sources) == 1 else f"{first} (and {len(sources) - 1} more)"


def place_of(t: torch.Tensor) -> Span:
    """The address range of the number in a tensor."""
    return t.data_ptr(), t.data_ptr() + t.element_size()


def memory_around(t: torch.Tensor) -> Span:
    """The address range of a tensor's storage."""
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]
