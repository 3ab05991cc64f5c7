"""The node under torch's SymInt, SymFloat and SymBool: answers torch's queries about a symbolic number, over `symbolic.expr`.

In: `Symbols` (`symbols.py`, which creates and explains them) and a value: an Expr, a `Real`, or a condition.  Out: nodes.
"""

from __future__ import annotations

import ctypes
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from pycompiler.symbolic.expr import ONE, ZERO, Expr
from pycompiler.symbolic.integer_functions import (
    BITS,
    IntegerQueries,
    constant_on_interval,
    divide,
    floor_division,
    remainder,
    rounded,
    with_bits,
)

Env = Mapping[str, int]
HOLDS: dict[str, Callable[[float], bool]] = {
    "==": lambda v: v == 0,
    "!=": lambda v: v != 0,
    ">=": lambda v: v >= 0,
}
EXACT = 2**53  # all integers below are exact floats


@dataclass(frozen=True)
class Condition:
    """An undecided condition: `kind` is the kind of a relation (args: the expression), "and", "or" or "not".

    The only relation on a float is "!=", created for the truth of an unbacked float.
    """

    kind: str
    args: tuple[Any, ...]

    @property
    def symbols(self) -> frozenset[str]:
        found = [a.symbols for a in self.args if not isinstance(a, bool)]
        return frozenset().union(*found)

    def eval(self, env: Mapping[str, Any]) -> bool:
        got = [a if isinstance(a, bool) else a.eval(env) for a in self.args]
        return _HOW[self.kind](got) if self.kind in _HOW else HOLDS[self.kind](*got)


_HOW: dict[str, Callable[[list[Any]], bool]] = {"and": all, "or": any, "not": lambda got: not got[0]}


@dataclass(frozen=True, eq=False)
class Real:
    """A float over symbols: an operator of `REAL` and its arguments (Real, Expr, float), or "symbol" and a name.

    `ratio` = (n, d): the value is n / d, rounded at most once, with 0 <= n.
    """

    op: str
    args: tuple[Any, ...]
    ratio: tuple[Expr, Expr] | None = None

    def _key(self) -> tuple[Any, ...]:
        # 0.0 differs from -0.0, NaN equals itself
        return (self.op, *(a.hex() if isinstance(a, float) else a for a in self.args))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Real) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    @staticmethod
    def named(name: str) -> Real:
        return Real("symbol", (name,))

    @property
    def name(self) -> str | None:
        """The name of a float symbol, else None."""
        return self.args[0] if self.op == "symbol" else None

    def eval(self, env: Mapping[str, Any]) -> float:
        if self.op == "symbol":
            return float(env[self.args[0]])
        got = [a.eval(env) if isinstance(a, (Real, Expr)) else a for a in self.args]
        return float(REAL[self.op](*got))

    @property
    def symbols(self) -> frozenset[str]:
        if self.op == "symbol":
            return frozenset(self.args)
        found = [a.symbols for a in self.args if isinstance(a, (Real, Expr))]
        return frozenset().union(*found)

    def __str__(self) -> str:
        return self.args[0] if self.op == "symbol" else f"{self.op}({', '.join(map(str, self.args))})"


def single(x: float) -> float:
    """The nearest single-precision float."""
    return ctypes.c_float(x).value


OF_MATH = (
    "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log2", "log", "log10", "log1p",
    "expm1", "erf", "erfc", "asinh", "degrees", "radians",
)  # fmt: skip
"""Functions of `math` of one float."""
REAL: dict[str, Callable[..., Any]] = {
    "float": float, "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "pow": operator.pow, "mod": operator.mod, "neg": operator.neg, "abs": abs, "min": min, "max": max,
    "int_truediv": operator.truediv, "float32": single,
    **{name: getattr(math, name) for name in OF_MATH},
}  # fmt: skip

_GREATEST_OF: dict[str, Callable[..., float]] = {
    "float": float, "neg": float, "abs": float, "add": operator.add, "sub": operator.add, "mul": operator.mul,
    "min": max, "max": max, **dict.fromkeys(("sin", "cos", "tanh", "erf"), lambda a: 1.0),
    **dict.fromkeys(("atan", "asin", "acos", "erfc"), lambda a: 4.0),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "asinh"), lambda a: 1100.0),  # covers all floats
    "int_truediv": lambda a, b: a,  # the divisor is a non-zero integer
    "mod": lambda a, b: b, "sqrt": lambda a: max(1.0, a), "radians": lambda a: a,
}  # fmt: skip


def magnitude(value: Real | Expr | float, limits: Mapping[str, float], least: Mapping[str, float]) -> float:
    """An upper bound of the magnitude of a number over symbols, if the number is finite.

    `limits`: upper bounds of the magnitudes of its floats.  `least`: their lower bounds.
    """
    if not isinstance(value, Real):
        return (
            2.0**63
            if isinstance(value, Expr) and value.const is None
            else abs(float(value if not isinstance(value, Expr) else value.const or 0))
        )
    if value.name is not None:
        return limits[value.name]
    if value.op == "truediv":
        by = _nearest(value.args[1], limits, least)
        return magnitude(value.args[0], limits, least) / by if by else math.inf
    if value.op == "pow":
        return _greatest_power(*value.args)
    bound = _GREATEST_OF.get(value.op)
    return math.inf if bound is None else bound(*(magnitude(a, limits, least) for a in value.args))


def _greatest_power(base: Any, to: Any) -> float:
    """Upper bound of a power: a constant to a non-negative integer, or a positive integer to a non-positive constant.

    `SymbolicNode._is_safe` ensures these conditions.
    """
    if isinstance(base, float):
        return 1.0 if 0 < base <= 1 and isinstance(to, Real) and _is_integer(to) else math.inf
    return 1.0 if isinstance(to, float) and to <= 0 and _is_integer(base) else math.inf


def _is_integer(value: Real | Expr | float) -> bool:
    return isinstance(value, Real) and value.op == "float" and isinstance(value.args[0], Expr)


def _nearest(value: Real | Expr | float, limits: Mapping[str, float], least: Mapping[str, float]) -> float:
    """A lower bound of a number's magnitude; 0 if unknown."""
    if not isinstance(value, Real):
        return 0.0 if isinstance(value, Expr) and value.const is None else magnitude(value, limits, least)
    if value.name is not None:
        return least[value.name]
    if value.op in ("float", "neg", "abs"):
        return _nearest(value.args[0], limits, least)
    if value.op == "mul":
        return math.prod(_nearest(a, limits, least) for a in value.args)
    if value.op == "truediv":
        most = magnitude(value.args[1], limits, least)
        return _nearest(value.args[0], limits, least) / most if 0 < most < math.inf else 0.0
    return 0.0


_GUARDED = frozenset({"symbol", "float", "add", "sub", "mul", "truediv", "int_truediv", "pow", "neg", "abs"})


def is_guarded(value: Real) -> bool:
    """Whether guards can compute the float (`plan/real.rs`)."""
    parts = value.args if value.name is None else ()
    return value.op in _GUARDED and all(is_guarded(p) for p in parts if isinstance(p, Real))


def is_symbol(number: Expr) -> bool:
    """Whether the expression is a single symbol of 64 bits.  Its powers up to the sixteenth are finite floats."""
    [(atoms, factor), *more] = number.terms or [((), 0)]
    return not more and factor == 1 and len(atoms) == 1 and atoms[0].kind == "sym"


def integers_in(value: Real | Expr | float) -> Iterator[Expr]:
    """The integers in the expression of a float."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, Real) and value.name is None:
        for part in value.args:
            yield from integers_in(part)


_SAFE = {
    "truediv": "ne",
    "sqrt": "ge",
    "log2": "gt",
    "log": "gt",
    "log10": "gt",
}  # function -> relation of the argument to zero under which the function never raises
_OF_ALL = frozenset(
    {"sin", "cos", "tan", "tanh", "atan", "asinh", "erf", "erfc", "degrees", "radians", "float32"}
)  # defined for all finite arguments
_WITHIN = {
    "exp": (-1e300, 700.0),
    "expm1": (-1e300, 700.0),
    "log1p": (math.nextafter(-1.0, 0.0), 1e300),
    "cosh": (-700.0, 700.0),
    "sinh": (-700.0, 700.0),
    "asin": (-1.0, 1.0),
    "acos": (-1.0, 1.0),
}
_MIRRORED: dict[Any, Any] = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_RISING = frozenset({"sqrt", "log2", "log", "log10", "pow"})
_TOTAL = ("float", "add", "sub", "mul", "neg", "abs", "min", "max")  # operators of REAL that never raise
Number = Expr | Real | Condition | bool | float


# queries about symbols ------------------------------------------------------------------------------------------
class NumberQueries(IntegerQueries, Protocol):
    """The queries that nodes put to their compile: `symbols.Symbols`."""

    answers: dict[Any, Any]
    numbers: dict[int, SymbolicNode]

    @property
    def floats(self) -> Mapping[str, float]: ...
    @property
    def replaced(self) -> Mapping[str, Expr]: ...
    def compare_float(self, op: str, name: str, number: float) -> bool: ...
    def compare_reals(self, op: str, left: Real | float, right: Real | float) -> bool | None: ...
    def bounded(self, integers: Iterable[Expr]) -> bool: ...
    def node(self, expr: Expr) -> SymbolicNode: ...
    def known(self, kind: str, expr: Expr | Real) -> bool | None: ...
    def decide(self, kind: str, expr: Expr | Real) -> bool: ...
    def pin(self, expr: Expr) -> int: ...
    def pin_all(self, names: Iterable[str]) -> None: ...
    def truth(self, condition: Condition | bool, *, ask: Callable[[str, Expr | Real], bool | None]) -> bool | None: ...
    def demand(self, condition: Condition | bool) -> bool: ...


# the node under torch's symbolic numbers ------------------------------------------------------------------------
Binary = Callable[["SymbolicNode", "SymbolicNode"], "SymbolicNode"]


def _cached_answer(method: Binary) -> Binary:
    """Store answers until a new assumption is made (`Symbols.answers`), since torch repeats queries for every tensor it creates.

    Undecided conditions are not stored.
    """
    name = method.__name__

    def remembering(self: SymbolicNode, other: SymbolicNode) -> SymbolicNode:
        answers = self.env.answers
        found: SymbolicNode | None = answers.get((name, self, other))
        if found is None:
            found = method(self, other)
            if type(found._value) is not Condition:
                self.env.answers[name, self, other] = found
        return found

    return remembering


def _unsupported(name: str) -> Callable[..., NoReturn]:
    def method(self: SymbolicNode, *args: Any) -> NoReturn:
        raise NotImplementedError(f"{name} of symbolic sizes")

    return method


class SymbolicNode:
    """torch's interface of a symbolic number.  The value is an Expr (int), a Real (float), or a Truth or bool (bool)."""

    __slots__ = ("_value", "env")

    def __init__(self, env: NumberQueries, value: Number) -> None:
        self.env = env
        self._value = value

    # properties -----------------------------------------------------------------------------------------------
    @property
    def value(self) -> Any:
        value = self._value
        if type(value) is Expr and value.const is None:
            value = self._value = self.env.resolve(value)
        return value

    @property
    def expr(self) -> Any:
        """For torch's search for symbols without a hint; our own expression is `expr_of`."""
        return _ForTorch(self)

    @property
    def shape_env(self) -> _ForTorch:
        return _ForTorch(self)

    @property
    def pytype(self) -> type:
        return int if self.is_int() else bool if self.is_bool() else float

    def is_int(self) -> bool:
        return type(self._value) is Expr

    def is_float(self) -> bool:
        return isinstance(self._value, (Real, float))

    def is_bool(self) -> bool:
        return isinstance(self._value, (Condition, bool))

    def is_late(self) -> bool:
        return self.env.is_late(self.value.symbols)

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    @property
    def constant(self) -> Any:
        value = self.value
        return value.const if type(value) is Expr else value if isinstance(value, (bool, float)) else None

    def is_constant(self) -> bool:
        """For torch, which does not treat division by a constant integer as Python does (`SymInt.__rtruediv__`).

        So a size that became constant still counts as a symbol.
        """
        return isinstance(self._value, bool)

    def constant_int(self) -> int | None:
        value = self._value
        if type(value) is not Expr:
            return None
        return value.const if value.const is not None or not self.env.replaced else self.value.const

    def constant_bool(self) -> bool | None:
        return self._value if isinstance(self._value, bool) else None

    maybe_as_int = constant_int
    maybe_as_bool = constant_bool

    def maybe_as_float(self) -> float | None:
        return self._value if isinstance(self._value, float) else None

    def has_hint(self) -> bool:
        return True

    @property
    def hint(self) -> Any:
        value = self.value
        if isinstance(value, Expr):
            return value.eval(self.env.hints)
        if isinstance(value, (Real, Condition)):
            return value.eval({**self.env.hints, **self.env.floats})
        return value

    _hint = hint

    def str(self) -> Any:
        return f"{self.value}"

    __repr__ = __str__ = _graph_repr = str

    def clone(self) -> SymbolicNode:
        return self

    def __copy__(self) -> SymbolicNode:
        return self

    def __deepcopy__(self, memo: object) -> SymbolicNode:
        return self

    # construction ---------------------------------------------------------------------------------------------
    def of(self, value: Number) -> SymbolicNode:
        return self.env.node(value) if type(value) is Expr else SymbolicNode(self.env, value)

    def wrap_int(self, value: int) -> SymbolicNode:
        found = self.env.numbers.get(value)
        if found is None:
            found = self.env.numbers[value] = SymbolicNode(self.env, Expr.of(value))
        return found

    def wrap_float(self, value: float) -> SymbolicNode:
        return self.of(float(value))

    def wrap_bool(self, value: bool) -> SymbolicNode:
        return self.of(bool(value))

    # arithmetic -----------------------------------------------------------------------------------------------
    def _reals(self, other: SymbolicNode) -> bool:
        return not type(self._value) is type(other._value) is Expr and (self.is_float() or other.is_float())

    @_cached_answer
    def add(self, other: SymbolicNode) -> SymbolicNode:
        if self._reals(other):
            return self._real("add", other)
        return self.of(self.value + other.value)

    @_cached_answer
    def sub(self, other: SymbolicNode) -> SymbolicNode:
        if self._reals(other):
            return self._real("sub", other)
        return self.of(self.value - other.value)

    @_cached_answer
    def mul(self, other: SymbolicNode) -> SymbolicNode:
        if self._reals(other):
            return self._real("mul", other)
        return self.of(self.value * other.value)

    def neg(self) -> SymbolicNode:
        return self._real("neg") if self.is_float() else self.of(-self.value)

    def pos(self) -> SymbolicNode:
        return self

    def abs(self) -> SymbolicNode:
        if self.is_float():
            return self._real("abs")
        return self if self.env.at_least(self.value, 0) else self.neg()

    @_cached_answer
    def int_floordiv(self, other: SymbolicNode) -> SymbolicNode:
        return self.of(floor_division(self.env, self.value, other.value))

    floordiv = int_floordiv

    @_cached_answer
    def mod(self, other: SymbolicNode) -> SymbolicNode:
        if self._reals(other):
            return self._real("mod", other)
        return self.of(remainder(self.env, self.value, other.value))

    def pow_by_natural(self, other: SymbolicNode) -> SymbolicNode:
        made = ONE
        for _ in range(self.env.pin(other.value)):
            made = made * self.value
        return self.of(made)

    def pow(self, other: SymbolicNode) -> SymbolicNode:
        if not self._reals(other) and self.env.at_least(other.value, 0):
            return self.pow_by_natural(other)
        return self.float_pow(other)

    def lshift(self, other: SymbolicNode) -> SymbolicNode:
        return self.of(self.value * (1 << self.env.pin(other.value)))

    def rshift(self, other: SymbolicNode) -> SymbolicNode:
        return self.of(floor_division(self.env, self.value, Expr.of(1 << self.env.pin(other.value))))

    def _bits(self, other: SymbolicNode, fn: Callable[[Any, Any], Any]) -> SymbolicNode:
        for node, mask in ((self, other), (other, self)):
            if node.is_int() and mask.is_int() and (known := mask.value.const) is not None and not node.is_late():
                shared = with_bits(self.env, node.value, known)
                if shared is not None:
                    return self.of(BITS[fn](node.value, known, shared))
        a, b = (n.bool_() if n.is_bool() else self.env.pin(n.value) for n in (self, other))
        both = self.is_bool() and other.is_bool()
        return self.wrap_bool(fn(a, b)) if both else self.wrap_int(fn(a, b))

    def bitwise_and(self, other: SymbolicNode) -> SymbolicNode:
        return self._bits(other, operator.and_)

    def bitwise_or(self, other: SymbolicNode) -> SymbolicNode:
        return self._bits(other, operator.or_)

    def bitwise_xor(self, other: SymbolicNode) -> SymbolicNode:
        return self._bits(other, operator.xor)

    def sym_sum(self, nodes: Sequence[SymbolicNode]) -> SymbolicNode:
        total = ZERO
        for node in nodes:
            total = total + node.value
        return self.of(total)

    @_cached_answer
    def sym_min(self, other: SymbolicNode) -> SymbolicNode:
        return self._extreme("min", other)

    @_cached_answer
    def sym_max(self, other: SymbolicNode) -> SymbolicNode:
        return self._extreme("max", other)

    def _extreme(self, name: Any, other: SymbolicNode) -> SymbolicNode:
        if self._reals(other):
            return self._real(name, other)
        known = self.env.known(">=", self.value - other.value)
        if known is not None:
            return self if known is (name == "max") else other
        return self.of(getattr(self.value, name)(other.value))

    # floats ---------------------------------------------------------------------------------------------------
    def _real(self, op: Any, *others: SymbolicNode) -> SymbolicNode:
        args = [n.value for n in (self, *others)]
        if all(isinstance(a, float) for a in args):
            return self.of(float(REAL[op](*args)))
        self._defined(op, args)
        return self.of(Real(op, tuple(args), _ratio(self.env, op, args)))

    def _defined(self, op: Any, args: Sequence[Any]) -> None:
        """Assume that the operator does not raise for these floats; raise its exception if it does.

        Where an argument depends on an input float, the assumption becomes a guard.
        """
        if op in ("truediv", "mod"):
            by = _zero_with(args[1])
            zero: bool | None = self.env.equal(by, ZERO) if isinstance(by, Expr) else by == 0.0
            if isinstance(by, Real) and by.name is None and (zero := self.env.compare_reals("eq", by, 0.0)) is None:
                self.env.pin_all(by.symbols)
                zero = not by.eval(self.env.hints)
            if zero:
                REAL[op](1.0, 0.0)  # raises
            if op == "truediv" and not (isinstance(by, Real) and by.name is not None):
                return
        if op not in _TOTAL and not self._is_safe(op, args):
            asked = args[1:] if op == "truediv" else args
            self.env.pin_all(n for a in asked if isinstance(a, Real) for n in a.symbols)
            if not any(a.symbols & self.env.floats.keys() for a in args if isinstance(a, Real)):
                REAL[op](*(a.eval(self.env.hints) if isinstance(a, (Real, Expr)) else a for a in args))  # may raise

    def _is_safe(self, op: Any, args: Sequence[Any]) -> bool:
        """Whether the operator never raises for its float argument.  Assumed: on which side of zero the argument is."""
        at = args[1] if op == "truediv" else args[0]
        if op == "pow" and isinstance(at, float):
            return self._is_safe_exponent(at, args[1])
        if isinstance(at, Real) and not at.symbols & self.env.floats.keys():
            return self._is_safe_of_sizes(op, at, args[1:])
        if not isinstance(at, Real):
            return False
        if at.name is None or op in _OF_ALL or op in _WITHIN:
            return op in OF_MATH and self._is_within(op, at)
        if op == "pow":  # no complex number, no division by zero, no overflow
            to = args[1]
            if not isinstance(to, float) or not 0 <= to <= 8 or not self.env.compare_float("ge", at.name, 0.0):
                return False
            return to <= 1 or self.env.compare_float("le", at.name, 2.0**100)
        wanted = _SAFE.get(op)
        return wanted is not None and self.env.compare_float(wanted, at.name, 0.0)

    def _is_within(self, op: Any, at: Real) -> bool:
        """As `_is_safe`, for a float that guards can compute."""
        if op in _SAFE:
            return bool(self.env.compare_reals(_SAFE[op], at, 0.0))
        low, high = _WITHIN.get(op, (-sys.float_info.max, sys.float_info.max))
        return bool(self.env.compare_reals("ge", at, low) and self.env.compare_reals("le", at, high))

    def _is_safe_exponent(self, base: float, to: Any) -> bool:
        """Whether `base` to the power of an integer never overflows."""
        number = to.args[0] if isinstance(to, Real) and to.op == "float" else None
        if not isinstance(number, Expr) or not 0 < base < math.inf:
            return False
        if base <= 1:
            return self.env.at_least(number, 0)
        return self.env.at_least(Expr.of(min(EXACT, int(1000 / math.log2(base)))), number)

    def _is_safe_of_sizes(self, op: Any, at: Real, more: Sequence[Any]) -> bool:
        """As `_is_safe`, for a float computed from integers."""
        if op in _OF_ALL:
            return True
        if op == "mod":  # zero was already excluded
            return not (isinstance(more[0], Real) and more[0].symbols & self.env.floats.keys())
        if (limits := _WITHIN.get(op)) is not None:
            return all(self.env.compare_reals(by, at, limit) for by, limit in zip(("ge", "le"), limits, strict=True))
        number = at.args[0] if at.op == "float" else None
        if isinstance(number, Expr):
            above = self.env.at_least(number, 0 if op == "sqrt" else 1)
        else:
            above = bool(self.env.compare_reals("ge" if op == "sqrt" else "gt", at, 0.0))
        if op != "pow":
            return above and op in _SAFE
        small = isinstance(number, Expr) and (is_symbol(number) or self.env.bounded([number]))
        return above and small and isinstance(more[0], float) and abs(more[0]) <= 8

    def _value_hash(self) -> int:
        """Called by torch's cache of fake tensor results, which other backends use.

        Raises to bypass the cache: an answer may rest on the assumptions of this compile.
        """
        from torch._subclasses.fake_tensor import _BypassDispatchCache

        raise _BypassDispatchCache("numbers that are symbols")

    def sym_float(self) -> SymbolicNode:
        if self.is_float():
            return self
        if self.value.const is not None:
            return self.of(float(self.value.const))
        return self.of(Real("float", (self.value,), (self.value, ONE)))

    def int_truediv(self, other: SymbolicNode) -> SymbolicNode:
        if self.env.equal(other.value, ZERO):
            raise ZeroDivisionError("division by zero")
        exact = divide(self.value, other.value)
        if exact is not None:
            if not self.env.known(">=", other.value - 1) and self.env.equal(self.value, ZERO):
                return self.of(0.0 if self.env.at_least(other.value, 1) else -0.0)
            return self.of(exact).sym_float()
        positive = self.env.known(">=", self.value) and self.env.known(">=", other.value - 1)
        ratio = (self.value, other.value) if positive else None
        return self.of(Real("int_truediv", (self.value, other.value), ratio))

    def float_truediv(self, other: SymbolicNode) -> SymbolicNode:
        return self._real("truediv", other)

    def truediv(self, other: SymbolicNode) -> SymbolicNode:
        return self._real("truediv", other) if self._reals(other) else self.int_truediv(other)

    def float_pow(self, other: SymbolicNode) -> SymbolicNode:
        if isinstance(self.hint**other.hint, complex):
            raise NotImplementedError("a complex power of a symbolic size")
        return self._real("pow", other)

    def floor(self) -> SymbolicNode:
        return self._rounded(math.floor, lambda n, d: n // d)

    def ceil(self) -> SymbolicNode:
        return self._rounded(math.ceil, lambda n, d: (n + d - 1) // d)

    def trunc(self) -> SymbolicNode:
        return self._rounded(math.trunc, lambda n, d: n // d)

    sym_int = trunc

    def _rounded(self, fn: Callable[[float], int], exact: Callable[[Expr, Expr], Expr]) -> SymbolicNode:
        """Round a float.  A quotient below 2**53, rounded once, lies on the same side of every integer as the exact quotient."""
        if self.is_int():
            return self
        if isinstance(self._value, Real) and self._value.ratio is not None:
            n, d = (self.env.resolve(e) for e in self._value.ratio)
            if self.env.at_least(Expr.of(EXACT), n + 1):
                return self.of(exact(n, d))
        known = self._stepped(fn)
        return self.wrap_int(fn(self.guard_float("", 0)) if known is None else known)

    def _stepped(self, fn: Callable[[float], int]) -> int | None:
        """`fn` of a non-decreasing function of an integer, or None."""
        value: Any = self._value
        if not isinstance(value, Real) or value.op not in _RISING or not _is_integer(value.args[0]):
            return None
        if value.op == "pow" and not (isinstance(value.args[1], float) and 0.25 <= value.args[1] <= 2):
            return None
        whole = REAL[value.op]
        return constant_on_interval(
            self.env, value.args[0].args[0], lambda n: fn(whole(float(n), *value.args[1:])), least=1
        )

    def round(self, ndigits: int | None = None) -> SymbolicNode:
        if self.is_int():
            return self
        if ndigits is None and isinstance(self._value, Real) and self._value.ratio is not None:
            n, d = (self.env.resolve(e) for e in self._value.ratio)
            if d.const is not None and d.const > 0 and self.env.at_least(Expr.of(EXACT), n * 2 + 1):
                return self.of(rounded(self.env, n, d.const))
        value = self.guard_float("", 0)
        return self.wrap_int(round(value)) if ndigits is None else self.wrap_float(round(value, ndigits))

    def is_integer(self) -> SymbolicNode:
        return self.wrap_bool(True if self.is_int() else self.guard_float("", 0).is_integer())

    # conditions -----------------------------------------------------------------------------------------------
    def _number(self, given: SymbolicNode | bool) -> SymbolicNode:
        """As a number, a truth value is 0 or 1."""
        return self.wrap_int(int(given)) if isinstance(given, bool) else given

    def _compare(self, op: Any, other: SymbolicNode) -> SymbolicNode:
        if self.is_bool() or other.is_bool():
            a, b = (n.bool_() if n.is_bool() else n for n in (self, other))
            if isinstance(a, bool) and isinstance(b, bool):
                return self.wrap_bool(_COMPARE[op](a, b))
            return self._number(a)._compare(op, self._number(b))
        if self._reals(other):
            return self._compare_reals(op, other)
        a, b = self.value, other.value
        if op in ("eq", "ne"):
            return self._settled(Condition("==" if op == "eq" else "!=", (a - b,)))
        less = {"ge": a - b, "gt": a - b - 1, "le": b - a, "lt": b - a - 1}[op]
        return self._settled(Condition(">=", (less,)))

    def _settled(self, condition: Condition) -> SymbolicNode:
        known = self.env.known(condition.kind, condition.args[0])
        return self.of(condition if known is None else known)

    def _compare_reals(self, op: Any, other: SymbolicNode) -> SymbolicNode:
        """Compare floats.  n / d against an integer is n against a multiple of d; other values must be known."""
        if isinstance(self._value, Real) and isinstance(other.value, float) and other.value.is_integer():
            small = abs(other.value) < EXACT
            if self._value.ratio is not None and small and self.env.at_least(Expr.of(EXACT), self._value.ratio[0] + 1):
                n, d = self._value.ratio
                return self.of(n)._compare(op, self.of(d * int(other.value)))
        for node, number, by in ((self, other.value, op), (other, self.value, _MIRRORED[op])):
            known = number.const if isinstance(number, Expr) else number
            if isinstance(node._value, Real) and node._value.name is not None and isinstance(known, (int, float)):
                if abs(known) < EXACT:
                    return self.wrap_bool(self.env.compare_float(by, node._value.name, float(known)))
        sides = [Real("float", (n.value,)) if isinstance(n.value, Expr) else n.value for n in (self, other)]
        answer = self.env.compare_reals(op, *sides)
        if answer is not None:
            return self.wrap_bool(answer)
        a, b = (n.guard_float("", 0) if n.is_float() else n.guard_int("", 0) for n in (self, other))
        return self.wrap_bool(_COMPARE[op](a, b))

    @_cached_answer
    def eq(self, other: SymbolicNode) -> SymbolicNode:
        return self._compare("eq", other)

    @_cached_answer
    def ne(self, other: SymbolicNode) -> SymbolicNode:
        return self._compare("ne", other)

    @_cached_answer
    def lt(self, other: SymbolicNode) -> SymbolicNode:
        return self._compare("lt", other)

    @_cached_answer
    def le(self, other: SymbolicNode) -> SymbolicNode:
        return self._compare("le", other)

    @_cached_answer
    def gt(self, other: SymbolicNode) -> SymbolicNode:
        return self._compare("gt", other)

    @_cached_answer
    def ge(self, other: SymbolicNode) -> SymbolicNode:
        return self._compare("ge", other)

    def sym_not(self) -> SymbolicNode:
        return (
            self.wrap_bool(not self._value)
            if isinstance(self._value, bool)
            else self.of(Condition("not", (self._value,)))
        )

    def and_(self, other: SymbolicNode) -> SymbolicNode:
        return self.of(Condition("and", (self._value, other._value)))

    def or_(self, other: SymbolicNode) -> SymbolicNode:
        return self.of(Condition("or", (self._value, other._value)))

    sym_and, sym_or = and_, or_

    def xor(self, other: SymbolicNode) -> SymbolicNode:
        return self._bits(other, operator.xor)

    def sym_ite(self, then: SymbolicNode, other: SymbolicNode) -> SymbolicNode:
        return then if self.bool_() else other

    # decisions ------------------------------------------------------------------------------------------------
    def guard_int(self, file: Any, line: int) -> int:
        return self.env.pin(self.value) if self.is_int() else int(self.hint)

    def int_(self) -> int:
        return self.guard_int("", 0)

    def guard_float(self, file: Any, line: int) -> float:
        value = self.value
        if isinstance(value, (Expr, Real)):
            self.env.pin_all(value.symbols)
        return float(self.hint)

    def guard_bool(self, file: Any, line: int) -> bool:
        value = self._value
        if type(value) is bool:
            return value
        if isinstance(value, Real) and value.name is not None:
            return self.env.compare_float("ne", value.name, 0.0)
        if isinstance(value, (Expr, Real)):
            return self.guard_float("", 0) != 0 if isinstance(value, Real) else not self.env.equal(self.value, ZERO)
        answer = self.env.truth(value if isinstance(value, Condition) else bool(value), ask=self.env.decide)
        assert answer is not None
        return answer

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def guard_size_oblivious(self, file: Any, line: int) -> bool:
        return self.guard_bool(file, line)

    guard_or_false = guard_or_true = guard_size_oblivious

    def expect_true(self, file: Any, line: int) -> bool:
        """Decide a condition without which torch raises.  For unbacked symbols the condition is assumed."""
        value = self.value
        if isinstance(value, Condition) and value.kind in HOLDS and self.env.is_late(value.args[0].symbols):
            return self.env.demand(value)
        return self.guard_bool(file, line)

    def statically_known_true(self, file: Any, line: int) -> bool:
        return self.env.truth(self.value, ask=self.env.known) is True

    # layouts --------------------------------------------------------------------------------------------------
    def _layout(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode], order: Sequence[int]
    ) -> SymbolicNode:
        return self.wrap_bool(_is_dense(self.env, [n.value for n in sizes], [n.value for n in strides], order))

    def is_contiguous(self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode]) -> SymbolicNode:
        return self._layout(sizes, strides, range(len(sizes))[::-1])

    def is_channels_last_contiguous_2d(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode]
    ) -> SymbolicNode:
        return self._layout(sizes, strides, (1, 3, 2, 0)) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_contiguous_3d(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode]
    ) -> SymbolicNode:
        return self._layout(sizes, strides, (1, 4, 3, 2, 0)) if len(sizes) == 5 else self.wrap_bool(False)

    def is_channels_last_strides_2d(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode]
    ) -> SymbolicNode:
        return self._channels_last(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_strides_3d(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode]
    ) -> SymbolicNode:
        return self._channels_last(sizes, strides, (1, 4, 3, 2, 0))

    def _channels_last(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode], order: Sequence[int]
    ) -> SymbolicNode:
        """torch's rule for channels-last strides, with its special cases: strides grow in the order of `order`."""
        if len(sizes) != len(order):
            return self.wrap_bool(False)
        env, least, first = self.env, ZERO, strides[1].value
        if env.equal(first, ZERO):
            return self.wrap_bool(False)
        for d in order:
            size, stride = sizes[d].value, strides[d].value
            if env.equal(size, ZERO) or not env.at_least(stride, least):
                return self.wrap_bool(False)
            if d == 0 and env.equal(least, first):
                return self.wrap_bool(False)
            least = stride if env.equal(size, ONE) else stride * size
        return self.wrap_bool(True)

    def is_non_overlapping_and_dense(
        self, sizes: Sequence[SymbolicNode], strides: Sequence[SymbolicNode]
    ) -> SymbolicNode:
        """Whether the dimensions of more than one element, ordered by the hints of their strides, lie without gaps."""
        order = sorted(range(len(sizes)), key=lambda d: (sizes[d].hint > 1, strides[d].hint))
        return self._layout(sizes, strides, order)

    is_non_overlapping_and_dense_indicator = _unsupported("an indicator")


class _ForTorch:
    """Stand-in for a number's sympy expression and for its ShapeEnv, for torch's helpers."""

    free_symbols: frozenset[Any] = frozenset()  # symbols without a hint
    is_number = False  # numbers are queried as numbers

    def __init__(self, node: SymbolicNode) -> None:
        self.node = node

    def __str__(self) -> str:
        return str(self.node.value)

    def _maybe_evaluate_static(self, expr: Any) -> bool | None:
        return self.node.env.truth(self.node.value, ask=self.node.env.known)

    def evaluate_sym_node(self, node: SymbolicNode, *args: Any, **kwargs: Any) -> bool:
        return node.guard_bool("", 0)


def symbols_of_missing_attribute(error: BaseException) -> frozenset[str] | None:
    """The symbols of a number whose missing attribute (of sympy's interface) led to `error` in torch's code, or None."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        asked = one.obj if isinstance(one, AttributeError) else None
        if isinstance(asked, _ForTorch):
            asked = asked.node
        if isinstance(asked, SymbolicNode):
            found: frozenset[str] = getattr(asked.value, "symbols", frozenset())
            return found
        todo += (one.__cause__, one.__context__)
    return None


_TAKES_NUMBERS = re.compile(
    r"SymIntArrayRef expected to contain only concrete integers(?:.* in SymIntArrayRef \[(.*?)\])?", re.DOTALL
)


def symbols_refused_by_cpp(error: BaseException) -> list[str] | None:
    """The symbols among sizes for which C++ code of torch accepts only numbers, if this led to `error`; None otherwise.

    The list is empty if the error does not name the symbols (torch 2.11).
    """
    found = _TAKES_NUMBERS.search(str(error))
    return None if found is None else [*dict.fromkeys(re.findall(r"[A-Za-z_]\w*", found[1] or ""))]


def _is_dense(env: NumberQueries, sizes: Sequence[Expr], strides: Sequence[Expr], order: Sequence[int]) -> bool:
    """Whether the dimensions, innermost first, lie without gaps.

    Dimensions of one element are ignored, and an empty tensor always qualifies.
    """
    if _lie_whatever(env, sizes, strides, order):
        return True
    if any(env.equal(n, ZERO) for n in sizes):
        return True
    expected = ONE
    for d in order:
        if env.equal(sizes[d], ONE):
            continue
        if not env.equal(strides[d], expected):
            return False
        expected = expected * sizes[d]
    return True


def _lie_whatever(env: NumberQueries, sizes: Sequence[Expr], strides: Sequence[Expr], order: Sequence[int]) -> bool:
    """Whether they are known to lie without gaps for all sizes."""
    expected = ONE
    for d in order:
        if sizes[d].const == 1:
            continue
        if not env.known("==", strides[d] - expected):
            return False
        expected = expected * sizes[d]
    return True


def _zero_with(by: Any) -> Any:
    """The integer that is zero exactly where the float is zero, for `float(n)` plus or minus a whole number.

    Another float is returned unchanged.
    """
    if isinstance(by, Real) and by.op == "float":
        return by.args[0]
    if not isinstance(by, Real) or by.op not in ("add", "sub"):
        return by
    a, b = by.args
    whole = isinstance(b, float) and b.is_integer() and abs(b) < EXACT
    if not whole or not isinstance(a, Real) or a.op != "float":
        return by
    return a.args[0] + (int(b) if by.op == "add" else -int(b))


def _ratio(env: NumberQueries, op: str, args: Sequence[Any]) -> tuple[Expr, Expr] | None:
    """The exact fraction of sums and products of sizes and floats of few binary digits, or None."""
    if op not in ("add", "sub", "mul", "truediv"):
        return None
    found = []
    for a in args:
        if isinstance(a, Real) and a.ratio is not None:
            n, d = a.ratio
        elif isinstance(a, float) and math.isfinite(a) and 0 < a.as_integer_ratio()[0] < 2**20:
            n, d = map(Expr.of, a.as_integer_ratio())
        else:
            return None
        if d.const is None or d.const > 2**20 or d.const & (d.const - 1):
            return None  # rounded
        found.append((n, d))
    (n, d), (m, e) = found
    if op == "truediv":
        if m.const is None or m.const & (m.const - 1):
            return (n * e, d * m) if d == e == ONE and env.known(">=", m - 1) else None
        n, d = n * e, d * m
    else:
        n, d = (n * m, d * e) if op == "mul" else (n * e + m * d if op == "add" else n * e - m * d, d * e)
    return (n, d) if env.known(">=", n) else None


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def _math(name: str) -> Callable[[SymbolicNode], SymbolicNode]:
    def method(self: SymbolicNode) -> SymbolicNode:
        return self.sym_float()._real(name)

    return method


for _name in OF_MATH:
    setattr(SymbolicNode, f"sym_{_name}", _math(_name))
