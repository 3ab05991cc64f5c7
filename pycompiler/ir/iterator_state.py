"""Begun iterators of CPython's own: what they will give, without a step of theirs.

In: an iterator.  Out: by `read` its next elements ("rest"), what its place is in ("over"), or the iterators that it asks
("parts"); an error where it does not tell.  `__reduce__` of these classes leaves them as they are; that of itertools warns in
3.12, and is gone in 3.14.

Example: `read(it, "rest")` of `it = iter([1, 2, 3])` after one step is `[2, 3]`.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MOST = 1000
"""Elements that are looked at; of those that an iterator has to copy, the number that it may have."""

Reduced = tuple[Any, ...]


def _indexed(reduced: Reduced) -> Sequence[Any]:
    """Of one that counts up in a sequence, or whose range shrinks (3.12): its elements from there on."""
    (held,), at = reduced[1], reduced[2] if len(reduced) > 2 else 0
    base = next((b for b in (list, tuple) if issubclass(type(held), b)), None)
    part = slice(at or 0, (at or 0) + MOST + 1)
    return held[part] if base is None else base.__getitem__(held, part)  # type: ignore[no-any-return]


def _backwards(reduced: Reduced) -> Sequence[Any]:
    (held,), at = reduced[1], reduced[2] if len(reduced) > 2 else -1
    base: Any = list if issubclass(type(held), list) else tuple
    if not issubclass(type(held), base):
        raise TypeError(f"the elements of a {type(held).__name__} are made when they are asked for")
    if base is tuple and any(getattr(type(held), n) is not getattr(tuple, n) for n in ("__getitem__", "__len__")):
        raise TypeError(f"a {type(held).__name__} is asked for its elements")
    if not 0 <= at < base.__len__(held):
        return ()
    return base.__getitem__(held, slice(at, at - MOST - 1 if at > MOST else None, -1))  # type: ignore[no-any-return]


def _copied(reduced: Reduced) -> Sequence[Any]:
    """Of dicts and sets: what is left comes in a list."""
    return reduced[1][0]  # type: ignore[no-any-return]


def _counted(iterator: Any) -> Sequence[Any]:
    """Of itertools.count of ints: its text says where it is."""
    if not all(type(r) is int or r is itertools.count for r in gc.get_referents(iterator)):
        raise TypeError("a count of what are no ints")
    start, step = map(int, (*repr(iterator)[len("count(") : -1].split(", "), "1")[:2])
    return range(start, start + step * (MOST + 1), step) if step else (start,) * (MOST + 1)


def _repeated(iterator: Any) -> Sequence[Any]:
    """Of itertools.repeat; without an end it has no length."""
    left = operator.length_hint(iterator, MOST + 1)
    return (gc.get_referents(iterator)[-1],) * min(left, MOST + 1)


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
"""What the elements ahead are, by class of iterator and what that one's `__reduce__` says; or by the iterator itself."""
UNREDUCED: dict[type, Callable[[Any], Sequence[Any]]] = {itertools.count: _counted, itertools.repeat: _repeated}
TELLING: tuple[type, ...] = (*REST, *UNREDUCED)
ASKING = (zip, map, filter, enumerate)
"""Iterators whose state is that of others, and a number."""


def _rest(iterator: Any) -> Sequence[Any]:
    cls = type(iterator)
    if cls in UNREDUCED:
        return UNREDUCED[cls](iterator)
    if cls in COPIED and iterator.__length_hint__() > MOST:
        raise ValueError("too many elements to copy")
    return REST[cls](iterator.__reduce__())


def _over(iterator: Any) -> Any:
    """The list, dict or set that the place is in; an error for one that has let go of it."""
    return gc.get_referents(iterator)[0]


def _parts(iterator: Any) -> tuple[Any, ...]:
    _, parts, *more = iterator.__reduce__()
    if more:
        raise TypeError("zip(..., strict=True)")
    return parts  # type: ignore[no-any-return]


_READERS: dict[str, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    "rest": (TELLING, _rest),
    "over": (tuple(REST), _over),
    "parts": (ASKING, _parts),
}


def read(iterator: Any, what: str | Callable[[Any], Any]) -> Any:
    """`what` may be a question of any object, too, that changes nothing either (`capture/caches.py`)."""
    if not isinstance(what, str):
        return what(iterator)
    classes, reader = _READERS[what]
    if not any(type(iterator) is cls for cls in classes):  # a metaclass may have an equality of its own
        raise TypeError(f"{type(iterator).__name__} does not tell its {what}")
    return reader(iterator)


def length_of(container: Any) -> int:
    """`len` of a list, tuple, deque, dict or set, whatever a subclass says."""
    base = next(b for b in (list, tuple, collections.deque, dict, set, frozenset) if isinstance(container, b))
    return base.__len__(container)  # type: ignore[arg-type]


def is_over(iterator: Any, container: Any) -> bool:
    return any(held is container for held in gc.get_referents(iterator))


def is_pure(iterator: Any) -> bool:
    """Whether a step of it runs nothing of the program's."""
    if type(iterator) in (zip, enumerate):
        found = iterator.__reduce__()[1]
        return all(map(is_pure, found[:1] if type(iterator) is enumerate else found))
    return any(type(iterator) is cls for cls in TELLING)
