"""A lazy value, computed at its first use.

In: a function without arguments.  Out: `Lazy`; `force(value)` gives the computed value, and any other value unchanged.

Example: a loaded graph decodes the data of an unusual backward only when such a backward runs first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompiler.torch_compat.process_settings import Lock


class Lazy:
    """`make()`, called once, whichever thread needs it first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._value: Any = None
        self._lock = Lock()

    def get(self) -> Any:
        with self._lock():
            if self._make is not None:
                self._value, self._make = self._make(), None
            return self._value


class LazyCall:
    """The callable `of(later.get())`, found at its first call."""

    def __init__(self, later: Lazy, of: Callable[[Any], Callable[..., Any]]) -> None:
        self.later, self.of = later, of
        self._target: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        target = self._target
        if target is None:
            target = self._target = self.of(self.later.get())
        return target(*args, **kwargs)


def force(value: Any) -> Any:
    return value.get() if isinstance(value, Lazy) else value
