"""Functions that guards and generated code compute over several sources of a frame (`source.Computed`).

In: the values of the sources when the frame begins.  Out: the computed value.
Each function raises if the value differs in kind from the captured one, or if only the program's code could compute it.
The functions have no side effects and run none of the program's code.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

PLAIN = (str, int, float, bool, bytes, type(None))
"""Classes whose instances are hashed and compared by C code, and by value."""


def _plain(key: Any) -> Any:
    if type(key) not in PLAIN:
        raise LookupError(f"a {type(key).__name__} key may have its own __eq__ or __hash__")
    return key


def at_key(mapping: dict[Any, Any], key: Any) -> Any:
    """The value stored in a dict under a str or number.  A subclass's `__missing__` is not called."""
    found = dict.get(mapping, _plain(key), _MISSING)
    if found is _MISSING:
        raise KeyError(key)
    return found


_MISSING = object()


def has_key(container: Any, key: Any) -> bool:
    """Whether a dict or set contains a str or number."""
    base = next(b for b in (dict, set, frozenset) if issubclass(type(container), b))
    return base.__contains__(container, _plain(key))  # type: ignore[arg-type]


def is_same_key(a: Any, b: Any) -> bool:
    return _plain(a) == _plain(b)  # type: ignore[no-any-return]


def evaluated(number: Any, names: tuple[str, ...], *values: Any) -> Any:
    """The value of an expression over symbols: an Expr, a Real or a Truth over `names`."""
    env: Mapping[str, Any] = dict(zip(names, values, strict=True))
    return number.eval(env)


def joined(*parts: str) -> str:
    """The str of an f-string with these parts."""
    return "".join(parts)


def call_with_plain(text: Callable[..., str], *values: Any) -> str:
    """The str that a C function or method returns for strs and numbers."""
    return text(*map(_plain, values))


def percent(text: str, *values: Any) -> str:
    """`text % values`."""
    return str.__mod__(text, tuple(map(_plain, values)))


def overflows(queue: collections.deque[Any], more: int) -> bool:
    """Whether a deque overflows `maxlen` with `more` further elements."""
    return queue.maxlen is not None and len(queue) + more > queue.maxlen


def number_of(number: Any) -> int | float:
    """The Python number equal to a NumPy number.  The class of the NumPy number is guarded."""
    return number.item()  # type: ignore[no-any-return]


def element_of(array: Any, *place: int) -> int | float:
    """The Python number equal to an element of an array.  The class of the array is guarded."""
    found = array[place].item()
    if type(found) not in NUMBERS:
        raise LookupError(f"the array holds a {type(found).__name__}, expected int or float")
    return found  # type: ignore[no-any-return]


NUMBERS = (int, float)
OF_NUMPY = (number_of, element_of)


def fold_container(
    container: Any, function: Callable[[list[Any]], Any], left: int, right: int, first: int, *ends: Any
) -> int | float:
    """The result of `function` over the numbers in a list or deque, with both ends replaced.

    The first `left` elements are replaced by `ends[:first]`, the last `right` elements by `ends[first:]`.
    """
    base = collections.deque if issubclass(type(container), collections.deque) else list
    items = list(base.__iter__(container))
    if left + right > len(items):
        raise LookupError("too few elements")
    items[len(items) - right :] = ends[first:]
    items[:left] = ends[:first]
    return fold_numbers(function, *items)


def fold_numbers(function: Callable[[list[Any]], Any], *items: Any) -> int | float:
    """The result of `function` over a list of these numbers."""
    if any(type(item) not in NUMBERS for item in items):
        raise LookupError("an element is not a plain int or float")
    return function([*items])  # type: ignore[no-any-return]
