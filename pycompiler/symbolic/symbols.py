"""Symbolic sizes: torch's SymInt, SymFloat and SymBool over `symbolic.expr`, and a compile's assumptions about them.

In: hints (the sizes of the captured call).  Out: `Symbols`, one compile's environment.  It creates symbolic integers for
torch's operators, fake tensors and the captured program, and records `relations`, which a later call's sizes must satisfy.

    symbols = Symbols()
    s0 = symbols.new(8)                 # a torch.SymInt, at least 2, today 8
    expr_of(s0 * 4 // s0)               # 4: normal forms cancel
    bool(s0 > 1)                        # True: a fact
    bool(s0 * 3 > 20), symbols.relations    # True, [s0 >= 7]: today's answer, assumed from now on

A comparison is decided by facts (ranges of the symbols, earlier assumptions), else by the hints; then it is assumed.
If the program needs the value of a symbol (`int(s0)`), the symbol is assumed to equal its hint and becomes a constant.
`//` and `%` are Python's.  They are created only for a non-negative dividend and a positive divisor, but the normal
form moves constants out of dividends (`(10 - s0) // 3` is `(1 - s0) // 3 + 3`).
"""

from __future__ import annotations

import builtins
import logging
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import Any

import torch

from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.symbolic.data_checks import COMPARISONS, Decision, value_of
from pycompiler.symbolic.expr import ZERO, Bound, Expr
from pycompiler.symbolic.integer_functions import product
from pycompiler.symbolic.symbol import Symbol
from pycompiler.symbolic.symbolic_node import (
    EXACT,
    HOLDS,
    Condition,
    Env,
    Real,
    SymbolicNode,
    integers_in,
    is_guarded,
    magnitude,
)

log = logging.getLogger("pycompiler.shapes")
_NOT = {"==": "!=", "!=": "=="}


LIMIT = 2**63 - 1
UNBACKED_HINT = 5  # hint of an unbacked symbol: decisions based on it are checked when the symbol is known


class Specialise(LeavesCompile):
    """A stage needs `names` (empty: all symbols) to be numbers: the frame is captured again with these symbols static."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        self.names, self.why = tuple(names), why
        super().__init__(f"{', '.join(self.names) or 'all symbols'} must be known: {why}")


@dataclass(frozen=True)
class Relation:
    """`expr kind 0` (kinds: ==, !=, >=).

    `place`: the position of the compile at the assumption (`Symbols.place`).
    `why`: the reason why a number was needed there, if known (`Symbols.because`).
    """

    kind: str
    expr: Expr
    place: Any = field(default=None, compare=False)
    why: str = field(default="", compare=False)

    def holds(self, env: Env) -> bool:
        return HOLDS[self.kind](self.expr.eval(env))

    def __str__(self) -> str:
        """Terms with negative coefficients are printed on the right."""
        left = right = ZERO
        for mono, c in self.expr.terms:
            term = product(mono) * c
            left, right = (left + term, right) if c > 0 else (left, right - term)
        return f"{left} {self.kind} {right}"


@dataclass(frozen=True)
class _LazyPlace:
    """The program's line at which a relation was assumed; rendered only when the log is written."""

    relation: Relation

    def __str__(self) -> str:
        stack = self.relation.place
        where = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
        return f"  # {', '.join(filter(None, (where, self.relation.why)))}" if where or self.relation.why else ""


EXTREMES = {"min": "lt", "max": "gt"}  # the second argument is taken if it is in this relation to the first


def _column(value_of: Callable[[Symbol], Any]) -> cached_property[Mapping[str, Any]]:
    """A value of each symbol's record, by name and without None.  Computed on demand, until a record changes."""
    return cached_property(lambda symbols: {n: v for n, s in symbols.records.items() if (v := value_of(s)) is not None})


class Symbols:
    """One compile's symbols (see the module docstring).

    `records`: what is known of each symbol.  `assumed`: relations between integers, in order.  `decisions`: answers of
    comparisons between floats.
    """

    CACHES = frozenset({"answers", "numbers", "_nodes"})  # state derived from the rest

    hints = _column(lambda s: None if s.is_float or s.follows is not None else s.hint)  # of integers
    floats = _column(lambda s: s.hint if s.is_float else None)
    ranges = _column(lambda s: (s.low, s.high))
    replaced = _column(lambda s: s.equal)
    unbacked = _column(lambda s: s.unbacked or None)
    parts = _column(lambda s: s.negative)
    checked = _column(lambda s: s.most if s.checked and s.most < math.inf else None)  # by a check in the graph

    def __init__(self) -> None:
        self.records: dict[str, Symbol] = {}
        self.assumed: list[Relation] = []
        self.decisions: list[Decision] = []
        self.place: Callable[[], Any] = lambda: None
        self.why = ""
        self._known: dict[tuple[str, Expr], bool] = {}
        self.is_settled = False
        self.answers: dict[Any, Any] = {}  # answers to queries about numbers, under the current assumptions
        self.numbers: dict[builtins.int, SymbolicNode] = {}  # nodes of constants
        self._nodes: dict[Expr, SymbolicNode] = {}  # nodes of all other expressions

    # records --------------------------------------------------------------------------------------------------
    def record(self, symbol: Symbol) -> None:
        self.records[symbol.name] = symbol
        for column in COLUMNS & vars(self).keys():
            delattr(self, column)

    def learn(self, name: str, **facts: Any) -> None:
        """Replace fields of a symbol's record."""
        self.record(replace(self.records[name], **facts))

    @property
    def relations(self) -> list[Relation]:
        """The assumptions that guards check."""
        return [r for r in self.assumed if not self.is_late(r.expr.symbols)]

    @property
    def late(self) -> list[Relation]:
        """The assumptions about unbacked symbols, checked when the symbols are known (`unbacked_symbols.py`)."""
        return [r for r in self.assumed if self.is_late(r.expr.symbols)]

    def state(self) -> dict[str, Any]:
        """All facts and assumptions, for another compile or process."""
        derived = self.CACHES | COLUMNS
        return {name: value for name, value in vars(self).items() if name not in derived and name != "place"}

    # construction ---------------------------------------------------------------------------------------------
    def new(
        self, hint: int, *, low: int = 2, high: int | None = None, name: str | None = None, **facts: Any
    ) -> torch.SymInt:
        """A symbol with the given hint, always from `low` (at least 0) to `high`; `facts`: other fields of its record."""
        name = name or f"s{len(self.hints)}"
        if name in self.records or low < 0 or hint < low or (high is not None and hint > high):
            raise ValueError(f"no symbol {name} of {hint} from {low} to {high}")
        self.record(Symbol(name, hint, low, LIMIT if high is None else high, declared=(low, high), **facts))
        return self._symint(Expr.sym(name))

    def float(self, name: str, hint: builtins.float | None = None, **facts: Any) -> torch.SymFloat:
        """The float symbol of this name; with `hint`, a new one with these fields of its record."""
        if hint is not None:
            self.record(Symbol(name, hint, **facts))
        node: Any = SymbolicNode(self, Real.named(name))
        return torch.SymFloat(node)

    def bind(self, kind: str, most: Expr | None = None, **facts: Any) -> Any:
        """A new unbacked number; `facts`: other fields of its record.

        kind: "float"; "int" of any sign; "size", from 0 to `most`; or "drawn", a random number from 0 to `most`.
        Nothing may be assumed about a "drawn" number: a failed check would draw again.
        """
        count = len(self.unbacked)
        name, other = f"u{count}", f"u{count + 1}"
        if kind == "float":
            return self.float(name, 0.5, unbacked=kind, **facts)
        hint = UNBACKED_HINT if most is None else max(self.hint(most) // 2, 2)
        high = LIMIT if most is None or most.const is None else most.const
        if kind != "int":
            self.record(Symbol(name, hint, 0, high, unbacked=kind, **facts))
            return self._symint(Expr.sym(name))
        self.record(Symbol(name, hint, 0, high, unbacked=kind, negative=other, **facts))
        self.record(Symbol(other, 0, 0, high, unbacked=kind))
        return self._symint(Expr.sym(name) - Expr.sym(other))

    def close_checks(self) -> None:
        """Call when the check of unbacked floats is recorded: no later assumption may be about a float that it lacks."""
        for name, symbol in self.records.items():
            if symbol.checked and name not in self.checked:
                self.learn(name, checked=False)

    def is_late(self, names: Iterable[str]) -> bool:
        """Whether one of the symbols is unbacked."""
        unbacked = self.unbacked
        return bool(unbacked) and any(n in unbacked for n in names)

    def demand(self, condition: Condition | bool) -> bool:
        """Assume a condition, whatever the hints say; False if it cannot hold."""
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
        """The number of a symbol."""
        return self.float(name) if self.records[name].is_float else self.int(Expr.sym(name))

    def _symint(self, expr: Expr) -> torch.SymInt:
        node: Any = self.node(expr)
        return torch.SymInt(node)

    def node(self, expr: Expr) -> SymbolicNode:
        """The node of an integer; equal integers share a node until a new assumption is made."""
        found = self._nodes.get(expr)
        if found is None:
            found = self._nodes[expr] = SymbolicNode(self, expr)
        return found

    def declared(self) -> list[Relation]:
        """The ranges of the symbols, and the strides that follow from sizes, as relations."""
        found = []
        for name, s in self.records.items():
            low, high = s.declared or (None, None)
            found += [] if low is None else [Relation(">=", Expr.sym(name) - low)]
            found += [] if high is None else [Relation(">=", high - Expr.sym(name))]
        strides = {name: s.follows for name, s in self.records.items() if s.follows is not None}
        return found + [Relation("==", Expr.sym(name) - product) for name, product in strides.items()]

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Context manager for the time after the guards are built: a new assumption raises `Specialise`."""
        before, self.is_settled = self.is_settled, True
        try:
            yield
        finally:
            self.is_settled = before

    # queries --------------------------------------------------------------------------------------------------
    def resolve(self, expr: Expr) -> Expr:
        """The expression over the remaining symbols, after replacements."""
        return expr if expr.const is not None or not (replaced := self.replaced) else expr.subst(replaced)

    def hint(self, expr: Expr) -> builtins.int:
        return expr.eval(self.hints)

    def bounds(self, expr: Expr) -> Bound:
        """The least and the greatest value that facts allow."""
        ranges = self.ranges
        shifted = expr.subst({n: Expr.sym(n) + low for n in expr.symbols if (low := ranges[n][0])})
        return shifted.bounds({n: high - low + 1 for n in expr.symbols for low, high in (ranges[n],)})

    def known(self, kind: str, expr: Expr | Real) -> bool | None:
        """Whether `expr kind 0` holds, as far as facts determine it; None for a float."""
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
        if (rest := _remainder(expr)) is not None and self.records[rest[0]].divisor % rest[1] == 0:
            return kind == "=="
        found = self._known.get((kind, expr))
        if found is None and (self.known(">=", expr - 1) or self.known(">=", -expr - 1)):
            return kind == "!="
        return found

    def decide(self, kind: str, expr: Expr | Real) -> bool:
        """Whether `expr kind 0` holds.  If facts do not determine it, the answer of the hints is assumed."""
        if isinstance(expr, Real):
            raise Specialise(sorted(expr.symbols), "the truth of a float expression is not known before a call")
        known = self.known(kind, expr)
        if known is not None:
            return known
        answer = HOLDS[kind](self.hint(expr))
        if kind != ">=" and self.is_late(self.resolve(expr).symbols):
            answer = kind == "!="  # equality of an unbacked symbol would be a mere guess
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
        """Assume bounds of the floats in `value` that limit its magnitude to `most`, as long as it is finite.

        The bounds are greatest magnitudes and, for divisors, a least distance to zero.
        Raises Specialise if no bounds suffice, or if the hints violate them.
        """
        names = sorted(n for n in value.symbols if self.records[n].is_float)
        held = {n for n in names if self.records[n].held is not None}
        if self._keeps(value, most, [n for n in names if n not in held]):
            return
        mine = [n for n in names if n not in held or not self.is_settled and self.records[n].checked]
        if self._keeps(value, most, mine):
            return
        raise Specialise(mine or names, "a dtype may not hold the float")

    def _keeps(self, value: Real, most: builtins.float, mine: list[str]) -> bool:
        """Assume bounds of `mine` if they suffice, together with the known bounds of the other floats."""
        about = {n: s for n in value.symbols if (s := self.records[n]).is_float or s.held is not None}
        for near in (0.0, 2.0**-40, 2.0**-8):
            least = {n: max(s.least, near if abs(s.hint) >= near else 0.0) for n, s in about.items()}
            for limit in (most, most / 4, math.sqrt(most) / 2):
                limits = {n: min(s.magnitude, limit) if n in mine else s.magnitude for n, s in about.items()}
                held = all(abs(s.hint) <= limits[n] or not math.isfinite(s.hint) for n, s in about.items() if n in mine)
                narrows = any(limits[n] < self.records[n].most for n in mine)
                if held and not (narrows and self.is_settled) and magnitude(value, limits, least) <= most:
                    for n in mine:
                        self.learn(n, most=limits[n])
                    for n, s in about.items():
                        if near and s.least < near <= abs(s.hint):
                            self.compare_float("ge" if s.hint > 0 else "le", n, math.copysign(near, s.hint))
                    return True
        return False

    def compare_float(self, op: str, name: str, number: builtins.float) -> bool:
        """`name op number` for the float's hint.  Assumed: an interval around the hint (for NaN: NaN)."""
        known = self.records[name]
        if known.unbacked or not math.isfinite(number):
            self.pin_all([name])
        value, low, high = known.hint, known.low, known.high
        answer: bool = getattr(operator, op)(value, number)
        if math.isnan(value):
            low = high = math.nan
        elif value == number and op in ("eq", "ne"):
            low = high = number
        elif value > number or value == number and op in ("ge", "lt"):
            low = max(low, number if op in ("ge", "lt") else math.nextafter(number, math.inf))
        else:
            high = min(high, number if op in ("le", "gt") else math.nextafter(number, -math.inf))
        if (low, high) != (known.low, known.high):
            if self.is_settled:
                raise Specialise([name], f"{name} {op} {number} would be assumed after the guards are made")
            self.learn(name, low=low, high=high)
        return answer

    def bounded(self, integers: Iterable[Expr]) -> bool:
        """Whether floats represent these integers exactly, by their hints; this is then assumed."""
        found = [*integers]
        plain = all(abs(factor) < EXACT for number in found for _, factor in number.terms)
        if not plain or any(abs(self.hint(number)) >= EXACT for number in found):
            return False
        return all(self.at_least(Expr.of(EXACT - 1), n) and self.at_least(n, 1 - EXACT) for n in found)

    def compare_reals(self, op: str, left: Real | builtins.float, right: Real | builtins.float) -> bool | None:
        """`left op right` by the hints, which is then assumed; None for numbers that guards cannot compute."""
        left, right = self._without_extremes(left), self._without_extremes(right)
        sides = [side for side in (left, right) if isinstance(side, Real)]
        names = frozenset[str]().union(*(side.symbols for side in sides))
        if self.is_late(names) or not all(map(is_guarded, sides)):
            return None
        sums = (part for side in sides for number in integers_in(side) for part in number.sums())
        if any(abs(factor) > LIMIT for part in sums for _, factor in part.terms):
            return None  # guards do not compute with such numbers
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
        """Replace each minimum or maximum in a float by the argument chosen for the hints; the choice is assumed."""
        if not isinstance(value, Real) or value.name is not None:
            return value
        args = tuple(map(self._without_extremes, value.args))
        if value.op in EXTREMES:
            second = self.compare_reals(EXTREMES[value.op], args[1], args[0])
            return value if second is None else args[1] if second else args[0]
        return value if args == value.args else Real(value.op, args)

    def pin(self, expr: Expr) -> builtins.int:
        """The expression's value, which becomes a constant."""
        expr = self.resolve(expr)
        if expr.const is None:
            self.pin_all(expr.symbols & self.unbacked.keys())
            self._assume("==", expr - self.hint(expr))
        return self.hint(expr)

    def pin_all(self, names: Iterable[str]) -> None:
        names = sorted(names)
        if late := [n for n in names if n in self.unbacked]:
            raise Specialise(late, "the value of an unbacked symbol is not known before a call")
        if wanted := [n for n in names if n in self.floats]:
            raise Specialise(wanted, self.why or "the float is used outside of arithmetic")
        for name in names:
            self.pin(Expr.sym(name))

    def is_static(self, name: str) -> bool:
        return self.resolve(Expr.sym(name)).const is not None

    def _normal(self, kind: str, expr: Expr) -> Expr | None:
        """An equivalent expression with fewer factors; None if it cannot be 0."""
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
        """The expression without positive symbols that are factors of all its terms."""
        monos = [list(mono) for mono, _ in expr.terms]
        for atom in expr.terms[0][0]:
            positive = atom.kind == "sym" and self.records[atom.key].low > 0
            if positive and all(atom in mono for mono in monos):
                for mono in monos:
                    mono.remove(atom)
        made = ZERO
        for mono, (_, c) in zip(monos, expr.terms, strict=True):
            made = made + product(mono) * c
        return made

    def _without_division(self, expr: Expr) -> Expr:
        """Rewrite `b // k >= c` as `b >= k*c`, and `a >= b // k` as `k*a + k > b`, for positive `k`."""
        for mono, c in expr.terms:
            if len(mono) != 1 or mono[0].kind != "//" or c not in (1, -1):
                continue
            b, k = mono[0].args
            if k.const is not None and k.const > 0:
                rest = (expr - c * product(mono)) * k
                return self._without_division(rest + b if c == 1 else rest + k - 1 - b)
        return expr

    def freeze(self) -> None:
        """Mark the guards as built: from now on, a new assumption raises `Specialise`."""
        self.is_settled = True

    def assume(self, relation: Relation) -> None:
        """Add an assumption of another compile, with its place.  Both compiles must know the same about its symbols."""
        before, self.place = self.place, lambda: relation.place
        try:
            with self.because(relation.why):
                self._assume(relation.kind, relation.expr)
        finally:
            self.place = before

    @contextmanager
    def because(self, why: str) -> Iterator[None]:
        """Context manager: assumptions inside get the reason `why`."""
        before, self.why = self.why, why
        try:
            yield
        finally:
            self.why = before

    def _assume(self, kind: str, expr: Expr) -> None:
        if self.is_settled:
            relation = Relation(kind, expr)
            raise Specialise(sorted(expr.symbols), f"{relation} would be assumed after the guards are made")
        if drawn := sorted(n for n in expr.symbols if self.unbacked.get(n) == "drawn"):
            raise Specialise(drawn, "each call draws another value")
        self.answers, self._nodes = {}, {}
        normal = self._normal(kind, self.resolve(expr))
        assert normal is not None
        beyond = sum(c for mono, c in normal.terms if not mono) - LIMIT
        if kind == ">=" and beyond > 0 and self.hint(normal) >= beyond:
            self._known[kind, normal] = True
            normal -= beyond  # assume more, so that the guard's number fits into 64 bits
        late = self.is_late(normal.symbols)
        relation = Relation(kind, normal, self.place(), self.why)
        if any(abs(c) > LIMIT for part in normal.sums() for _, c in part.terms):
            raise Specialise(sorted(normal.symbols), f"{relation} has numbers beyond 64 bits, which guards cannot hold")
        self.assumed.append(relation)
        log.info("assumed: %s%s", relation, _LazyPlace(relation))
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
            if (rest := _remainder(normal)) is not None:
                self.learn(rest[0], divisor=math.lcm(self.records[rest[0]].divisor, rest[1]))
        if late and kind == ">=":
            self._sign(normal)
        if late and kind == ">=" and not HOLDS[kind](self.hint(normal)):
            self._guess_again(normal)

    def _sign(self, expr: Expr) -> None:
        """A non-negative integer has no negative part, and a non-positive integer no positive part."""
        for p, q in self.parts.items():
            for zero, rest in ((q, expr - Expr.sym(p) + Expr.sym(q)), (p, expr - Expr.sym(q) + Expr.sym(p))):
                if rest.const is not None and rest.const <= 0 and not self.is_static(zero):
                    self._replace(Expr.sym(zero))

    def _guess_again(self, expr: Expr) -> None:
        """Choose a new hint for an unbacked symbol, so that `expr >= 0` holds for the hints of the others."""
        for name in sorted(expr.symbols & self.unbacked.keys()):
            factor = expr.coeff(name)
            if factor is not None and factor.const in (1, -1):
                symbol = self.records[name]
                rest = self.hint(expr) - factor.const * symbol.hint
                self.learn(name, hint=min(max(symbol.low, -rest if factor.const == 1 else rest), symbol.high))
                return

    def _narrow(self, expr: Expr) -> None:
        """Narrow the range of a symbol by an inequality in this symbol alone."""
        if len(expr.symbols) != 1:
            return
        (name,) = expr.symbols
        factor, symbol = expr.coeff(name), self.records[name]
        if factor is None or factor.const not in (1, -1):
            return
        rest = (expr - factor * Expr.sym(name)).as_int()
        self.learn(name, **{"low": max(symbol.low, -rest)} if factor.const == 1 else {"high": min(symbol.high, rest)})

    def _replace(self, expr: Expr) -> None:
        """Solve `expr == 0` for a symbol that a number or a multiple of another symbol can replace."""
        order = list(self.hints)
        for name in sorted(expr.symbols, key=lambda n: (n in self.unbacked, order.index(n)), reverse=True):
            factor = expr.coeff(name)
            if factor is None or factor.const not in (1, -1):
                continue
            rest = expr - factor * Expr.sym(name)
            other = -rest if factor.const == 1 else rest
            if other.const is None and not (len(other.terms) == 1 and all(a.kind == "sym" for a in other.terms[0][0])):
                continue
            if other.const is None and other.terms[0][1] < 0:
                continue
            for n, e in self.replaced.items():
                self.learn(n, equal=e.subst({name: other}))
            mine = self.records[name]
            self.learn(name, equal=other, hint=self.hint(other) if mine.unbacked else mine.hint)
            if other.symbol is not None:
                twin = self.records[other.symbol]
                low, high = max(mine.low, twin.low), min(mine.high, twin.high)
                self.learn(twin.name, low=low, high=high, divisor=math.lcm(mine.divisor, twin.divisor))
            return

    # conditions -----------------------------------------------------------------------------------------------
    def truth(self, condition: Condition | bool, *, ask: Callable[[str, Expr | Real], bool | None]) -> bool | None:
        """The value of a condition; `ask` decides its relations (None: unknown)."""
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


COLUMNS = frozenset(name for name, member in vars(Symbols).items() if isinstance(member, cached_property))


# expressions ----------------------------------------------------------------------------------------------------
def _remainder(expr: Expr) -> tuple[str, int] | None:
    """The symbol and the divisor of `symbol % divisor`; None for other expressions."""
    if len(expr.terms) != 1 or [a.kind for a in expr.terms[0][0]] != ["%"]:
        return None
    number, by = expr.terms[0][0][0].args
    return (number.symbol, by.const) if number.symbol is not None and by.const is not None else None


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
    """The hint of an int, a float, a bool or one of our symbolic values."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    return value


def is_symbolic(value: Any) -> bool:
    """Whether the value is a symbolic number and not a constant."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    if value.node.is_nested_int():
        return False
    return value.node.constant is None or isinstance(value, torch.SymFloat)


def symbols_of(value: Any) -> Symbols | None:
    """The `Symbols` of the compile that a symbolic value belongs to, or None."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, SymbolicNode) and isinstance(node.env, Symbols) else None
