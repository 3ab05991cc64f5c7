"""Integer functions over symbols: quotients, bits, rounding, and functions that are constant over intervals.

In: `Expr`s, and `IntegerQueries`: the compile, which answers queries by its hints and records the answers as assumptions.
Out: `Expr`s and numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from pycompiler.symbolic.expr import ONE, ZERO, Expr

MOST_RUNS = 4  # runs of ones in a mask
MOST_STEPPED = 2**40  # below, a non-decreasing function of a float is also non-decreasing from one integer to the next


class IntegerQueries(Protocol):
    """The queries about integers that a compile answers: `symbols.Symbols`."""

    @property
    def hints(self) -> Mapping[str, int]: ...
    def resolve(self, expr: Expr) -> Expr: ...
    def known(self, kind: str, expr: Expr) -> bool | None: ...
    def equal(self, a: Expr, b: Expr) -> bool: ...
    def at_least(self, a: Expr, b: Expr | int) -> bool: ...
    def is_late(self, names: Iterable[str]) -> bool: ...


def product(atoms: Iterable[Any]) -> Expr:
    made = ONE
    for atom in atoms:
        made = made * (Expr.sym(atom.key) if atom.kind == "sym" else _FORMS[atom.kind](*atom.args))
    return made


_FORMS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "//": operator.floordiv, "%": operator.mod, "min": Expr.min, "max": Expr.max,
}  # fmt: skip


def divide(a: Expr, b: Expr) -> Expr | None:
    """a / b if it is a polynomial of integers, else None."""
    if b.const == 0:
        return None
    (lead, c), quotient, rest = b.terms[-1], ZERO, a
    for _ in range(len(a.terms) + 8):
        if rest.const == 0:
            return quotient
        for mono, k in reversed(rest.terms):
            left = list(mono)
            if k % c == 0 and all(_take(left, atom) for atom in lead):
                term = product(left) * (k // c)
                break
        else:
            return None
        quotient, rest = quotient + term, rest - term * b
    return None


def _take(items: list[Any], item: Any) -> bool:
    if item in items:
        items.remove(item)
        return True
    return False


def floor_division(env: IntegerQueries, a: Expr, b: Expr) -> Expr:
    if env.equal(b, ZERO):
        raise ZeroDivisionError("integer division or modulo by zero")
    exact = divide(a, b)
    if exact is not None:
        return exact
    if env.known(">=", a) and env.known(">=", b - a - 1):
        return ZERO
    if not env.at_least(b, 1):
        a, b = -a, -b
    if env.at_least(a, 0):
        return a // b
    return -((b - a - 1) // b)


def remainder(env: IntegerQueries, a: Expr, b: Expr) -> Expr:
    if env.equal(b, ZERO):
        raise ZeroDivisionError("integer division or modulo by zero")
    if divide(a, b) is not None:
        return ZERO
    if env.known(">=", a) and env.known(">=", b - a - 1):
        return a
    if env.at_least(b, 1) and env.at_least(a, 0):
        return a % b
    return a - b * floor_division(env, a, b)


def rounded(env: IntegerQueries, n: Expr, d: int) -> Expr:
    """The integer nearest to n / d, the even one of two equally near ones; n must not be negative."""
    above, twice = n * 2 + d, 2 * d  # n / d + 1/2, in units of 1/(2d)
    rest = remainder(env, above, Expr.of(2 * twice))  # the remainder is `twice` at a tie whose greater neighbour is odd
    tied = floor_division(env, rest, Expr.of(twice)) - floor_division(env, rest + twice - 1, Expr.of(2 * twice))
    return floor_division(env, above, Expr.of(twice)) - tied


def with_bits(env: IntegerQueries, n: Expr, mask: int) -> Expr | None:
    """`n & mask`; None for a mask of many runs."""
    if mask < 0:
        rest = with_bits(env, n, ~mask)
        return None if rest is None else n - rest
    runs = [*_runs(mask)]
    if len(runs) > MOST_RUNS:
        return None
    found = ZERO
    for low, size in runs:
        found = found + remainder(env, floor_division(env, n, Expr.of(1 << low)), Expr.of(1 << size)) * (1 << low)
    return found


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a mask: lowest bit, and length."""
    at = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        ones = (~(mask >> zeros) & ((mask >> zeros) + 1)).bit_length() - 1
        yield at + zeros, ones
        at, mask = at + zeros + ones, mask >> (zeros + ones)


BITS: dict[Callable[[Any, Any], Any], Callable[[Expr, int, Expr], Expr]] = {
    operator.and_: lambda n, mask, both: both,
    operator.or_: lambda n, mask, both: n + mask - both,
    operator.xor: lambda n, mask, both: n + mask - both * 2,
}
"""Operator -> result for a number and a mask, given `both = n & mask`."""


def common_divisor(env: IntegerQueries, n: Expr, k: int) -> int:
    """The greatest common divisor of `n` and `k`.  Assumed: which powers of the primes of `k` divide `n`."""
    found, left, prime = 1, k, 2
    while left > 1:
        prime = prime if prime * prime <= left else left
        while left % prime == 0:
            left //= prime
            if not env.equal(remainder(env, n, Expr.of(found * prime)), ZERO):
                while left % prime == 0:
                    left //= prime
                break
            found *= prime
        prime += 1
    return found


def constant_on_interval(
    env: IntegerQueries, number: Expr, function: Callable[[int], int], least: int = 0
) -> int | None:
    """The value of a non-decreasing function for the hint.  Assumed: the interval of integers on which it has this value.

    None for an unbacked number, or for a hint outside of `least` to MOST_STEPPED.
    """
    number = env.resolve(number)
    today = number.eval(env.hints)
    if env.is_late(number.symbols) or not least <= today <= MOST_STEPPED:
        return None
    value = function(today)
    low = _last(lambda n: function(n) == value, today, least)
    high = _last(lambda n: function(n) == value, today, MOST_STEPPED)
    return value if env.at_least(number, low) and env.at_least(Expr.of(high), number) else None


def _last(holds: Callable[[int], bool], first: int, end: int) -> int:
    """The last integer from `first`, where `holds` is true, towards `end` for which `holds` is true."""
    if holds(end):
        return end
    while abs(end - first) > 1:
        middle = (first + end) // 2
        first, end = (middle, end) if holds(middle) else (first, middle)
    return first
