"""Side effects of the captured program on objects that existed before it, recorded to be replayed at the end.

In: stores seen during capture.  Out: an ordered record (`attributes`, `containers`, `globals`, `cells`).  Reads go
through the overlays first, so that the program sees its own writes.
"""

from __future__ import annotations

from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.looks import Looks
from pycompiler.capture.values.base import Cell, Place, Value, next_age
from pycompiler.capture.values.containers import Dict, List
from pycompiler.capture.values.objects import Object


class Effects:
    """All pending writes of one frame, in order."""

    def __init__(self) -> None:
        self.attributes: dict[tuple[int, str], tuple[Object, str, Value]] = {}
        self.containers: dict[int, Value] = {}
        self.globals: dict[tuple[int, str], tuple[dict[str, Any], str, Value]] = {}
        self.cells: dict[int, Cell] = {}
        self.tracebacks: dict[int, Value] = {}  # existing exceptions that were raised again
        self.calls: list[tuple[Value, list[Value]]] = []  # calls that wait until the graph has run (skip.DEFERRED)
        self.looks = Looks()
        self.since: int | None = None  # what was made before may not change now: the age of the innermost pure tracer

    def __bool__(self) -> bool:
        return bool(self.attributes or self.containers or self.globals or self.cells or self.calls or self.tracebacks)

    def describe(self) -> str:
        """One line a write, for logs."""
        lines = [f"  the contents of {c.source}" for c in self.containers.values()]
        lines += [
            f"  {obj.source or obj.describe()}.{name} = {value!r}" for obj, name, value in self.attributes.values()
        ]
        lines += [f"  global {name} = {value!r}" for _, name, value in self.globals.values()]
        lines += [f"  cell {cell.source or cell.describe()} = {cell.contents!r}" for cell in self.cells.values()]
        lines += [f"  traceback of {e.source}" for e in self.tracebacks.values()]
        lines += [f"  {fn.describe()}({', '.join(a.describe() for a in args)})" for fn, args in self.calls]
        return "\n".join(lines)

    def count(self) -> tuple[int, ...]:
        """How many writes of each kind are pending, calls last."""
        kinds = (self.attributes, self.containers, self.globals, self.cells, self.calls)
        return tuple(len(k) for k in kinds)

    def begin(self, pure: bool) -> int | None:
        """A tracer starts; the mark that its `end` takes."""
        mark = self.since
        if pure:
            self.since = next_age()
        return mark

    def end(self, mark: int | None) -> None:
        self.since = mark

    def allow(self, value: Value | None, what: str) -> None:
        """An effect on `value`, or outside of the program's values; a function that may run twice, or never, has none."""
        if self.since is not None and (value is None or value.source is not None or value.age < self.since):
            raise Break("inner-graph", f"it changes what was there before: {what}")

    def defer(self, fn: Value, args: list[Value]) -> None:
        """A call that waits until the graph has run."""
        self.allow(None, fn.describe())
        self.calls.append((fn, args))

    def passed(self, exception: Value, place: Place) -> None:
        """An exception passes through a frame. A new one gets its traceback when it is built."""
        exception.passed = [*exception.passed, place]
        if exception.source is not None:
            self.tracebacks[id(exception)] = exception

    def mutate(self, container: Value) -> None:
        """A container is about to change; only existing ones need a replay."""
        self.allow(container, container.describe())
        self.looks.change(("contents", id(container)))
        if isinstance(container, Dict):
            container.changed = True
        if container.source is not None and id(container) not in self.containers:
            self.containers[id(container)] = container
            if isinstance(container, List):
                container.before = list(container.items)

    def set_attr(self, obj: Any, name: str, value: Value) -> None:
        self.allow(obj, f"{obj.describe()}.{name}")
        self.looks.change(("attribute", id(obj), name), ("attributes", id(obj)))
        obj.overlay[name] = value
        if obj.exists:
            self.attributes.pop((id(obj), name), None)
            self.attributes[(id(obj), name)] = (obj, name, value)

    def set_global(self, namespace: dict[str, Any], name: str, value: Value) -> None:
        self.allow(None, f"global {name}")
        self.looks.change(("global", id(namespace), name))
        self.globals.pop((id(namespace), name), None)
        self.globals[(id(namespace), name)] = (namespace, name, value)

    def get_global(self, namespace: dict[str, Any], name: str) -> Value | None:
        found = self.globals.get((id(namespace), name))
        return found[2] if found else None

    def set_cell(self, cell: Cell, value: Value | None) -> None:
        self.allow(cell, cell.describe())
        self.looks.change(("cell", id(cell)))
        cell.contents = value
        cell.changed = True
        if cell.source is not None:
            self.cells.setdefault(id(cell), cell)
