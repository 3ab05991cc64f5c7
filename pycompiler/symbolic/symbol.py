"""`Symbol`: all that a compile knows about one number that differs between calls.

In: its value in the captured call.  Out: a record, which `symbols.Symbols` replaces as it learns.

    Symbol("s0", 8, low=2)
    Origin(local("x"), torch.Tensor, "size", 0)    # where it is read
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pycompiler.ir.source import Source, minus
from pycompiler.symbolic.expr import Expr

READS: dict[str, Callable[[Any, int], int]] = {
    "size": lambda value, dim: int(value.size(dim)),
    "stride": lambda value, dim: int(value.stride(dim)),
    "int": lambda value, dim: int(value),
    "minus": lambda value, dim: minus(value),
}


@dataclass(frozen=True)
class Origin:
    """Where a number is read: by a row of `READS`, from the value of class `cls` at `source` (`dim`: which size or stride)."""

    source: Source
    cls: type
    what: str
    dim: int = 0

    @property
    def number(self) -> Source:
        """The source of the number itself."""
        if self.what in ("int", "float", "text"):
            return self.source
        return self.source.then(self.what, None if self.what == "minus" else self.dim)


@dataclass(frozen=True, repr=False)
class Symbol:
    """One number.  Integers are not negative.

    - `hint`: the value in the captured call; a guess if the symbol is unbacked.
    - `low`, `high`: the range that facts allow (NaN: the float is NaN).
    - `divisor`: a number that divides it in all calls.
    - `most`: the greatest magnitude assumed of a float, as long as it is finite.
    - `declared`: the range that guards check first; None for an unbacked symbol.
    - `unbacked`: the kind of a number that is known only when the graph runs ("float", "int", "size", "drawn"), or "".
    - `held`: the greatest magnitude of an unbacked number, by the dtype that it is read from.
    - `checked`: whether an `unbacked_symbols.UnbackedCheck` may check the float.
    - `negative`: the symbol of the negative part, if this is the positive part of an unbacked integer.
    - `equal`: the constant, or the multiple of another symbol, that it equals in all calls.
    - `follows`: for a stride that is no symbol of its own, the product of sizes that guards compare it with.

    It holds no object of the program, since entries keep it.  `input_symbols.Sizes` has the `Origin`s.
    """

    name: str
    hint: int | float
    low: int | float = -math.inf
    high: int | float = math.inf
    divisor: int = 1
    most: float = math.inf
    declared: tuple[int, int | None] | None = None
    unbacked: str = ""
    held: float | None = None
    checked: bool = False
    negative: str | None = None
    equal: Expr | None = None
    follows: Expr | None = None

    def __repr__(self) -> str:
        return f"Symbol{tuple(vars(self).values())}"

    @property
    def is_float(self) -> bool:
        return type(self.hint) is float

    @property
    def least(self) -> float:
        """A lower bound of a float's magnitude; 0 if unknown."""
        return 0.0 if math.isnan(self.low) else max(self.low, -self.high, 0.0)

    @property
    def magnitude(self) -> float:
        """An upper bound of an unbacked number's or a float's magnitude, as long as it is finite."""
        return self.most if self.held is None else min(self.most, self.held)
