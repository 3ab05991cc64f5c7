"""Likely values of symbolic sizes: their hints, the values in the captured call.

In: symbols and their hints.  Out: `likely`, which heuristics use (which loops are long, which values are worth storing).
Hints may affect speed but never results: a kernel is right at every size.

    with hinted({"s0": 128}):
        likely(8 * Expr.sym("s0"))    # 1024
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pycompiler.symbolic.expr import Expr


class _Hints(threading.local):
    known: Mapping[str, int] = {}


_hints = _Hints()


@contextmanager
def hinted(known: Mapping[str, int]) -> Iterator[None]:
    """Context manager: inside, `likely` uses these hints."""
    before, _hints.known = _hints.known, known
    try:
        yield
    finally:
        _hints.known = before


def likely(e: Expr) -> int | None:
    """The value of `e`, or its likely value; None if a symbol of `e` has no hint."""
    if e.const is not None:
        return e.const
    return e.eval(_hints.known) if e.symbols <= _hints.known.keys() else None


def likely_product(sizes: Sequence[Expr]) -> int | None:
    """The product of the likely sizes, or None."""
    found = [likely(n) for n in sizes]
    return None if None in found else math.prod(n for n in found if n is not None)
