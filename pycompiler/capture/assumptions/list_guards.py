"""Long lists of plain constants: if a comparison reads all elements, one guard assumes them all.

In: two compared lists.  Out: one guard of kind `equals` on each existing list, whose elements become constants.
"""

from __future__ import annotations

from typing import Any

from pycompiler.capture.values.base import Capture, LazyObject, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Sequence
from pycompiler.ir.guards import same_constant

PLAIN = (int, float, bool, str, bytes)
MANY = 64
"""A compared list with so many equal elements is assumed as a whole."""


def assume_compared(cx: Capture, left: Sequence, right: Sequence) -> None:
    """Assume all elements, if many are compared until two differ."""
    if _same_at_first(left, right) >= MANY:
        for sequence in (left, right):
            _assume_at_once(cx, sequence)


def _same_at_first(left: Sequence, right: Sequence) -> int:
    """The number of equal plain constants at the start of both lists."""
    count = 0
    for a, b in zip(map(_plain, left.raw), map(_plain, right.raw), strict=False):
        if a is None or not same_constant(a, b):
            break
        count += 1
    return count


def _plain(item: Value) -> Any:
    """The element as a plain constant, read or not; otherwise None."""
    found = (
        item.real
        if isinstance(item, LazyObject) and item.seen is None
        else item.value
        if isinstance(item, Const)
        else None
    )
    return found if type(found) in PLAIN else None


def _assume_at_once(cx: Capture, value: Sequence) -> None:
    """Add one guard for all elements of an existing list of plain constants, if none has been read.

    If the elements have changed since the last capture of the frame, each is read by itself: it may become a symbol.
    """
    source, items = value.source, value.raw
    if not isinstance(value, List) or value.cls is not list or source is None or len(items) != value.length_before:
        return
    for i, item in enumerate(items):
        if not isinstance(item, LazyObject) or item.seen is not None or type(item.real) not in PLAIN:
            return
        if item.source is None or item.source.base is not source or item.source.arg != i:
            return
    known = [item.real for item in items if isinstance(item, LazyObject)]
    if cx.sizes.policy.repeats(source, known):
        cx.guard("equals", source, known)
        value.items = [*map(Const, known)]
