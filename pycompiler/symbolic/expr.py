"""Integer expressions for sizes, strides and indices.

In: ints and symbol names.  Out: `Expr`, an immutable integer polynomial in canonical form: a sum of
`coefficient * product of atoms`.  An atom is a symbol, a floor division, a modulus, a minimum or a maximum.
Equal polynomials over the same atoms are equal objects (`==`, `hash`); a constant equals, and hashes as, its int.

    i, j = Expr.sym("i"), Expr.sym("j")
    flat = 1024 * i + j
    (flat // 1024).simplify({"i": 8, "j": 1024})    # i
    flat.coeff("i")                                 # 1024: the stride with respect to i

Symbols are sizes, loop variables or wrapped indices: not negative.  A name that starts with `%` (an indirect index,
the value of an op) may have any value.  `//` and `%` mean floor division and its remainder, as in Python.  `to_c` prints
C's `/` and `%`, which agree as long as the dividend is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import Any, Union

IntLike = Union[int, "Expr"]
Bound = tuple[int | None, int | None]


class SymbolicError(TypeError):
    """A number is needed, but the size is symbolic."""


class Atom:
    """A factor: kind is "sym", "//", "%", "min" or "max".  Interned, so equality is identity; ordered by `key`."""

    __slots__ = ("args", "key", "kind", "symbols")
    kind: str
    key: str
    args: tuple[Expr, ...]
    symbols: frozenset[str]

    def __lt__(self, other: Atom) -> bool:
        return self.key < other.key

    def __repr__(self) -> str:
        return self.key

    def __reduce__(self) -> tuple[Any, ...]:
        return (_symbol_atom, (self.key,)) if self.kind == "sym" else (_atom, (self.kind, *self.args))

    def __copy__(self) -> Atom:
        return self

    def __deepcopy__(self, memo: object) -> Atom:
        return self


Monomial = tuple[Atom, ...]
_ATOMS: dict[str, Atom] = {}  # dict.setdefault is atomic: threads agree on one atom per key


def _intern(kind: str, key: str, args: tuple[Expr, ...], symbols: frozenset[str]) -> Atom:
    atom = Atom()
    atom.kind, atom.key, atom.args, atom.symbols = kind, key, args, symbols
    return _ATOMS.setdefault(key, atom)


def _symbol_atom(name: str) -> Atom:
    return _ATOMS.get(name) or _intern("sym", name, (), frozenset((name,)))


def _atom(kind: str, a: Expr, b: Expr) -> Atom:
    key = f"({a} {kind} {b})" if kind in ("//", "%") else f"{kind}({a}, {b})"
    return _ATOMS.get(key) or _intern(kind, key, (a, b), a.symbols | b.symbols)


class Expr:
    """See the module docstring.  `terms`: sorted ((atoms, coefficient), ...); the constant term has no atoms."""

    __slots__ = ("_hash", "_symbols", "_text", "const", "terms")
    terms: tuple[tuple[Monomial, int], ...]
    const: int | None  # the value of a constant, None if symbolic
    _hash: int
    _symbols: frozenset[str] | None
    _text: str | None

    def __init__(self) -> None:
        raise TypeError("use Expr.of(value) or Expr.sym(name)")

    # -- construction ---------------------------------------------------------------------------------------------

    @staticmethod
    def of(value: int | str | Expr) -> Expr:
        """An int gives a constant, a str the symbol of that name, an Expr itself."""
        if type(value) is Expr:
            return value
        if isinstance(value, int):
            found = _CONSTANTS.get(value)
            return found if found is not None else _constant(int(value))
        if isinstance(value, str):
            return Expr.sym(value)
        raise TypeError(f"Expr.of takes an int, a symbol's name or an Expr, not {type(value).__name__} ({value!r})")

    @staticmethod
    def sym(name: str) -> Expr:
        found = _SYMBOLS.get(name)
        if found is None:
            found = _SYMBOLS.setdefault(name, _make((((_symbol_atom(name),), 1),), None))
        return found

    @staticmethod
    def of_atom(atom: Atom) -> Expr:
        """The expression of the atom alone."""
        return _make((((atom,), 1),), None)

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def is_const(self) -> bool:
        return self.const is not None

    def as_int(self) -> int:
        if self.const is None:
            raise SymbolicError(f"the expression {self} is symbolic: an int was expected (its symbols: "
                                f"{', '.join(sorted(self.symbols))})")  # fmt: skip
        return self.const

    __int__ = as_int
    __index__ = as_int

    def __bool__(self) -> bool:
        return bool(self.as_int())

    @property
    def symbol(self) -> str | None:
        """The symbol's name, if the expression is one symbol."""
        single = _single(self)
        return single[0].key if single is not None and single[1] == 1 and single[0].kind == "sym" else None

    @property
    def symbols(self) -> frozenset[str]:
        if self._symbols is None:
            names: set[str] = set()
            for mono, _ in self.terms:
                for atom in mono:
                    names |= atom.symbols
            self._symbols = frozenset(names)
        return self._symbols

    def sums(self) -> Iterator[Expr]:
        """The polynomials computed for this expression: the ones inside of its atoms, then itself."""
        for mono, _ in self.terms:
            for atom in mono:
                for part in atom.args:
                    yield from part.sums()
        yield self

    def coeff(self, symbol: str) -> Expr | None:
        """The factor of `symbol` if the expression is affine in it (0 if absent), else None."""
        if symbol not in self.symbols:
            return ZERO
        atom = _symbol_atom(symbol)
        found: dict[Monomial, int] = {}
        for mono, c in self.terms:
            if atom in mono:
                at = mono.index(atom)
                rest = mono[:at] + mono[at + 1 :]
                if any(symbol in a.symbols for a in rest):
                    return None
                found[rest] = found.get(rest, 0) + c
            elif any(symbol in a.symbols for a in mono):
                return None
        return _from_dict(found)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def __add__(self, other: IntLike) -> Expr:
        if type(other) is not Expr:
            if not isinstance(other, int):
                return NotImplemented
            other = Expr.of(other)
        if self.const is not None:
            if other.const is not None:
                return Expr.of(self.const + other.const)
            if self.const == 0:
                return other
        elif other.const == 0:
            return self
        total = dict(self.terms)
        for mono, c in other.terms:
            total[mono] = total.get(mono, 0) + c
        return _from_dict(total)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: IntLike) -> Expr:
        return self + (-other)

    def __rsub__(self, other: IntLike) -> Expr:
        return -self + other

    def __mul__(self, other: IntLike) -> Expr:
        if type(other) is not Expr:
            if not isinstance(other, int):
                return NotImplemented
            other = Expr.of(other)
        if self.const is not None:
            return other * self if other.const is None else Expr.of(self.const * other.const)
        if other.const is not None:
            k = other.const
            if k == 1:
                return self
            return _make(tuple((m, c * k) for m, c in self.terms), None) if k else ZERO
        product: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                mono = tuple(sorted(m1 + m2))
                product[mono] = product.get(mono, 0) + c1 * c2
        return _from_dict(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Expr:
        return _divide(self, Expr.of(other), None)

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return _divide(Expr.of(other), self, None)

    def __mod__(self, other: IntLike) -> Expr:
        return _modulo(self, Expr.of(other), None)

    def __rmod__(self, other: IntLike) -> Expr:
        return _modulo(Expr.of(other), self, None)

    def min(self, other: IntLike) -> Expr:
        return _extreme("min", self, Expr.of(other), None)

    def max(self, other: IntLike) -> Expr:
        return _extreme("max", self, Expr.of(other), None)

    # -- comparison -----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Expr:
            return self._hash == other._hash and self.terms == other.terms
        return self.const == other if isinstance(other, int) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: IntLike) -> bool:
        return self.as_int() < int(other)

    def __le__(self, other: IntLike) -> bool:
        return self.as_int() <= int(other)

    def __gt__(self, other: IntLike) -> bool:
        return self.as_int() > int(other)

    def __ge__(self, other: IntLike) -> bool:
        return self.as_int() >= int(other)

    # -- rewriting ------------------------------------------------------------------------------------------------

    def subst(self, mapping: Mapping[str, IntLike]) -> Expr:
        """Replace symbols, all at once."""
        if self.const is not None or self.symbols.isdisjoint(mapping):
            return self
        if all(len(mono) < 2 and all(a.kind == "sym" for a in mono) for mono, _ in self.terms):
            total: dict[Monomial, int] = {}
            for mono, c in self.terms:
                found = mapping.get(mono[0].key) if mono else None
                for m, k in ((mono, 1),) if found is None else Expr.of(found).terms:
                    total[m] = total.get(m, 0) + c * k
            return _from_dict(total)
        return self._rebuild(lambda name: Expr.of(mapping[name]) if name in mapping else Expr.sym(name), None)

    def simplify(self, ranges: Mapping[str, IntLike]) -> Expr:
        """An expression equal for all 0 <= symbol < ranges[symbol], with fewer divisions."""
        if all(a.kind == "sym" for mono, _ in self.terms for a in mono):
            return self
        return _recombine(self._rebuild(Expr.sym, ranges))

    def _rebuild(self, symbol: Callable[[str], Expr], ranges: Mapping[str, IntLike] | None) -> Expr:
        total: dict[Monomial, int] = {}
        for mono, c in self.terms:
            product = ONE if not mono else _rebuild_atom(mono[0], symbol, ranges)
            for atom in mono[1:]:
                product = product * _rebuild_atom(atom, symbol, ranges)
            for m, k in product.terms:
                total[m] = total.get(m, 0) + c * k
        return _from_dict(total)

    def bounds(self, ranges: Mapping[str, IntLike]) -> Bound:
        """The least and greatest value (an enclosing interval; None: unbounded) for 0 <= symbol < ranges[symbol]."""
        if self.const is not None:
            return self.const, self.const
        low: int | None = 0
        high: int | None = 0
        for mono, c in self.terms:
            a, b = _monomial_bounds(mono, ranges)
            if c < 0:
                a, b = b, a
            low = None if low is None or a is None else low + c * a
            high = None if high is None or b is None else high + c * b
        return low, high

    def eval(self, env: Mapping[str, int]) -> int:
        """The value, given a value for every symbol in `env`."""
        if self.const is not None:
            return self.const
        total = 0
        for mono, c in self.terms:
            for atom in mono:
                c *= env[atom.key] if atom.kind == "sym" else _EVAL[atom.kind](*[a.eval(env) for a in atom.args])
            total += c
        return total

    # -- printing -------------------------------------------------------------------------------------------------

    def to_py(self, names: Mapping[str, str] | None = None) -> str:
        return self._print(_PY, names or {})

    def to_c(self, names: Mapping[str, str] | None = None) -> str:
        """C code over int64_t variables (`names` renames symbols); dividends must not be negative."""
        return self._print(_C, names or {})

    def _print(self, forms: Mapping[str, str], names: Mapping[str, str]) -> str:
        if self.const is not None:
            return str(self.const)
        parts: list[str] = []
        for mono, c in sorted(self.terms, key=lambda t: (not t[0], -abs(t[1]))):  # large strides first, constant last
            factors = [names.get(a.key, a.key) if a.kind == "sym" else
                       forms[a.kind].format(*[x._print(forms, names) for x in a.args]) for a in mono]  # fmt: skip
            if abs(c) != 1 or not factors:
                factors.insert(0, str(abs(c)))
            parts += [" - " if c < 0 else " + ", "*".join(factors)]
        return ("-" if parts[0] == " - " else "") + "".join(parts[1:])

    def __repr__(self) -> str:
        if self._text is None:
            self._text = self._print(_PY, {})
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        return (_make_pickled, (self.terms,))

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self


_PY = {"//": "(({0}) // ({1}))", "%": "(({0}) % ({1}))", "min": "min({0}, {1})", "max": "max({0}, {1})"}
_C = {
    "//": "(({0}) / ({1}))", "%": "(({0}) % ({1}))",
    "min": "(({0}) < ({1}) ? ({0}) : ({1}))", "max": "(({0}) > ({1}) ? ({0}) : ({1}))",
}  # fmt: skip
_EVAL: dict[str, Callable[[int, int], int]] = {
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "min": min, "max": max,
}  # fmt: skip


def _make(terms: tuple[tuple[Monomial, int], ...], const: int | None) -> Expr:
    e = object.__new__(Expr)
    e.terms, e.const = terms, const
    e._hash = hash(terms) if const is None else hash(const)
    e._symbols = e._text = None
    return e


def _constant(value: int) -> Expr:
    return _make((((), value),) if value else (), value)


def _from_dict(terms: dict[Monomial, int]) -> Expr:
    left = [t for t in terms.items() if t[1]]
    if not left:
        return ZERO
    if len(left) == 1:
        return Expr.of(left[0][1]) if not left[0][0] else _make((left[0],), None)
    left.sort()
    return _make(tuple(left), None)


def _make_pickled(terms: tuple[tuple[Monomial, int], ...]) -> Expr:
    return _from_dict(dict(terms))


_CONSTANTS: dict[int, Expr] = {v: _constant(v) for v in range(-16, 4097)}
_SYMBOLS: dict[str, Expr] = {}
ZERO = _CONSTANTS[0]
ONE = _CONSTANTS[1]


def _single(e: Expr) -> tuple[Atom, int] | None:
    """(atom, coefficient) if the expression is `coefficient * atom`."""
    return (e.terms[0][0][0], e.terms[0][1]) if len(e.terms) == 1 and len(e.terms[0][0]) == 1 else None


def within(e: Expr, k: Expr, ranges: Mapping[str, IntLike] | None) -> bool:
    """Whether 0 <= e < k is known."""
    if ranges is None:
        return False
    if k.const is None:
        low, _ = e.bounds(ranges)
        return low is not None and low >= 0 and below(e, k, ranges)
    low, high = e.bounds(ranges)
    return low is not None and high is not None and low >= 0 and high < k.const


def below(e: Expr, k: Expr, ranges: Mapping[str, IntLike]) -> bool:
    """Whether e < k is known for all 0 <= symbol < ranges[symbol].  Symbols without a range are sizes: not negative.

    A polynomial that grows in each variable is greatest at the last point: i*n + j is at most m*n - 1.
    """
    last: dict[str, IntLike] = {}
    for mono, c in e.terms:
        for atom in mono:
            if atom.kind != "sym" or (c < 0 and atom.key in ranges) or atom.key.startswith("%"):
                return False
            if atom.key in ranges:
                last[atom.key] = Expr.of(ranges[atom.key]) - 1
    gap, _ = (k - e.subst(last)).bounds({})
    return gap is not None and gap > 0


def quotient(a: Expr, k: Expr) -> Expr | None:
    """a / k if it is a polynomial (6*m*n by 2*n is 3*m), else None."""
    if k == 0:
        return None
    if k.const is not None:
        return (
            _make(tuple((m, c // k.const) for m, c in a.terms), None)
            if a.const is None and all(c % k.const == 0 for _, c in a.terms)
            else Expr.of(a.const // k.const)
            if a.const is not None and a.const % k.const == 0
            else None
        )
    q, r = split(a, k)
    return q if r == 0 else None


def split(a: Expr, k: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a == q*k + r, where r holds the terms that k does not divide."""
    if k.const is not None:
        n = k.const
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for mono, c in a.terms:
            if not mono:  # floor division of a constant keeps the rest small and not negative
                q, r = divmod(c, n)
                if q:
                    quotient[mono] = q
                if r:
                    rest[mono] = r
            elif c % n == 0:
                quotient[mono] = c // n
            else:
                rest[mono] = c
        return (_from_dict(quotient), _from_dict(rest)) if quotient else (ZERO, a)
    if len(k.terms) != 1:
        return _split_by_sum(a, k)
    (factors, n), q_terms, r_terms = k.terms[0], {}, {}
    for mono, c in a.terms:
        left = list(mono)
        if c % n == 0 and all(_take(left, f) for f in factors):
            q_terms[tuple(left)] = c // n
        else:
            r_terms[mono] = c
    return _from_dict(q_terms), _from_dict(r_terms)


def _split_by_sum(a: Expr, k: Expr) -> tuple[Expr, Expr]:
    """As `split`, by the terms of highest degree: i*(n + 1) + j is i*n + i + j, and n divides i*n."""
    lead = _make((max(k.terms, key=lambda t: (len(t[0]), t)),), None)
    total, rest = ZERO, a
    for _ in a.terms:
        q, _left = split(rest, lead)
        if q == 0 or len((less := rest - q * k).terms) >= len(rest.terms):
            break
        total, rest = total + q, less
    return total, rest


def _take(items: list[Atom], item: Atom) -> bool:
    if item in items:
        items.remove(item)
        return True
    return False


def _common(r: Expr, n: int, ranges: Mapping[str, IntLike] | None) -> tuple[int, Expr, Expr]:
    """(g, big, small): r == g*big + small, 0 <= small < g known, g divides n.  g == 1 if there is no such split."""
    nonconst = [c for mono, c in r.terms if mono]
    g = gcd(n, *nonconst)
    if g > 1:
        big, small = split(r, Expr.of(g))
        return g, big, small
    if ranges is not None:
        for g in sorted({gcd(n, c) for c in nonconst}, reverse=True):
            if g > 1:
                big, small = split(r, Expr.of(g))
                if within(small, Expr.of(g), ranges):
                    return g, big, small
    return 1, r, ZERO


def _divide(a: Expr, k: Expr, ranges: Mapping[str, IntLike] | None) -> Expr:
    if k.const is not None:
        if a.const is not None:
            return Expr.of(a.const // k.const)
        if k.const == 1:
            return a
        if k.const <= 0:
            return _divide_nonpositive(a, k.const)
    elif a.const == 0 or a == k:
        return a if a.const == 0 else ONE
    q, r = split(a, k)
    if r.const == 0 or within(r, k, ranges):
        return q
    n = k.const
    if n is not None:
        if r.const is not None:
            return q + r.const // n
        g, big, _ = _common(r, n, ranges)
        if g > 1:
            return q + _divide(big, Expr.of(n // g), ranges)
        single = _single(r)
        if single is not None and single[1] == 1:
            inner, divisor = single[0], single[0].args[1].const if single[0].args else None
            if inner.kind == "//" and divisor is not None and divisor > 0:  # (x // d) // n
                return q + _divide(inner.args[0], Expr.of(divisor * n), ranges)
            if inner.kind == "%" and divisor is not None and divisor > 0 and divisor % n == 0:  # (x % (m*n)) // n
                return q + _modulo(_divide(inner.args[0], k, ranges), Expr.of(divisor // n), ranges)
    return q + _make((((_atom("//", r, k),), 1),), None)


def _divide_nonpositive(a: Expr, n: int) -> Expr:
    if n == 0:
        raise ZeroDivisionError(f"{a} // 0")
    return _make((((_atom("//", a, Expr.of(n)),), 1),), None)


def _modulo(a: Expr, k: Expr, ranges: Mapping[str, IntLike] | None) -> Expr:
    if k.const is not None:
        if a.const is not None:
            return Expr.of(a.const % k.const)
        if k.const == 1:
            return ZERO
        if k.const <= 0:
            if k.const == 0:
                raise ZeroDivisionError(f"{a} % 0")
            return _make((((_atom("%", a, k),), 1),), None)
    _, r = split(a, k)
    if r.const == 0 or within(r, k, ranges):
        return r
    n = k.const
    if n is not None:
        if r.const is not None:
            return Expr.of(r.const % n)
        g, big, small = _common(r, n, ranges)
        if g > 1:
            return g * _modulo(big, Expr.of(n // g), ranges) + small
        single = _single(r)
        if single is not None and single[1] == 1 and single[0].kind == "%":
            divisor = single[0].args[1].const
            if divisor is not None and divisor > 0 and divisor % n == 0:  # (x % (m*n)) % n
                return _modulo(single[0].args[0], k, ranges)
    return _make((((_atom("%", r, k),), 1),), None)


def _extreme(kind: str, a: Expr, b: Expr, ranges: Mapping[str, IntLike] | None) -> Expr:
    if a.const is not None and b.const is not None:
        return Expr.of(_EVAL[kind](a.const, b.const))
    low, high = (a - b).bounds(ranges or {})
    if low is not None and low >= 0:
        return b if kind == "min" else a
    if high is not None and high <= 0:
        return a if kind == "min" else b
    if repr(b) < repr(a):
        a, b = b, a
    return _make((((_atom(kind, a, b),), 1),), None)


def _rebuild_atom(atom: Atom, symbol: Callable[[str], Expr], ranges: Mapping[str, IntLike] | None) -> Expr:
    if atom.kind == "sym":
        return symbol(atom.key)
    a, b = (_recombine(x._rebuild(symbol, ranges)) for x in atom.args)
    if atom.kind == "//":
        return _divide(a, b, ranges)
    return _modulo(a, b, ranges) if atom.kind == "%" else _extreme(atom.kind, a, b, ranges)


def _recombine(e: Expr) -> Expr:
    """Join digits: c*k*(x // k) + c*(x % k) is c*x, and c*k*((x // k) % m) + c*(x % k) is c*(x % (k*m))."""
    mods = [(mono[0], c) for mono, c in e.terms if len(mono) == 1 and mono[0].kind == "%"]
    for low, c in mods:
        x, k = low.args
        if k.const is None or k.const <= 0:
            continue
        # x // k in the constructors' form is a sum or an atom, so compare with the result of the constructors
        quotient = _divide(x, k, None)
        rest = e - c * _modulo(x, k, None)
        if quotient.terms and all(dict(rest.terms).get(m) == c * k.const * v for m, v in quotient.terms):
            return _recombine(rest - c * k.const * quotient + c * x)
        for high, ch in mods:
            if high is not low and ch == c * k.const and high.args[0] == quotient and high.args[1].const is not None:
                whole = _modulo(x, Expr.of(k.const * high.args[1].const), None)
                return _recombine(rest - ch * _make((((high,), 1),), None) + c * whole)
    return e


def _monomial_bounds(mono: Monomial, ranges: Mapping[str, IntLike]) -> Bound:
    low: int | None = 1
    high: int | None = 1
    for atom in mono:
        a, b = _atom_bounds(atom, ranges)
        if low is not None and low >= 0 and a is not None and a >= 0:
            low, high = low * a, None if high is None or b is None else high * b
        elif low is None or high is None or a is None or b is None:
            return None, None
        else:
            corners = (low * a, low * b, high * a, high * b)
            low, high = min(corners), max(corners)
    return low, high


def _atom_bounds(atom: Atom, ranges: Mapping[str, IntLike]) -> Bound:
    if atom.kind == "sym":
        size = ranges.get(atom.key)
        if size is None:
            return (None, None) if atom.key.startswith("%") else (0, None)
        limit = size if type(size) is int else Expr.of(size).const
        return 0, None if limit is None else max(limit - 1, 0)
    (a, b), (c, d) = (x.bounds(ranges) for x in atom.args)
    if atom.kind == "//":
        if c is None or c <= 0:
            return None, None
        at_d = [None if x is None else 0 if d is None else x // d for x in (a, b)]  # an unbounded divisor: 0 or -1
        low = None if a is None else min(a // c, at_d[0] or 0) if a < 0 else at_d[0]
        high = None if b is None else max(b // c, at_d[1] or 0) if b < 0 else b // c
        return low, high
    if atom.kind == "%":
        if c is None or c <= 0:
            return None, None
        inside = a is not None and a >= 0
        high = None if d is None else d - 1
        return 0, b if inside and b is not None and (high is None or b < high) else high
    pick: Callable[[int, int], int] = min if atom.kind == "min" else max
    low = None if a is None or c is None else pick(a, c)
    high = None if b is None or d is None else pick(b, d)
    if atom.kind == "min":
        high = b if d is None else d if b is None else high
    else:
        low = a if c is None else c if a is None else low
    return low, high
