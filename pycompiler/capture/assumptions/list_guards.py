"""Long lists of numbers and texts: where all elements are looked at, they are assumed at once.

In: two lists that are compared.  Out: one guard of kind `equals` on each that exists, and elements that are constants.
"""

from __future__ import annotations

from typing import Any

from pycompiler.capture.values.base import Capture, Lazy, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.sequences import List, Sequence
from pycompiler.ir.guards import same_constant

PLAIN = (int, float, bool, str, bytes)
MANY = 64
"""From so many elements on a list that is compared is assumed as a whole."""


def assume_compared(cx: Capture, left: Sequence, right: Sequence) -> None:
    """Many elements are compared until two differ: assume all of them."""
    if _same_at_first(left, right) >= MANY:
        for sequence in (left, right):
            _assume_at_once(cx, sequence)


def _same_at_first(left: Sequence, right: Sequence) -> int:
    """How many elements are equal numbers or texts before others come."""
    count = 0
    for a, b in zip(map(_plain, left.raw), map(_plain, right.raw), strict=False):
        if a is None or not same_constant(a, b):
            break
        count += 1
    return count


def _plain(item: Value) -> Any:
    """A number or text that is known, or would be if anybody looked; else None."""
    found = (
        item.real if isinstance(item, Lazy) and item.seen is None else item.value if isinstance(item, Const) else None
    )
    return found if type(found) in PLAIN else None


def _assume_at_once(cx: Capture, value: Sequence) -> None:
    """One guard for all elements of an existing list of numbers and texts that nobody has looked at.  Where they changed since
    the frame was captured last, each is looked at by itself: it may be a symbol."""
    source, items = value.source, value.raw
    if not isinstance(value, List) or value.cls is not list or source is None or len(items) != value.length_before:
        return
    for i, item in enumerate(items):
        if not isinstance(item, Lazy) or item.seen is not None or type(item.real) not in PLAIN:
            return
        if item.source is None or item.source.base is not source or item.source.arg != i:
            return
    known = [item.real for item in items if isinstance(item, Lazy)]
    if cx.sizes.policy.repeats(source, known):
        cx.guard("equals", source, known)
        value.items = [*map(Const, known)]
