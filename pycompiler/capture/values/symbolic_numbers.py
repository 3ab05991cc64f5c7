"""Symbolic numbers: computed from sizes and integer arguments that may differ between calls.

In: torch's SymInt, SymFloat and SymBool over our symbols (`symbolic/symbols.py`).  Out: `Symbolic` values. Arithmetic,
comparisons and size computations stay symbolic.  Code that needs the number calls `Capture.realize` or
`const` with a reason.  From then on the number's symbols are assumed to have their values of this call.

Open values: str and numbers (arguments, attributes, symbolic numbers) whose value the program has not used.  Each call
reads them when it begins and computes the results of the program's functions on them (`ir/computed_sources.py`).
`source_of_open` gives their source.  `ComputedStr` is a str that the program computes from open values and only passes on.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeGuard

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import NEEDED, Capture, LazyObject, Value
from pycompiler.capture.values.constant import Const
from pycompiler.ir.computed_sources import PLAIN as KEYS
from pycompiler.ir.computed_sources import call_with_plain, evaluated, joined, percent
from pycompiler.ir.source import Source, const_source
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.integer_functions import common_divisor, constant_on_interval
from pycompiler.symbolic.size_nodes import MATH
from pycompiler.symbolic.symbolic_node import Condition, Real, integers_in, is_symbol
from pycompiler.symbolic.symbols import Specialise, hint_of, is_symbolic, symbols_of

NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
PLAIN = (int, float, bool)
MOST_COMPARED = 16  # elements of a constant


class Symbolic(Value):
    """A number over symbols.  `sym`: torch's symbolic number."""

    def __init__(self, sym: Any) -> None:
        self.sym = sym
        self._settled: Const | None = None

    def settle(self, why: str) -> Const:
        """The number, a constant from now on.  `why` is recorded with the assumption."""
        if self._settled is None:
            if is_unbacked(self.sym):
                raise Break("data-dependent-value", f"the value of {self.sym}, {why}")
            env = symbols_of(self.sym)
            with env.because(why) if env is not None else nullcontext():
                self._settled = Const(NUMBERS[type(self.sym)](self.sym))
        return self._settled

    def is_const(self) -> bool:
        """Whether the assumptions so far leave only one number."""
        return self._settled is not None or not is_symbolic(self.sym)

    def const(self, why: str = NEEDED) -> Any:
        return self.settle(why).value

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in NAMED and self.python_type() is int:
            part = NAMED[name]
            return cx.class_attribute(self, name) if part is None else cx.make(part(self.sym))
        known = cx.realize(self, f"to read its {name}") if self.has_method(cx, name) else self.like()
        return known.getattr(cx, name)

    def describe(self) -> str:
        return f"symbolic {self.python_type().__name__} {self.sym}"

    __repr__ = describe

    def python_type(self) -> type:
        return NUMBERS[type(self.sym)]

    def identity(self) -> object:
        return ("symbolic", id(self))

    def truth(self, cx: Capture) -> bool:
        if is_unbacked(self.sym):
            known = truth_by_facts(self.sym)
            if known is None:
                raise Break("data-dependent-jump", f"{self.sym} (torch._check may decide the branch)")
            return known
        return bool(self.sym)

    def among(self, cx: Capture, container: Any) -> bool | None:
        if not isinstance(self.sym, torch.SymInt) or is_unbacked(self.sym):
            return None
        if type(container) is range:
            low, *_, high = sorted((*container[:1], *container[-1:])) or (0, -1)
            return bool(self.sym >= low and self.sym <= high and (self.sym - low) % abs(container.step) == 0)
        if type(container) not in (list, frozenset) or len(container) > MOST_COMPARED:
            return None
        if any(type(e) not in KEYS for e in container):
            return None
        numbers = [int(e) for e in container if isinstance(e, int) or isinstance(e, float) and e.is_integer()]
        return any(bool(self.sym == n) for n in numbers)

    def like(self) -> Const:
        """Some number of this class, for operations that depend on the class alone."""
        return Const(self.python_type()())

    # operations that no number supports
    def length(self, cx: Capture) -> Value:
        return self.like().length(cx)

    def getitem(self, cx: Capture, key: Value) -> Value:
        return self.like().getitem(cx, key)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return self.like().iterate(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        return self.like().contains(cx, item)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.like().call(cx, args, kwargs)


NAMED: dict[str, Callable[[Any], Any] | None] = {
    "real": lambda n: n, "numerator": lambda n: n, "imag": lambda n: 0, "denominator": lambda n: 1,
    **dict.fromkeys(("bit_length", "conjugate", "__index__")),
}  # fmt: skip
"""Attributes of integers, as functions of a symbolic integer.  None: a method that `FUNCTIONS` covers."""


class NestedInt(Value):
    """The size of a ragged dimension: it stands for a tensor of offsets and is not a number
    (`torch_compat/jagged_tensors.py`).

    Equality of two of them is known at capture time, since guards say which offsets are the same object.  An operation
    that needs the object reads it from a tensor whose shape contains it.
    """

    def __init__(self, sym: torch.SymInt) -> None:
        self.sym = sym

    def describe(self) -> str:
        return "the size of a ragged dimension"

    __repr__ = describe

    def python_type(self) -> type:
        return torch.SymInt

    def identity(self) -> object:
        node: Any = self.sym.node
        return ("nested int", node.nested_int(), node.nested_int_coeff())

    def truth(self, cx: Capture) -> bool:
        return True  # torch assumes that it is at least 2

    def getattr(self, cx: Capture, name: str) -> Value:
        raise Break("tensor-subclass", f"{name} of {self.describe()}")

    def owner(self, cx: Capture) -> tuple[Any, int]:
        """A tensor whose shape contains this size, and the dimension."""
        found = cx.graph.with_size(self.sym)
        if found is None:
            raise Break("tensor-subclass", f"{self.describe()}, of an unknown tensor")
        return found


def compute_nested(cx: Capture, fn: Callable[..., Any], *values: Value) -> Value:
    """An operator on nested ints and constants."""
    if any(not isinstance(v, (NestedInt, Const)) for v in values):
        raise Break("tensor-subclass", f"{fn.__name__} of {', '.join(v.describe() for v in values)}")
    try:
        return cx.make(fn(*(v.sym if isinstance(v, NestedInt) else v.const() for v in values)))  # type: ignore[no-any-return]
    except (ValueError, TypeError, RuntimeError, AttributeError, NotImplementedError) as e:
        raise Break("tensor-subclass", f"{fn.__name__} of the size of a ragged dimension: {e}") from None


PLAIN_VALUES = (Const, Symbolic)
"""Immutable values whose destruction runs no code: constants and symbolic numbers."""


def is_unbacked(sym: Any) -> bool:
    """Whether a number contains unbacked symbols."""
    env = symbols_of(sym)
    return env is not None and env.is_late(symbols_in(sym))


def symbols_in(sym: Any) -> set[str]:
    """The names of the symbols in a SymInt, SymFloat or SymBool of this compiler."""
    value = sym.node.value
    return set(value.symbols) if isinstance(value, (Expr, Real, Condition)) else set()


def truth_by_facts(sym: Any) -> bool | None:
    """The truth of a number or condition as far as recorded facts decide it; None if they do not."""
    env, value = sym.node.env, sym.node.value
    if isinstance(value, Expr):
        return env.known("!=", value)  # type: ignore[no-any-return]
    return env.truth(value, ask=env.known) if isinstance(value, (Condition, bool)) else None


def number_of(value: Value) -> Any:
    """torch's operand for a number, symbolic or not; None for all other values."""
    if isinstance(value, Symbolic):
        return value.sym
    return value.value if isinstance(value, Const) and type(value.value) in PLAIN else None


def make_number(sym: Any) -> Value:
    """The value of a SymInt, SymFloat or SymBool: a constant if it contains no symbol."""
    return Symbolic(sym) if is_symbolic(sym) else Const(NUMBERS[type(sym)](sym))


def compute(cx: Capture, fn: Callable[..., Any], values: Sequence[Value]) -> Value | None:
    """fn(*values) for numbers, at least one symbolic; None if only the numbers' values would do."""
    numbers = [number_of(v) for v in values]
    if any(n is None for n in numbers):
        return None
    truths = [isinstance(n, bool | torch.SymBool) for n in numbers]
    try:
        if fn in COMPARED and not _as_floats(numbers):
            return None
        if not all(truths):  # beside numbers, bools act as numbers; torch turns mixed operands into bools
            numbers = [int(bool(n)) if truth else n for n, truth in zip(numbers, truths, strict=True)]
        result = PYTHON_OPERATORS.get(fn, fn)(*numbers)
    except (TypeError, NotImplementedError, AttributeError):
        return None
    except Specialise as e:
        if any(is_unbacked(n) for n in numbers):
            raise Break("data-dependent-value", e.why) from e
        raise
    except (ArithmeticError, ValueError) as e:
        cls, words = type(e), e.args  # the exception object is dropped, since its traceback holds this frame
    else:
        return cx.make(result)  # type: ignore[no-any-return]
    cx.evaluate_raw(fn, *map(hint_value, values))  # raises with Python's message
    cx.throw(cls, *words)


COMPARED = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _as_floats(numbers: Sequence[Any]) -> bool:
    """Whether integers may be compared as floats.  Python compares int and float exactly, so large integers must not."""
    integers = [n for n in numbers if type(n) in (int, torch.SymInt)]
    if len(integers) in (0, len(numbers)):
        return True
    symbols = next((s for n in numbers if (s := symbols_of(n)) is not None), None)
    exprs = [Expr.of(n) if type(n) is int else n.node.value for n in integers]
    return symbols is None or symbols.bounded(exprs)


def _number(n: Any) -> Any:
    """The number of this call, recorded as an assumption."""
    return int(n) if isinstance(n, torch.SymInt) else float(n) if isinstance(n, torch.SymFloat) else n


def _is_float(n: Any) -> bool:
    return isinstance(n, float | torch.SymFloat)


def _power(base: Any, exponent: Any) -> Any:
    """torch's symbolic power rejects results that may be complex or fractional for a non-positive base: use the
    numbers.
    """
    if not base >= 0 and (_is_float(base) or _is_float(exponent) or not exponent >= 0):
        base, exponent = _number(base), _number(exponent)
    return operator.pow(base, exponent)


def _floor_division(a: Any, b: Any) -> Any:
    """torch rounds the quotient before the floor, possibly up to the next integer, and loses the sign of a zero."""
    if _is_float(a) or _is_float(b):
        exact = isinstance(a, torch.SymInt) and isinstance(b, float) and b.is_integer() and b > 0 and 0 < a < 2**53
        if not exact:
            a, b = _number(a), _number(b)
    return operator.floordiv(a, b)


def _of_integers(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Bit operations on floats: use the numbers, so that Python raises its error."""
    return lambda *numbers: fn(*(map(_number, numbers) if any(map(_is_float, numbers)) else numbers))


def call(cx: Capture, fn: Any, args: Sequence[Value]) -> Value | None:
    """A call of a builtin function or class with a symbolic number; None if it cannot stay symbolic."""
    if issubclass(type(fn), type) and type(fn) is not type:  # a metaclass may define `__eq__`
        return None
    try:
        symbolic = FUNCTIONS.get(fn)
    except TypeError:  # not hashable
        return None
    if symbolic is None or not any(isinstance(a, Symbolic) for a in args):
        return None
    return compute(cx, symbolic, args)


def _to_int(number: Any) -> Any:
    if isinstance(number, torch.SymFloat):
        return torch.sym_int(number)
    return number if isinstance(number, torch.SymInt) else int(number)


def _stepped(function: Callable[[int], int]) -> Callable[[Any], Any]:
    """A monotone non-decreasing function of integers."""

    def of(number: Any) -> Any:
        if not isinstance(number, torch.SymInt):
            raise NotImplementedError
        node: Any = number.node
        found = constant_on_interval(node.env, node.value, function)
        if found is None:
            raise NotImplementedError
        return found

    return of


def _common_divisor(a: Any, b: Any) -> Any:
    number, by = (b, a) if type(a) is int else (a, b)
    if type(by) is not int or not isinstance(number, torch.SymInt) or not 0 < abs(by) < 2**20 or is_unbacked(number):
        raise NotImplementedError
    node: Any = number.node
    return common_divisor(node.env, node.value, abs(by))


def _hash(number: Any) -> Any:
    if not isinstance(number, torch.SymInt) or not (number >= 0 and number < sys.hash_info.modulus):
        raise NotImplementedError
    return number


def _same(number: Any) -> Any:
    if not isinstance(number, torch.SymInt):
        raise NotImplementedError
    return number


def _to_index(number: Any) -> Any:
    return number if isinstance(number, torch.SymInt) else operator.index(number)


def _to_bool(number: Any) -> Any:
    """The truth of an unbacked number is unbacked too."""
    if not is_unbacked(number) or isinstance(number, torch.SymBool):
        return number if is_unbacked(number) else bool(number)
    if isinstance(number, torch.SymInt):
        return number != 0
    node: Any = number.node.of(Condition("!=", (number.node.value,)))
    return torch.SymBool(node)


def _negated(number: Any) -> Any:
    truth = _to_bool(number)
    return torch.sym_not(truth) if isinstance(truth, torch.SymBool) else not truth


PYTHON_OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.pow: _power, operator.floordiv: _floor_division, operator.index: _of_integers(_to_index),
    operator.invert: lambda n: ~_number(n) if _is_float(n) else -n - 1,
    **{fn: _of_integers(fn) for fn in (operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor)},
}  # fmt: skip
"""Operators for which torch's symbolic numbers differ from Python's."""
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    abs: abs, pow: operator.pow, divmod: lambda a, b: (_floor_division(a, b), a % b), operator.index: operator.index,
    math.floor: math.floor, math.ceil: math.ceil, math.trunc: math.trunc,
    round: lambda number: round(number), math.isqrt: _stepped(math.isqrt), int.bit_length: _stepped(int.bit_length),
    math.gcd: _common_divisor, hash: _hash, int.conjugate: _same, int.__index__: _same,
    int: _to_int, float: torch.sym_float, bool: _to_bool, operator.truth: _to_bool, operator.not_: _negated,
    math.pow: lambda a, b: _power(torch.sym_float(a), torch.sym_float(b)),
    **{getattr(math, name): fn for name, fn in MATH.items()},
}  # fmt: skip


# Values that each call computes when it begins ----------------------------------------------------------------------
class ComputedStr(LazyObject):
    """A str that `function` computes from values.  The values' classes are guarded, so the function cannot raise."""

    def __init__(self, real: str, source: Source, parts: Sequence[Value]) -> None:
        super().__init__(real, source)
        self.parts = parts

    def look(self, cx: Capture) -> Value:
        for part in self.parts:
            cx.realize(part, "as a part of a str")
        return Const(self.real)

    def guard_class(self, cx: Capture) -> None:
        """No guard: the classes of the parts are guarded already."""
        self.is_text = True


def is_open_text(value: Value) -> TypeGuard[LazyObject]:
    """Whether the value is a str whose letters the program has not used."""
    return isinstance(value, LazyObject) and value.seen is None and type(value.real) is str


def is_open(value: Value) -> bool:
    """Whether the value is an open str, or a number that guards have not fixed."""
    return is_open_text(value) or isinstance(value, Symbolic) and not value.is_const() and not is_unbacked(value.sym)


def hint_value(value: Value) -> Any:
    """The str or number of this call."""
    return (
        value.real
        if isinstance(value, LazyObject)
        else hint_of(value.sym)
        if isinstance(value, Symbolic)
        else value.const()
    )


def changes(cx: Capture, value: Value) -> bool:
    """Whether an open str or number may differ between calls."""
    return not isinstance(value, LazyObject) or value.source is None or cx.sizes.is_other_text(value.real, value.source)


def source_of_open(cx: Capture, value: Value) -> Source | None:
    """The source of a str or number at the begin of a call; None for other values and for values known only later."""
    if isinstance(value, LazyObject):
        return value.source if type(value.real) in KEYS else None
    if isinstance(value, Const):
        return const_source(value.value) if type(value.value) in KEYS else None
    if not isinstance(value, Symbolic) or is_unbacked(value.sym) or isinstance(value.sym, torch.SymBool):
        return None
    number = value.sym.node.value
    if value.is_const() or not is_symbolic(value.sym) or isinstance(number, float):
        return const_source(value.const())
    if value.source is not None:
        return value.source
    names = tuple(sorted(number.symbols))
    places = [cx.sizes.source_of(name) for name in names]
    return cx.computed(evaluated, const_source(number), const_source(names), *places)


def _is_short(number: Symbolic) -> bool:
    """Whether every str of the number can be computed: an integer part must be bounded.

    Python would raise for a larger one, in a float or a str conversion.
    """
    value: Any = number.sym.node.value
    parts = [n for n in integers_in(value) if n.const is None and not is_symbol(n)]
    return not parts or number.sym.node.env.bounded(parts)


def text(cx: Capture, function: Callable[..., Any], values: Sequence[Value]) -> ComputedStr | None:
    """The str that `function` computes from the values; None if no value is open or one has no source."""
    values = [v if is_open_text(v) else cx.realize(v) for v in values]
    if not any(map(is_open, values)):
        return None
    if not all(_is_short(v) for v in values if isinstance(v, Symbolic)):
        return None
    places = [source_of_open(cx, v) for v in values]
    made = [p for p in places if p is not None]
    if len(made) < len(places):
        return None
    try:
        real = function(*map(hint_value, values))
    except Exception:  # the program's own error
        return None
    for value in values:
        if isinstance(value, LazyObject):
            value.guard_class(cx)
    kept = (joined, percent)
    source = (
        cx.computed(function, *made)
        if function in kept
        else cx.computed(call_with_plain, const_source(function), *made)
    )
    return ComputedStr(real, source, values)


class LengthCheck:
    """len() of it checks the result of a `__len__` as len() of the object does."""

    def __init__(self, length: object) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length  # type: ignore[return-value]


def checked_length(cx: Capture, found: Value) -> Value:
    """The result of a `__len__` of the program as a length.  Raises as len() does."""
    if isinstance(found, Symbolic) and found.python_type() is int and not is_unbacked(found.sym):
        if bool(found.sym >= 0) and bool(found.sym <= sys.maxsize):
            return found
    return Const(int(cx.evaluate_raw(len, LengthCheck(found.const()))))
