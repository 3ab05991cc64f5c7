"""Dicts that the program reaches in two ways: as a dict, and as the attributes of an object, of a function, of a module.

In: views, each with the dict that it shows; writes.  Out: a `Break` where a dict of two views is written, or a written one
gets another view: each view has its own overlay, and none would see what another has written.
Example: ``self.__dict__ = self`` of a subclass of dict: its items and its attributes are views of one dict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Value


class Namespaces:
    """The views of one capture."""

    def __init__(self) -> None:
        self._views: dict[int, dict[int, Value | None]] = {}  # id of a dict, which the capture keeps → its views, by id
        self._written: set[int] = set()
        self._inside: int | None = None  # id of the dict of which a view is made that does not count

    def reached(self, memory: Any, view: Value | None) -> None:
        """The program reaches a dict through `view`; None: as globals."""
        if memory is not None and id(memory) != self._inside:
            self._views.setdefault(id(memory), {})[id(view)] = view
            self._check(id(memory))

    @contextmanager
    def inside(self, memory: Any) -> Iterator[None]:
        """A dict is looked at where only a view of it that is known already can see."""
        before, self._inside = self._inside, id(memory)
        try:
            yield
        finally:
            self._inside = before

    def write(self, memory: Any) -> None:
        """The program is about to write a dict through one of its views."""
        if memory is not None:
            self._written.add(id(memory))
            self._check(id(memory))

    def _check(self, place: int) -> None:
        if place in self._written and len(self._views.get(place, ())) > 1:
            raise Break(
                "mutation-unsupported", "a dict that is also reached as the attributes of an object or a module"
            )


def is_globals(memory: dict[Any, Any]) -> bool:
    """Whether a dict is the namespace of a module, or code has run in it."""
    has = dict.__contains__  # a subclass has its own, which is the program's
    return has(memory, "__builtins__") or (has(memory, "__loader__") and has(memory, "__spec__"))
