"""Symbolic sizes: torch's SymInt, SymFloat and SymBool over `ir.expr`, and what a compile assumes of them.

In: hints (the sizes of the call that is compiled).  Out: `Symbols`, one compile's environment, which makes symbolic
integers that torch's operators, fake tensors and the captured program compute with, and `relations`: the assumptions
that a later call's sizes must meet.

    symbols = Symbols()
    s0 = symbols.new(8)                 # a torch.SymInt, at least 2, today 8
    expr_of(s0 * 4 // s0)               # 4: normal forms cancel
    bool(s0 > 1)                        # True: a fact
    bool(s0 * 3 > 20), symbols.relations    # True, [s0 >= 7]: today's answer, assumed from now on

A comparison is settled by facts (ranges of the symbols, what is assumed already), else by the hints; then it is assumed.
A symbol of which the very value is asked (`int(s0)`) is assumed to be its hint: from then on it is that constant.
`//` and `%` are Python's: made here only where the dividend is not negative and the divisor positive, but the normal
form moves constants out of dividends (`(10 - s0) // 3` is `(1 - s0) // 3 + 3`).
"""

from __future__ import annotations

import builtins
import logging
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import torch

from pycompiler.ir.data_checks import COMPARISONS, Decision, value_of
from pycompiler.ir.expr import ZERO, Bound, Expr
from pycompiler.ir.leaves import Leaves
from pycompiler.ir.of_integers import product
from pycompiler.ir.symbolic_node import (
    EXACT,
    HOLDS,
    Env,
    Real,
    SymbolicNode,
    Truth,
    integers_in,
    is_guarded,
    magnitude,
)

log = logging.getLogger("pycompiler.shapes")
_NOT = {"==": "!=", "!=": "=="}


LIMIT = 2**63 - 1
GUESS = 5  # of a symbol that a call binds: what is decided by it is checked then


class Specialise(Leaves):
    """A stage needs `names` (none: all symbols) to be numbers: the frame is captured again with these symbols static."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        self.names, self.why = tuple(names), why
        super().__init__(f"{', '.join(self.names) or 'all symbols'} must be known: {why}")


@dataclass(frozen=True)
class Relation:
    """`expr kind 0` (kinds: ==, !=, >=).  `place`: what the compile was at when it was assumed (`Symbols.place`);
    `why`: what needed a number there, where it says so (`Symbols.because`)."""

    kind: str
    expr: Expr
    place: Any = field(default=None, compare=False)
    why: str = field(default="", compare=False)

    def holds(self, env: Env) -> bool:
        return HOLDS[self.kind](self.expr.eval(env))

    def __str__(self) -> str:
        """Terms with negative coefficients stand on the right."""
        left = right = ZERO
        for mono, c in self.expr.terms:
            term = product(mono) * c
            left, right = (left + term, right) if c > 0 else (left, right - term)
        return f"{left} {self.kind} {right}"


@dataclass(frozen=True)
class _Line:
    """Rendered where somebody reads it: the program's line at which a relation was assumed."""

    relation: Relation

    def __str__(self) -> str:
        stack = self.relation.place
        where = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
        return f"  # {', '.join(filter(None, (where, self.relation.why)))}" if where or self.relation.why else ""


EXTREMES = {"min": "lt", "max": "gt"}  # what the second is to the first where it is taken
_LESS: dict[str, Callable[[Expr, Expr], tuple[str, Expr]]] = {
    "==": lambda a, b: ("==", a - b), "!=": lambda a, b: ("!=", a - b), ">=": lambda a, b: (">=", a - b),
    "<=": lambda a, b: (">=", b - a), ">": lambda a, b: (">=", a - b - 1), "<": lambda a, b: (">=", b - a - 1),
}  # fmt: skip


class Symbols:
    """One compile's symbols (see the module docstring).

    `hints`: the value of each today; `facts`: (least, greatest or None) of each; `relations`: what is assumed, in order.
    `floats`: what symbols that are floats are today; of them nothing is assumed but a greatest magnitude (`limits`) and,
    where one was compared with a constant, least and greatest value (`intervals`), or what was decided (`decisions`).
    """

    CACHES = frozenset({"answers", "numbers", "_nodes"})  # what follows from the rest

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        self.floats: dict[str, float] = {}
        self.limits: dict[str, float] = {}
        self.intervals: dict[str, tuple[builtins.float, builtins.float]] = {}
        self.decisions: list[Decision] = []
        self.greatest: dict[str, float] = {}  # of floats that a call binds: what their tensor's dtype holds
        self.facts: dict[str, tuple[int, int | None]] = {}
        self.ranges: dict[str, tuple[int, int | None]] = {}  # as declared
        self.relations: list[Relation] = []
        self.bound: dict[str, str] = {}  # what a call binds while it runs: name -> kind
        self._parts: dict[str, str] = {}  # of an integer: the symbol of its positive part -> that of the negative one
        self.checked = set[str]()  # floats that `late.Check` looks at, or will
        self.late_limits: dict[str, float] = {}  # what it asks of them, as `limits` says of others
        self.late: list[Relation] = []  # of those: what is assumed, and checked when they are bound (`late.py`)
        self.replaced: dict[str, Expr] = {}
        self.place: Callable[[], Any] = lambda: None
        self.why = ""
        self._known: dict[tuple[str, Expr], bool] = {}
        self.is_settled = False
        self.answers: dict[Any, Any] = {}  # to questions about numbers, by what is assumed now
        self.numbers: dict[builtins.int, SymbolicNode] = {}  # nodes of constants
        self._nodes: dict[Expr, SymbolicNode] = {}  # and of all else

    # making ---------------------------------------------------------------------------------------------------
    def new(self, hint: int, *, low: int = 2, high: int | None = None, name: str | None = None) -> torch.SymInt:
        """A symbol that is `hint` today, and always from `low` (0 at least) to `high`."""
        name = name or f"s{len(self.hints)}"
        if name in self.hints or low < 0 or hint < low or (high is not None and hint > high):
            raise ValueError(f"no symbol {name} of {hint} from {low} to {high}")
        self.hints[name] = hint
        self.ranges[name] = (low, high)
        self.facts[name] = (low, LIMIT if high is None else high)
        return self._symint(Expr.sym(name))

    def float(self, name: str, hint: builtins.float | None = None) -> torch.SymFloat:
        """The symbol of this name; a new one, which is `hint` today."""
        if hint is not None:
            self.floats[name] = hint
        node: Any = SymbolicNode(self, Real.named(name))
        return torch.SymFloat(node)

    def bind(self, kind: str, most: Expr | None = None) -> Any:
        """A number that a call reads of its data: "float", "int" of any sign, or "size", which is at most `most`; or "drawn"
        before it, from 0 to `most`, of which nothing is assumed: what finds it otherwise would draw again."""
        name = f"u{len(self.bound)}"
        self.bound[name] = kind
        if kind == "float":
            return self.float(name, 0.5)
        self._bind(name)
        if kind in ("size", "drawn"):
            if most is not None:
                self.hints[name] = max(self.hint(most) // 2, 2)
                self.facts[name] = (0, LIMIT if most.const is None else most.const)
            return self._symint(Expr.sym(name))
        other = f"u{len(self.bound)}"
        self.bound[other] = kind
        self._bind(other)
        self.hints[other] = 0
        self._parts[name] = other
        return self._symint(Expr.sym(name) - Expr.sym(other))

    def _bind(self, name: str) -> None:
        self.hints[name], self.facts[name] = GUESS, (0, LIMIT)

    def is_late(self, names: Iterable[str]) -> bool:
        return any(n in self.bound for n in names)

    def demand(self, condition: Truth | bool) -> bool:
        """Assumes a condition, whatever it is today; False where it cannot be."""
        if isinstance(condition, bool):
            return condition
        if condition.kind == "and":
            return all([self.demand(part) for part in condition.args])
        known = self.truth(condition, ask=self.known)
        if known is not None:
            return known
        if condition.kind in ("not", "or") or isinstance(condition.args[0], Real):
            return bool(self.truth(condition, ask=self.decide))
        self._assume(condition.kind, condition.args[0])
        return True

    def int(self, expr: Expr | builtins.int) -> torch.SymInt | builtins.int:
        expr = self.resolve(Expr.of(expr))
        return self._symint(expr) if expr.const is None else expr.const

    def symbol(self, name: str) -> Any:
        """The number that a symbol is."""
        return self.float(name) if name in self.floats else self.int(Expr.sym(name))

    def _symint(self, expr: Expr) -> torch.SymInt:
        node: Any = self.node(expr)
        return torch.SymInt(node)

    def node(self, expr: Expr) -> SymbolicNode:
        """The node of an integer; of equal ones the same, while nothing new is assumed."""
        found = self._nodes.get(expr)
        if found is None:
            found = self._nodes[expr] = SymbolicNode(self, expr)
        return found

    def declared(self) -> list[Relation]:
        """The ranges of the symbols, as relations."""
        found = []
        for name, (low, high) in self.ranges.items():
            found.append(Relation(">=", Expr.sym(name) - low))
            if high is not None:
                found.append(Relation(">=", high - Expr.sym(name)))
        return found

    @contextmanager
    def settled(self) -> Iterator[None]:
        """The guards of the compile are made: what is not known cannot be assumed any more, and raises Specialise."""
        before, self.is_settled = self.is_settled, True
        try:
            yield
        finally:
            self.is_settled = before

    # asking ---------------------------------------------------------------------------------------------------
    def resolve(self, expr: Expr) -> Expr:
        """The expression over what is left of the symbols."""
        return expr.subst(self.replaced) if self.replaced and expr.const is None else expr

    def hint(self, expr: Expr) -> builtins.int:
        return expr.eval(self.hints)

    def bounds(self, expr: Expr) -> Bound:
        """The least and the greatest value that facts allow."""
        shifted = expr.subst({n: Expr.sym(n) + low for n in expr.symbols if (low := self.facts[n][0])})
        return shifted.bounds(
            {n: high - low + 1 for n in expr.symbols for low, high in (self.facts[n],) if high is not None}
        )

    def known(self, kind: str, expr: Expr | Real) -> bool | None:
        """Whether `expr kind 0`, as far as facts tell: of a float nothing."""
        if isinstance(expr, Real):
            return None
        normal = self._normal(kind, self.resolve(expr))
        if normal is None:
            return kind == "!="
        expr = normal
        if expr.const is not None:
            return HOLDS[kind](expr.const)
        low, high = self.bounds(expr)
        if kind == ">=":
            if low is not None and low >= 0:
                return True
            if high is not None and high < 0:
                return False
            return self._known.get((kind, expr))
        if (low is not None and low > 0) or (high is not None and high < 0):
            return kind == "!="
        found = self._known.get((kind, expr))
        if found is None and (self.known(">=", expr - 1) or self.known(">=", -expr - 1)):
            return kind == "!="
        return found

    def decide(self, kind: str, expr: Expr | Real) -> bool:
        """Whether `expr kind 0`: what facts do not tell is as it is today, and assumed."""
        if isinstance(expr, Real):
            raise Specialise(sorted(expr.symbols), "its truth is not known before a call")
        known = self.known(kind, expr)
        if known is not None:
            return known
        answer = HOLDS[kind](self.hint(expr))
        if kind != ">=" and self.is_late(self.resolve(expr).symbols):
            answer = kind == "!="  # nothing speaks for equality but a guess
        if kind == ">=":
            self._assume(">=", expr if answer else -expr - 1)
        else:
            self._assume(kind if answer else _NOT[kind], expr)
        return answer

    def equal(self, a: Expr, b: Expr) -> bool:
        return self.decide("==", a - b)

    def at_least(self, a: Expr, b: Expr | builtins.int) -> bool:
        return self.decide(">=", a - b)

    def within(self, value: Real, most: builtins.float) -> None:
        """Assumes of the floats in `value` what keeps its magnitude at `most`, where it is finite: how large they are, and, of
        what is divided by, how near to zero.  Specialise where nothing does, or today's are beyond it."""
        names = sorted(value.symbols & self.floats.keys())
        greatest = {n: self.late_limits.get(n, g) for n, g in self.greatest.items()}
        if self._keeps(value, most, [n for n in names if n not in greatest], greatest):
            return
        for n in () if self.is_settled else self.checked & greatest.keys():
            del greatest[n]
        mine = [n for n in names if n not in greatest]
        if self._keeps(value, most, mine, greatest):
            return
        raise Specialise(mine or names, "a dtype may not hold it")

    def _keeps(self, value: Real, most: builtins.float, mine: list[str], greatest: dict[str, builtins.float]) -> bool:
        """Assumes it of these, if it follows with what is known of the others."""
        names = [*mine, *(value.symbols & greatest.keys())]
        for near in (0.0, 2.0**-40, 2.0**-8):
            least = {n: max(self._least(n), near if abs(self.floats[n]) >= near else 0.0) for n in names}
            for limit in (most, most / 4, math.sqrt(most) / 2):
                known = {**self.limits, **self.late_limits, **greatest}
                limits = {n: greatest[n] if n in greatest else min(limit, known.get(n, limit)) for n in names}
                held = all(abs(self.floats[n]) <= limits[n] or not math.isfinite(self.floats[n]) for n in mine)
                if held and magnitude(value, limits, least) <= most:
                    self.limits |= {n: limits[n] for n in mine if n not in self.checked}
                    self.late_limits |= {n: limits[n] for n in mine if n in self.checked}
                    for n in [n for n in names if near and self._least(n) < near <= abs(self.floats[n])]:
                        self.compare_float("ge" if self.floats[n] > 0 else "le", n, math.copysign(near, self.floats[n]))
                    return True
        return False

    def _least(self, name: str) -> builtins.float:
        """What the magnitude of a float is not below, as far as it was asked; 0 where that is not known."""
        low, high = self.intervals.get(name, (-math.inf, math.inf))
        return max(low, -high, 0.0) if low == low else 0.0

    def compare_float(self, op: str, name: str, number: builtins.float) -> bool:
        """`name op number` of a float today, from now on assumed: an interval around today's value (of NaN: NaN)."""
        if name in self.bound or not math.isfinite(number):
            self.pin_all([name])
        value = self.floats[name]
        answer: bool = getattr(operator, op)(value, number)
        low, high = self.intervals.get(name, (-math.inf, math.inf))
        if math.isnan(value):
            low = high = math.nan
        elif value == number and op in ("eq", "ne"):
            low = high = number
        elif value > number or value == number and op in ("ge", "lt"):
            low = max(low, number if op in ("ge", "lt") else math.nextafter(number, math.inf))
        else:
            high = min(high, number if op in ("le", "gt") else math.nextafter(number, -math.inf))
        if (low, high) != self.intervals.get(name):
            if self.is_settled:
                raise Specialise([name], f"{name} {op} {number} would be assumed after the guards are made")
            self.intervals[name] = low, high
        return answer

    def bounded(self, integers: Iterable[Expr]) -> bool:
        """Whether floats hold these numbers today; from now on it is assumed."""
        found = [*integers]
        plain = all(abs(factor) < EXACT for number in found for _, factor in number.terms)
        if not plain or any(abs(self.hint(number)) >= EXACT for number in found):
            return False
        return all(self.at_least(Expr.of(EXACT - 1), n) and self.at_least(n, 1 - EXACT) for n in found)

    def compare_reals(self, op: str, left: Real | builtins.float, right: Real | builtins.float) -> bool | None:
        """`left op right` of what guards compute with floats, as it is today, and assumed; None of other numbers."""
        left, right = self._without_extremes(left), self._without_extremes(right)
        sides = [side for side in (left, right) if isinstance(side, Real)]
        names = frozenset[str]().union(*(side.symbols for side in sides))
        if self.is_late(names) or not all(map(is_guarded, sides)):
            return None
        sums = (part for side in sides for number in integers_in(side) for part in number.sums())
        if any(abs(factor) > LIMIT for part in sums for _, factor in part.terms):
            return None  # which guards do not count with
        numbers = {**self.hints, **self.floats}
        try:
            answer = COMPARISONS[op](value_of(left, numbers), value_of(right, numbers))
        except (ArithmeticError, TypeError):
            return None
        decision = Decision(left, op, right, answer)
        if decision not in self.decisions:
            if self.is_settled:
                raise Specialise(sorted(names), f"{decision} would be assumed after the guards are made")
            self.decisions.append(decision)
        return answer

    def _without_extremes(self, value: Any) -> Any:
        """A float with the lesser or greater of two in it as the one that it is today, which is assumed."""
        if not isinstance(value, Real) or value.name is not None:
            return value
        args = tuple(map(self._without_extremes, value.args))
        if value.op in EXTREMES:
            second = self.compare_reals(EXTREMES[value.op], args[1], args[0])
            return value if second is None else args[1] if second else args[0]
        return value if args == value.args else Real(value.op, args)

    def pin(self, expr: Expr) -> builtins.int:
        """The expression's value, from now on a constant."""
        expr = self.resolve(expr)
        if expr.const is None:
            self.pin_all(expr.symbols & self.bound.keys())
            self._assume("==", expr - self.hint(expr))
        return self.hint(expr)

    def pin_all(self, names: Iterable[str]) -> None:
        names = sorted(names)
        if late := [n for n in names if n in self.bound]:
            raise Specialise(late, "its value is not known before a call")
        if wanted := [n for n in names if n in self.floats]:
            raise Specialise(wanted, self.why or "it is not only computed with")
        for name in names:
            self.pin(Expr.sym(name))

    def is_static(self, name: str) -> bool:
        return self.resolve(Expr.sym(name)).const is not None

    def _normal(self, kind: str, expr: Expr) -> Expr | None:
        """An equivalent expression of fewer factors; None when it cannot be 0."""
        if expr.const is not None:
            return expr
        expr = self._without_factors(expr)
        if kind == ">=":
            expr = self._without_division(expr)
            if expr.const is not None:
                return expr
        g = gcd(*(c for mono, c in expr.terms if mono))
        if g == 0:
            return expr
        constant = sum(c for mono, c in expr.terms if not mono)
        if kind != ">=":
            if constant % g:
                return None
            g = g if expr.terms[-1][1] > 0 else -g
        made = Expr.of(constant // g)
        for mono, c in expr.terms:
            made = made + (product(mono) * (c // g) if mono else 0)
        return made

    def _without_factors(self, expr: Expr) -> Expr:
        """Without the symbols, positive ones, that are factors of all of it."""
        monos = [list(mono) for mono, _ in expr.terms]
        for atom in expr.terms[0][0]:
            positive = atom.kind == "sym" and self.facts[atom.key][0] > 0
            if positive and all(atom in mono for mono in monos):
                for mono in monos:
                    mono.remove(atom)
        made = ZERO
        for mono, (_, c) in zip(monos, expr.terms, strict=True):
            made = made + product(mono) * c
        return made

    def _without_division(self, expr: Expr) -> Expr:
        """`b // k >= c` is `b >= k*c`, and `a >= b // k` is `k*a + k > b`, where `k` is positive."""
        for mono, c in expr.terms:
            if len(mono) != 1 or mono[0].kind != "//" or c not in (1, -1):
                continue
            b, k = mono[0].args
            if k.const is not None and k.const > 0:
                rest = (expr - c * product(mono)) * k
                return self._without_division(rest + b if c == 1 else rest + k - 1 - b)
        return expr

    def settle(self, a: Expr, op: str, b: Expr) -> bool:
        """`a op b`, op one of ==, !=, <, <=, >, >=."""
        return self.decide(*_LESS[op](a, b))

    def freeze(self) -> None:
        """The guards are made: what facts and assumptions do not settle raises `Specialise` from now on."""
        self.is_settled = True

    def assume(self, relation: Relation) -> None:
        """What another compile assumed, at its place, of symbols of which the same was known."""
        before, self.place = self.place, lambda: relation.place
        try:
            with self.because(relation.why):
                self._assume(relation.kind, relation.expr)
        finally:
            self.place = before

    @contextmanager
    def because(self, why: str) -> Iterator[None]:
        """What is assumed meanwhile says why."""
        before, self.why = self.why, why
        try:
            yield
        finally:
            self.why = before

    def _assume(self, kind: str, expr: Expr) -> None:
        if self.is_settled:
            relation = Relation(kind, expr)
            raise Specialise(sorted(expr.symbols), f"{relation} would be assumed after the guards are made")
        if drawn := sorted(n for n in expr.symbols if self.bound.get(n) == "drawn"):
            raise Specialise(drawn, "each call draws another")
        self.answers, self._nodes = {}, {}
        normal = self._normal(kind, self.resolve(expr))
        assert normal is not None
        beyond = sum(c for mono, c in normal.terms if not mono) - LIMIT
        if kind == ">=" and beyond > 0 and self.hint(normal) >= beyond:
            self._known[kind, normal] = True
            normal -= beyond  # more is assumed: a number that guards can hold
        late = self.is_late(normal.symbols)
        relation = Relation(kind, normal, self.place(), self.why)
        if any(abs(c) > LIMIT for part in normal.sums() for _, c in part.terms):
            raise Specialise(sorted(normal.symbols), f"{relation} has numbers that guards cannot hold")
        (self.late if late else self.relations).append(relation)
        log.info("assumed: %s%s", relation, _Line(relation))
        self._known[kind, normal] = True
        if kind == ">=":
            opposite = self._normal(">=", -normal - 1)
            assert opposite is not None
            self._known[">=", opposite] = False
            self._narrow(normal)
        else:
            self._known[_NOT[kind], normal] = False
        if kind == "==":
            self._replace(normal)
        if late and kind == ">=":
            self._sign(normal)
        if late and kind == ">=" and not HOLDS[kind](self.hint(normal)):
            self._guess_again(normal)

    def _sign(self, expr: Expr) -> None:
        """An integer that is known not to be negative has no negative part, and the other way round."""
        for p, q in self._parts.items():
            for zero, rest in ((q, expr - Expr.sym(p) + Expr.sym(q)), (p, expr - Expr.sym(q) + Expr.sym(p))):
                if rest.const is not None and rest.const <= 0 and not self.is_static(zero):
                    self._replace(Expr.sym(zero))

    def _guess_again(self, expr: Expr) -> None:
        """The hint of a bound symbol, for which `expr >= 0` by the hints of the others."""
        for name in sorted(expr.symbols & self.bound.keys()):
            factor = expr.coeff(name)
            if factor is not None and factor.const in (1, -1):
                rest = self.hint(expr) - factor.const * self.hints[name]
                low, high = self.facts[name]
                found = max(low, -rest if factor.const == 1 else rest)
                self.hints[name] = found if high is None else min(found, high)
                return

    def _narrow(self, expr: Expr) -> None:
        """The range of a symbol by an inequality in it alone."""
        if len(expr.symbols) != 1:
            return
        (name,) = expr.symbols
        factor, (low, high) = expr.coeff(name), self.facts[name]
        if factor is None or factor.const not in (1, -1):
            return
        rest = (expr - factor * Expr.sym(name)).as_int()
        if factor.const == 1:
            self.facts[name] = (max(low, -rest), high)
        else:
            self.facts[name] = (low, rest if high is None else min(high, rest))

    def _replace(self, expr: Expr) -> None:
        """Solves `expr == 0` for a symbol that can be replaced by a number or by a multiple of another symbol."""
        order = list(self.hints)
        for name in sorted(expr.symbols, key=lambda n: (n in self.bound, order.index(n)), reverse=True):
            factor = expr.coeff(name)
            if factor is None or factor.const not in (1, -1):
                continue
            rest = expr - factor * Expr.sym(name)
            other = -rest if factor.const == 1 else rest
            if other.const is None and not (len(other.terms) == 1 and all(a.kind == "sym" for a in other.terms[0][0])):
                continue
            if other.const is None and other.terms[0][1] < 0:
                continue
            self.replaced = {n: e.subst({name: other}) for n, e in self.replaced.items()} | {name: other}
            if name in self.bound:
                self.hints[name] = other.eval(self.hints)
            if len(other.symbols) == 1 and other == Expr.sym(next(iter(other.symbols))):
                (low, high), (low2, high2) = self.facts[name], self.facts[next(iter(other.symbols))]
                highs = [h for h in (high, high2) if h is not None]
                self.facts[next(iter(other.symbols))] = (max(low, low2), min(highs) if highs else None)
            return

    # conditions -----------------------------------------------------------------------------------------------
    def truth(self, condition: Truth | bool, *, ask: Callable[[str, Expr | Real], bool | None]) -> bool | None:
        """The value of a condition whose relations `ask` answers (None: it does not know)."""
        if isinstance(condition, bool):
            return condition
        if condition.kind == "not":
            inner = self.truth(condition.args[0], ask=ask)
            return None if inner is None else not inner
        if condition.kind in ("and", "or"):
            decides = condition.kind == "or"
            found = []
            for part in condition.args:
                found.append(self.truth(part, ask=ask))
                if found[-1] is decides:
                    return decides
            return None if None in found else not decides
        return ask(condition.kind, condition.args[0])


# expressions ----------------------------------------------------------------------------------------------------
def expr_of(value: Any) -> Expr:
    """The expression of an int or of one of our SymInts."""
    if isinstance(value, torch.SymInt):
        node = value.node
        if not isinstance(node, SymbolicNode):
            raise TypeError(f"not a symbol of ours: {value}")
        if not node.is_int():
            raise TypeError(f"not an integer: {value}")
        return node.value  # type: ignore[no-any-return]
    return Expr.of(value)


def hint_of(value: Any) -> Any:
    """The number that an int, float, bool or one of our symbolic values is today."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    return value


def is_symbolic(value: Any) -> bool:
    """Whether the value is a symbolic number that is no constant."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    if value.node.is_nested_int():
        return False
    return value.node.constant is None or isinstance(value, torch.SymFloat)


def symbols_of(value: Any) -> Symbols | None:
    """The compile that a symbolic value belongs to."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, SymbolicNode) and isinstance(node.env, Symbols) else None
