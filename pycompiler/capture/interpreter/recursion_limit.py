"""The recursion limit that captures can live with: an inlined call takes about a dozen calls of our own."""

from __future__ import annotations

import sys

from pycompiler.ir.shared import WhileInside

STACK_NEEDED = 5000
DEEP_STACK = WhileInside(sys.getrecursionlimit, sys.setrecursionlimit, lambda before: max(before, STACK_NEEDED))


def programs_limit() -> int:
    """What the program has set, whoever captures now."""
    return DEEP_STACK.before if DEEP_STACK.inside else sys.getrecursionlimit()
