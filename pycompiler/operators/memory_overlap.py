"""Where elements lie.  In: sizes and strides.  Out: whether two elements share a place.

Example: (3, 2) by (2, 3) lies in 0 3, 2 5, 4 7: interleaved, no two in one place; (3, 2) by (1, 1) shares places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_COUNTED = 1 << 16  # places that are written down one by one


def apart(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether each element has a place of its own; False, too, where that is not easily known."""
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
    """Whether each dimension, the narrowest first, steps over all that those before it cover."""
    covered = 0
    for s, n in steps:
        if s <= covered:
            return False
        covered += s * (n - 1)
    return True
