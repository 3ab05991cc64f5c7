"""A value that is made when it is first needed.

In: a function without arguments.  Out: `Later`; `now(value)` gives what it stands for, and any other value as it is.
Example: what only an unusual backward needs of a loaded graph is decoded by the first such backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompiler.ir.shared import Lock


class Later:
    """`make()`, called once, whatever thread asks first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._value: Any = None
        self._lock = Lock()

    def get(self) -> Any:
        with self._lock():
            if self._make is not None:
                self._value, self._make = self._make(), None
            return self._value


class LaterCall:
    """The callable `of(later.get())`, found at its first call."""

    def __init__(self, later: Later, of: Callable[[Any], Callable[..., Any]]) -> None:
        self.later, self.of = later, of
        self._target: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        target = self._target
        if target is None:
            target = self._target = self.of(self.later.get())
        return target(*args, **kwargs)


def now(value: Any) -> Any:
    return value.get() if isinstance(value, Later) else value
