"""Functions of the standard library that are written in C, again in Python, so that they can be inlined.

In: nothing.  Out: `POLYFILLS`, C function or class -> the Python one.  They behave alike where captured code can see.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any


class Ranked:
    """What functools.cmp_to_key's key function gives."""

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) < 0)

    def __gt__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) > 0)

    def __eq__(self, other: object) -> bool:
        return bool(self.compare(self.obj, other.obj) == 0)  # type: ignore[attr-defined]

    def __le__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) <= 0)

    def __ge__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) >= 0)

    __hash__ = None  # type: ignore[assignment]


def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], Ranked]:
    return lambda obj: Ranked(mycmp, obj)


def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda obj: getattr(obj, name)(*args, **kwargs)


POLYFILLS: dict[Any, Callable[..., Any]] = {
    functools.cmp_to_key: cmp_to_key,
    operator.methodcaller: methodcaller,
}
