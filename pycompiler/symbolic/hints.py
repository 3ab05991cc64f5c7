"""What symbolic sizes probably are: those of the call that was captured.

In: symbols and their values there.  Out: `likely`, by which heuristics decide (which loops are long, what is worth storing).
No result may depend on it for more than speed: a kernel is right at every size.

    with hinted({"s0": 128}):
        likely(8 * Expr.sym("s0"))    # 1024
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pycompiler.ir.expr import Expr


class _Hints(threading.local):
    known: Mapping[str, int] = {}


_hints = _Hints()


@contextmanager
def hinted(known: Mapping[str, int]) -> Iterator[None]:
    """`likely` knows these symbols inside."""
    before, _hints.known = _hints.known, known
    try:
        yield
    finally:
        _hints.known = before


def likely(e: Expr) -> int | None:
    """The value of `e`, or what it probably is; None where nothing is known of a symbol in it."""
    if e.const is not None:
        return e.const
    return e.eval(_hints.known) if e.symbols <= _hints.known.keys() else None


def likely_product(sizes: Sequence[Expr]) -> int | None:
    """The product of what the sizes probably are."""
    found = [likely(n) for n in sizes]
    return None if None in found else math.prod(n for n in found if n is not None)
