"""Overlap of a tensor's own elements.  In: sizes and strides.  Out: whether two elements share a place in memory.

Example: (3, 2) with strides (2, 3) has the rows 0 3, 2 5, 4 7: interleaved, without overlap.  (3, 2) with (1, 1) overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_COUNTED = 1 << 16  # most places that are enumerated


def has_no_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether no two elements share a place; also False if this is not easily known."""
    steps = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1)
    if 0 in shape or _nested(steps):
        return True
    if any(s == 0 for s, _ in steps) or math.prod(n for _, n in steps) > _COUNTED:
        return False
    places = {0}
    for s, n in steps:
        wider = {p + k * s for p in places for k in range(n)}
        if len(wider) != n * len(places):
            return False
        places = wider
    return True


def _nested(steps: Sequence[tuple[int, int]]) -> bool:
    """Whether each dimension, the narrowest first, steps over the range of all narrower ones."""
    covered = 0
    for s, n in steps:
        if s <= covered:
            return False
        covered += s * (n - 1)
    return True
