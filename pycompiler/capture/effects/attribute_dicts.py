"""Dicts that the program reaches in two ways: as a dict, and as the attributes of an object, function or module.

In: views of dicts, and writes.  Out: a `Break` if a dict with two views is written, or a written one gets a second
view.  Each view has its own overlay, and does not see the writes through another.
Example: ``self.__dict__ = self`` of a dict subclass: its items and its attributes are views of one dict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Value


class NamespaceViews:
    """The views of one capture."""

    def __init__(self) -> None:
        # Id of a dict, which the capture keeps alive -> its views, by id.
        self._views: dict[int, dict[int, Value | None]] = {}
        self._written: set[int] = set()
        self._inside: int | None = None  # id of a dict whose new view is not registered

    def reached(self, memory: Any, view: Value | None) -> None:
        """Register a view through which the program reaches a dict; None: as globals."""
        if memory is not None and id(memory) != self._inside:
            self._views.setdefault(id(memory), {})[id(view)] = view
            self._check(id(memory))

    @contextmanager
    def inside(self, memory: Any) -> Iterator[None]:
        """Create a view of a dict that does not count, because only an existing view can show it."""
        before, self._inside = self._inside, id(memory)
        try:
            yield
        finally:
            self._inside = before

    def write(self, memory: Any) -> None:
        """Call before a write to a dict through one of its views."""
        if memory is not None:
            self._written.add(id(memory))
            self._check(id(memory))

    def _check(self, place: int) -> None:
        if place in self._written and len(self._views.get(place, ())) > 1:
            raise Break(
                "mutation-unsupported", "a dict that the frame also reaches as the attributes of an object or a module"
            )


def is_globals(memory: dict[Any, Any]) -> bool:
    """Whether a dict is the namespace of a module, or code has run in it."""
    has = dict.__contains__  # a subclass may define its own `__contains__`
    return has(memory, "__builtins__") or (has(memory, "__loader__") and has(memory, "__spec__"))
