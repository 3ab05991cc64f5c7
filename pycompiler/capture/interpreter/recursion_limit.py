"""The recursion limit that captures need: an inlined call takes about a dozen Python calls of the interpreter."""

from __future__ import annotations

import sys

from pycompiler.torch_compat.process_settings import WhileInside

STACK_NEEDED = 5000
DEEP_STACK = WhileInside(sys.getrecursionlimit, sys.setrecursionlimit, lambda before: max(before, STACK_NEEDED))


def programs_limit() -> int:
    """The limit that the program has set, also while a capture runs."""
    return DEEP_STACK.before if DEEP_STACK.inside else sys.getrecursionlimit()
