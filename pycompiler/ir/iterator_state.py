"""State of started CPython iterators: their next elements, read without a step of the iterator.

In: an iterator.  Out, from `read`: its next elements ("rest"), the container it iterates over ("over"), or the
iterators that it calls ("parts").  `read` raises for iterators whose state cannot be read.

`__reduce__` of these classes does not change the iterator.  The `__reduce__` of itertools warns in 3.12 and is gone in 3.14.

Example: `read(it, "rest")` is `[2, 3]` for `it = iter([1, 2, 3])` after one step.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MAX_ELEMENTS = 1000
"""The most elements that are read.  For iterators whose elements must be copied: the most elements they may have."""

Reduced = tuple[Any, ...]


def _indexed(reduced: Reduced) -> Sequence[Any]:
    """The remaining elements of an iterator that indexes a sequence, or whose range shrinks (3.12)."""
    (held,), at = reduced[1], reduced[2] if len(reduced) > 2 else 0
    base = next((b for b in (list, tuple) if issubclass(type(held), b)), None)
    part = slice(at or 0, (at or 0) + MAX_ELEMENTS + 1)
    return held[part] if base is None else base.__getitem__(held, part)  # type: ignore[no-any-return]


def _backwards(reduced: Reduced) -> Sequence[Any]:
    (held,), at = reduced[1], reduced[2] if len(reduced) > 2 else -1
    base: Any = list if issubclass(type(held), list) else tuple
    if not issubclass(type(held), base):
        raise TypeError(f"a {type(held).__name__} computes its elements when they are read")
    if base is tuple and any(getattr(type(held), n) is not getattr(tuple, n) for n in ("__getitem__", "__len__")):
        raise TypeError(f"a {type(held).__name__} has its own __getitem__ or __len__")
    if not 0 <= at < base.__len__(held):
        return ()
    return base.__getitem__(held, slice(at, at - MAX_ELEMENTS - 1 if at > MAX_ELEMENTS else None, -1))  # type: ignore[no-any-return]


def _copied(reduced: Reduced) -> Sequence[Any]:
    """For dicts and sets: `__reduce__` holds the remaining elements in a list."""
    return reduced[1][0]  # type: ignore[no-any-return]


def _counted(iterator: Any) -> Sequence[Any]:
    """For itertools.count of ints: the repr shows the position."""
    if not all(type(r) is int or r is itertools.count for r in gc.get_referents(iterator)):
        raise TypeError("an itertools.count of values that are not ints")
    start, step = map(int, (*repr(iterator)[len("count(") : -1].split(", "), "1")[:2])
    return range(start, start + step * (MAX_ELEMENTS + 1), step) if step else (start,) * (MAX_ELEMENTS + 1)


def _repeated(iterator: Any) -> Sequence[Any]:
    """For itertools.repeat; an endless one has no length hint."""
    left = operator.length_hint(iterator, MAX_ELEMENTS + 1)
    return (gc.get_referents(iterator)[-1],) * min(left, MAX_ELEMENTS + 1)


def _classes(*iterators: Iterator[Any]) -> tuple[type, ...]:
    return tuple(map(type, iterators))


_d: dict[Any, Any] = {}
COPIED = _classes(
    iter(_d.keys()), iter(_d.values()), iter(_d.items()), reversed(_d), reversed(_d.values()), reversed(_d.items()), iter({0})
)  # fmt: skip
REST: dict[type, Callable[[Reduced], Sequence[Any]]] = {
    **dict.fromkeys(_classes(iter([]), iter(()), iter(range(0)), iter(range(2**70)), iter(""), iter("é"), iter(b"")), _indexed),
    **dict.fromkeys(_classes(reversed([]), reversed(())), _backwards),
    **dict.fromkeys(COPIED, _copied),
}  # fmt: skip
"""The remaining elements by class of iterator: computed from its `__reduce__` value (REST), or from the iterator (UNREDUCED)."""
UNREDUCED: dict[type, Callable[[Any], Sequence[Any]]] = {itertools.count: _counted, itertools.repeat: _repeated}
READABLE: tuple[type, ...] = (*REST, *UNREDUCED)
COMPOSED = (zip, map, filter, enumerate)
"""Iterators whose state consists of other iterators and a number."""


def _rest(iterator: Any) -> Sequence[Any]:
    cls = type(iterator)
    if cls in UNREDUCED:
        return UNREDUCED[cls](iterator)
    if cls in COPIED and iterator.__length_hint__() > MAX_ELEMENTS:
        raise ValueError("too many elements to copy")
    return REST[cls](iterator.__reduce__())


def _over(iterator: Any) -> Any:
    """The list, dict or set iterated over; raises for an exhausted iterator, which has released it."""
    return gc.get_referents(iterator)[0]


def _parts(iterator: Any) -> tuple[Any, ...]:
    _, parts, *more = iterator.__reduce__()
    if more:
        raise TypeError("zip(..., strict=True)")
    return parts  # type: ignore[no-any-return]


_READERS: dict[str, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    "rest": (READABLE, _rest),
    "over": (tuple(REST), _over),
    "parts": (COMPOSED, _parts),
}


def read(iterator: Any, what: str | Callable[[Any], Any]) -> Any:
    """Read a part of an iterator's state.

    `what` may also be a function that reads any object without changing it (`capture/semantics/lru_cache_tables.py`).
    """
    if not isinstance(what, str):
        return what(iterator)
    classes, reader = _READERS[what]
    if not any(type(iterator) is cls for cls in classes):  # `is`, since a metaclass may define its own equality
        raise TypeError(f"the {what} of a {type(iterator).__name__} cannot be read")
    return reader(iterator)


def length_of(container: Any) -> int:
    """`len` of a list, tuple, deque, dict or set; a subclass's `__len__` is not called."""
    base = next(b for b in (list, tuple, collections.deque, dict, set, frozenset) if isinstance(container, b))
    return base.__len__(container)  # type: ignore[arg-type]


def is_over(iterator: Any, container: Any) -> bool:
    return any(held is container for held in gc.get_referents(iterator))


def is_pure(iterator: Any) -> bool:
    """Whether a step of the iterator runs none of the program's code."""
    if type(iterator) in (zip, enumerate):
        found = iterator.__reduce__()[1]
        return all(map(is_pure, found[:1] if type(iterator) is enumerate else found))
    return any(type(iterator) is cls for cls in READABLE)
