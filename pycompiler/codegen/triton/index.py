"""Index expressions as Triton text over tensors of positions.

Triton divides towards zero, as C does.  The quotient or remainder of a possibly negative number uses helpers that round
down.
"""

from __future__ import annotations

from collections.abc import Mapping

from pycompiler.symbolic.expr import Atom, Expr

_FLOOR = {"//": "pyc_floordiv_int", "%": "pyc_mod_int", "min": "tl.minimum", "max": "tl.maximum"}


def index_text(e: Expr, names: Mapping[str, str], ranges: Mapping[str, Expr]) -> str:
    """Triton text of `e`.  `ranges`: extents of its variables, to prove that parts are non-negative."""
    if e.is_const:
        return str(e.as_int())
    parts: list[str] = []
    for mono, c in sorted(e.terms, key=lambda t: (not t[0], -abs(t[1]))):
        factors = [_atom(a, names, ranges) for a in mono]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        parts += [" - " if c < 0 else " + ", "*".join(factors)]
    return ("-" if parts[0] == " - " else "") + "".join(parts[1:])


def _atom(a: Atom, names: Mapping[str, str], ranges: Mapping[str, Expr]) -> str:
    if a.kind == "sym":
        return names[a.key]
    x, y = (index_text(arg, names, ranges) for arg in a.args)
    low, _ = a.args[0].bounds(ranges)
    if a.kind in ("//", "%") and low is not None and low >= 0 and a.args[1].is_const and a.args[1].as_int() > 0:
        return f"(({x}) {a.kind} {y})"
    if not a.args[0].symbols:
        x = f"tl.full((1, 1), {x}, tl.int64)"
    return f"{_FLOOR[a.kind]}({x}, {y})"
