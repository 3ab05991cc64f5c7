"""What guards and generated code compute of several places of a frame (`source.Computed`).

In: what is there when the frame begins.  Out: the value; an exception where it is not what the capture has seen, or where only
the program's code could tell.  Nothing is changed.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

PLAIN = (str, int, float, bool, bytes, type(None))
"""Classes whose instances are hashed and compared by C, and by their value."""


def _plain(key: Any) -> Any:
    if type(key) not in PLAIN:
        raise LookupError(f"a {type(key).__name__} may say itself what it equals")
    return key


def at_key(mapping: dict[Any, Any], key: Any) -> Any:
    """What is stored in a dict under a text or number, whatever a subclass says (`__missing__`)."""
    found = dict.get(mapping, _plain(key), _MISSING)
    if found is _MISSING:
        raise KeyError(key)
    return found


_MISSING = object()


def has_key(container: Any, key: Any) -> bool:
    """Whether a dict or set has a text or number."""
    base = next(b for b in (dict, set, frozenset) if issubclass(type(container), b))
    return base.__contains__(container, _plain(key))  # type: ignore[arg-type]


def is_same_key(a: Any, b: Any) -> bool:
    return _plain(a) == _plain(b)  # type: ignore[no-any-return]


def evaluated(number: Any, names: tuple[str, ...], *values: Any) -> Any:
    """A number over symbols: an Expr, a Real or a Truth over `names`."""
    env: Mapping[str, Any] = dict(zip(names, values, strict=True))
    return number.eval(env)


def joined(*parts: str) -> str:
    """An f-string's text."""
    return "".join(parts)


def given_text(text: Callable[..., str], *values: Any) -> str:
    """A text that a function or method of C makes of texts and numbers."""
    return text(*map(_plain, values))


def percent(text: str, *values: Any) -> str:
    """`text % values`."""
    return str.__mod__(text, tuple(map(_plain, values)))


def overflows(queue: collections.deque[Any], more: int) -> bool:
    """Whether a deque with so many elements more has too many."""
    return queue.maxlen is not None and len(queue) + more > queue.maxlen


def number_of(number: Any) -> int | float:
    """The number of Python's that a number of NumPy's is equal to, whose class is guarded."""
    return number.item()  # type: ignore[no-any-return]


def element_of(array: Any, *place: int) -> int | float:
    """... that an element of an array is, whose class is guarded."""
    found = array[place].item()
    if type(found) not in NUMBERS:
        raise LookupError(f"a {type(found).__name__} in an array")
    return found  # type: ignore[no-any-return]


NUMBERS = (int, float)
OF_NUMPY = (number_of, element_of)


def whole(
    container: Any, function: Callable[[list[Any]], Any], left: int, right: int, first: int, *ends: Any
) -> int | float:
    """What `function` gives of the numbers in a list or deque, of which `first` others take the place of so many at the left, and
    the rest that of those at the right."""
    base = collections.deque if issubclass(type(container), collections.deque) else list
    items = list(base.__iter__(container))
    if left + right > len(items):
        raise LookupError("too few elements")
    items[len(items) - right :] = ends[first:]
    items[:left] = ends[:first]
    return of_numbers(function, *items)


def of_numbers(function: Callable[[list[Any]], Any], *items: Any) -> int | float:
    """What `function` gives of a list of these."""
    if any(type(item) not in NUMBERS for item in items):
        raise LookupError("what is no number says itself what it is added to, and compared with")
    return function([*items])  # type: ignore[no-any-return]
