"""What the body of a checkpoint looks at besides its arguments: eager's backward will look again, and see what is there then.

In: places that are read while a body is traced, places that are written later in the frame.  Out: a `Break` before the
checkpoint's call where one is both, so that eager makes the call.  A place is (kind, id of its owner, name).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Cell, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers import Dict, Sequence
from pycompiler.capture.values.functions import Function, Method, Partial
from pycompiler.ir.kernels import memory_of

Place = tuple[Any, ...]


class Looks:
    """The places of one capture."""

    def __init__(self) -> None:
        self._seen: set[Place] = set()
        self._constants: set[Place] = set()
        self._open: list[dict[Place, Value | None]] = []
        self._steps: dict[Place, int] = {}  # place → step of the root frame at which the checkpoint was called

    def saw(self, place: Place) -> bool:
        """Whether the program has read what is there."""
        return place in self._seen

    def saw_constant(self, place: Place) -> bool:
        """Whether a constant is there, which was there when the frame began."""
        return place in self._constants

    def at(self, place: Place, value: Value | None) -> None:
        """The program reads `value` there."""
        self._seen.add(place)
        if isinstance(value, Const):
            self._constants.add(place)
        for seen in self._open:
            seen[place] = value

    @contextmanager
    def of_body(self, step: int, args: list[Value]) -> Iterator[None]:
        """A body that is called with `args` is traced."""
        seen: dict[Place, Value | None] = {}
        self._open.append(seen)
        try:
            yield
        finally:
            self._open.remove(seen)
        places = [*seen, *(("contents", id(v)) for v in _below([*args, *filter(None, seen.values())]))]
        for place in places:
            self._steps.setdefault(place, step)

    def memory(self, fakes: Iterable[Any], step: int) -> None:
        """A body reads these tensors, which are none of its arguments."""
        for fake in fakes:
            self._steps.setdefault(("memory", memory_of(fake)), step)

    def change(self, *places: Place) -> None:
        """The program writes there."""
        for place in places if self._steps else ():
            step = self._steps.get(place)
            if step is not None:
                raise Break("inner-graph", "what a checkpoint looked at is changed after it", step)

    def writes(self, fakes: Iterable[Any]) -> None:
        """The program may write these tensors."""
        if self._steps:
            self.change(*(("memory", memory_of(fake)) for fake in fakes))


def _below(values: Iterable[Value]) -> list[Value]:
    """The containers that these values are, or hold."""
    found: dict[int, Value] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) not in found:
            found[id(value)] = value
            todo += filter(None, _parts(value))
    return list(found.values())


def _parts(value: Value) -> Iterable[Value | None]:
    if isinstance(value, Sequence):
        return value.items
    if isinstance(value, Dict):
        return [*value.entries.values()]
    if isinstance(value, Cell):
        return [value.contents]
    if isinstance(value, Method):
        return [value.function, value.receiver]
    if isinstance(value, Partial):
        return [value.function, *value.args, *value.kwargs.values()]
    if isinstance(value, Function):
        return [*(value.made_defaults or ()), *(value.made_kwdefaults or {}).values()]
    return [getattr(value, "storage", None)]
