"""Assumptions of an entry about sizes, strides and numbers that vary between calls: the data of one guard.

In: relations (`symbols.py`) over names, and the origin of each name.
Out: `SizeChecks`, the argument of the guard kind "sizes" (`ir/guards.py`).  Its sources are the tensors and numbers themselves.

    x, n = local("x"), local("n")
    origins = {"s0": Origin(x, torch.Tensor, "size", 1)}
    size_guard({"s0": Symbol("s0", 8)}, origins, [Relation(">=", Expr.sym("s0") - 4)])
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Source
from pycompiler.symbolic.data_checks import Decision
from pycompiler.symbolic.symbol import READS, Origin, Symbol
from pycompiler.symbolic.symbols import Relation


@dataclass(frozen=True)
class SizeChecks:
    """The argument of one "sizes" guard.  `names[i]` is read by `reads[i]`.

    `reads`: (index of the source, class of the value there, row of READS, dimension).
    `limits`: (index of the source, greatest magnitude, least, greatest) of floats.  A float that is not finite is
    within every magnitude; NaN is only between NaN and NaN.
    `floats`: (name, index of the source) of floats in decisions.
    """

    names: tuple[str, ...]
    reads: tuple[tuple[int, type, str, int], ...]
    relations: tuple[Relation, ...]
    limits: tuple[tuple[int, float, float, float], ...] = ()
    floats: tuple[tuple[str, int], ...] = ()
    decisions: tuple[Decision, ...] = ()

    def environment(self, values: Sequence[Any]) -> dict[str, int]:
        """The numbers by name; raises ValueError if a number cannot be read."""
        found = {}
        for name, (at, cls, what, dim) in zip(self.names, self.reads, strict=True):
            value = values[at]
            if type(value) is not cls:
                raise ValueError(f"{name}: a {cls.__name__} was expected, not a {type(value).__name__}")
            number = READS[what](value, dim)
            if not -(2**63) <= number < 2**63:
                raise ValueError(f"{name} does not fit into 64 bits: {number}")
            found[name] = number
        return found

    def holds(self, values: Sequence[Any]) -> bool:
        env = self.environment(values)
        held = all(r.holds(env) for r in self.relations) and all(_within(values[at], *row) for at, *row in self.limits)
        return held and all(decision.passes(env | self.reals(values)) for decision in self.decisions)

    def reals(self, values: Sequence[Any]) -> dict[str, Any]:
        """The floats by name; raises ValueError if a value is not a float."""
        for name, at in self.floats:
            if type(values[at]) is not float:
                raise ValueError(f"{name}: a float was expected, not a {type(values[at]).__name__}")
        return {name: values[at] for name, at in self.floats}

    def seen(self, values: Sequence[Any]) -> str:
        """Values of the first violated relation, and where the relation was assumed."""
        env = self.environment(values)
        for relation in self.relations:
            if not relation.holds(env):
                numbers = ", ".join(f"{name} = {env[name]}" for name in sorted(relation.expr.symbols))
                where = f", assumed at {relation.place[-1].place}" if relation.place else ""
                return f"{numbers}: not {relation}{where}"
        for at, most, low, high in self.limits:
            if not _within(values[at], most, low, high):
                between = "" if (low, high) == ANY else f", from {low!r} to {high!r}"
                return f"{values[at]!r}: not a float of at most {most!r}{between}"
        reals = env | self.reals(values)
        for decision in self.decisions:
            if not decision.passes(reals):
                seen = ", ".join(f"{name} = {reals[name]!r}" for name in sorted(decision.symbols))
                return f"{seen}: not {decision}"
        return "all hold"

    def show(self, sources: Sequence[Source]) -> str:
        shown = [
            f"{name} = {Origin(sources[at], cls, what, dim).number.name}"
            for name, (at, cls, what, dim) in zip(self.names, self.reads, strict=True)
        ]
        names = ", ".join([*shown, *(f"{name} = {sources[at].name}" for name, at in self.floats)])
        limits = [_shown(sources[at].name, *row) for at, *row in self.limits]
        texts = [*map(str, self.relations)]
        told = [t for t in texts if WIDEST not in t] or texts
        return " and ".join([*told, *limits, *map(str, self.decisions)]) + (f" where {names}" if names else "")


ANY = (-math.inf, math.inf)
WIDEST = str(2**62 - 1)  # the bound of each integer (`capture/recording/input_symbols.py`), of no interest to a reader


def _within(value: Any, most: float, low: float, high: float) -> bool:
    if type(value) is not float or not (abs(value) <= most or not math.isfinite(value)):
        return False
    return (low, high) == ANY or low <= value <= high or math.isnan(low) and math.isnan(value)


def _shown(name: str, most: float, low: float, high: float) -> str:
    parts = [f"|{name}| <= {most!r}"] if most < math.inf else []
    parts += [f"{name} is NaN"] if math.isnan(low) else [f"{low!r} <= {name}"] if low > -math.inf else []
    parts += [f"{name} <= {high!r}"] if high < math.inf else []
    return " and ".join(parts)


def size_guard(
    records: Mapping[str, Symbol],
    origins: Mapping[str, Origin],
    relations: Sequence[Relation],
    decisions: Sequence[Decision] = (),
    about: Container[str] | None = None,
) -> Guard | None:
    """The guard for `relations`, for the ranges of floats, and for `decisions` about them; None without any.

    `about`: only assumptions about these symbols.
    """
    if about is not None:
        relations = [r for r in relations if any(n in about for n in r.expr.symbols)]
        decisions = [d for d in decisions if any(n in about for n in d.symbols)]
    limits = {name: (s.most, s.low, s.high) for name, s in records.items() if s.is_float and not s.unbacked}
    floats = sorted(n for n, row in limits.items() if row != (math.inf, *ANY) and (about is None or n in about))
    named = frozenset[str]().union(*(d.symbols for d in decisions))
    decided = sorted(name for name in named if origins[name].what == "float")
    integers = (named - {*decided}).union(*(r.expr.symbols for r in relations))
    used = sorted(integers, key=list(records).index)
    if not used and not floats and not decided:
        return None
    sources = list(dict.fromkeys(origins[name].source for name in (*used, *floats, *decided)))
    reads = tuple((sources.index(o.source), o.cls, o.what, o.dim) for o in (origins[name] for name in used))
    within = tuple((sources.index(origins[n].source), *limits[n]) for n in floats)
    reals = tuple((name, sources.index(origins[name].source)) for name in decided)
    distinct = tuple(dict.fromkeys(relations)), within, reals, tuple(dict.fromkeys(decisions))
    return Guard("sizes", sources[0], SizeChecks(tuple(used), reads, *distinct), tuple(sources[1:]), ())
