"""Index expressions as C++ text over int64_t variables."""

from __future__ import annotations

from collections.abc import Mapping

from pycompiler.symbolic.expr import Atom, Expr

_FLOOR = {"//": "pyc_floordiv_index", "%": "pyc_mod_index", "min": "pyc_min_index", "max": "pyc_max_index"}
_C = {"//": "/", "%": "%"}


def c_index(e: Expr, names: Mapping[str, str], ranges: Mapping[str, Expr]) -> str:
    """C++ text of `e`.  Divisions are unsigned if the dividend is known to be non-negative (32 bits if it fits)."""
    if e.is_const:
        return str(e.as_int())
    parts: list[str] = []
    for mono, c in sorted(e.terms, key=lambda t: (not t[0], -abs(t[1]))):
        factors = [] if abs(c) == 1 and mono else [str(abs(c))]
        factors += [_atom(a, names, ranges) for a in mono]
        parts += [" - " if c < 0 else " + ", "*".join(factors)]
    return ("-" if parts[0] == " - " else "") + "".join(parts[1:])


def _atom(a: Atom, names: Mapping[str, str], ranges: Mapping[str, Expr]) -> str:
    if a.kind == "sym":
        return names[a.key]
    x, y = (c_index(arg, names, ranges) for arg in a.args)
    low, high = a.args[0].bounds(ranges)
    if a.kind in _C and low is not None and low >= 0 and a.args[1].is_const and a.args[1].as_int() > 0:
        if high is not None and high < 2**31:
            return f"(int64_t)((uint32_t)({x}) {_C[a.kind]} {y}u)"
        return f"(int64_t)((uint64_t)({x}) {_C[a.kind]} {y}u)"
    return f"{_FLOOR[a.kind]}({x}, {y})"
