"""What the body of a checkpoint looks at besides its arguments: eager's backward will look again, and see what is there then.

In: places that are read while a body is traced, places that are written later in the frame.  Out: a `Break` before the
checkpoint's call where one is both, so that eager makes the call; and what to look at once more when the backward comes
(`capture/again.py`), since anybody may write those places then.  A place is (kind, id of its owner, name).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pycompiler.capture.again import Again
from pycompiler.capture.breaks import Break
from pycompiler.capture.sizes import Sizes
from pycompiler.capture.values.base import Cell, Lazy, Value
from pycompiler.capture.values.containers import Dict, Sequence, Set
from pycompiler.capture.values.functions import Function, Method, Partial
from pycompiler.capture.values.symbolic import PLAIN_VALUES
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import Guard
from pycompiler.ir.kernels import memory_of
from pycompiler.ir.source import Source

Place = tuple[Any, ...]
CONTAINERS = (Sequence, Dict, Set)
UNWATCHED = ("global_state", "no_alias", "sizes")  # guards on more than what is at a place


class Looks:
    """The places of one capture."""

    def __init__(self) -> None:
        self._seen: set[Place] = set()
        self._constants: set[Place] = set()
        self._open: list[dict[Place, Value | None]] = []
        self._owners: dict[Place, Source] = {}  # place → its owner's source, of places that existed before the frame
        self._watched: set[tuple[str, Source, Any]] = set()  # places by source that bodies looked at
        self._tensors: dict[Source, None] = {}  # where the tensors are that they reach
        self._steps: dict[Place, int] = {}  # place → step of the root frame at which the checkpoint was called

    def saw(self, place: Place) -> bool:
        """Whether the program has read what is there."""
        return place in self._seen

    def saw_constant(self, place: Place) -> bool:
        """Whether a constant is there, which was there when the frame began."""
        return place in self._constants

    def at(self, place: Place, value: Value | None, owner: Source | None) -> None:
        """The program reads `value` there."""
        self._seen.add(place)
        if owner is not None and self._open:
            self._owners[place] = owner
        if isinstance(value, PLAIN_VALUES):
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
        containers = _below([*args, *filter(None, seen.values())])
        self._tensors |= {v.source: None for v in containers if isinstance(v, Tensor) and v.source is not None}
        places = [*seen, *(("contents", id(v)) for v in containers)]
        for place in places:
            self._steps.setdefault(place, step)
        self._watched |= {_by_source(p, self._owners[p]) for p in seen if p in self._owners}
        self._watched |= {("contents", v.source, None) for v in containers if isinstance(v, CONTAINERS) and v.source}

    def tensors(self, found: Iterable[Tensor], step: int) -> None:
        """A body reads these tensors."""
        for tensor in found:
            self._steps.setdefault(("memory", memory_of(tensor.fake)), step)
            if tensor.source is not None:
                self._tensors[tensor.source] = None

    @property
    def open(self) -> bool:
        """Whether a body is traced that looks again, later."""
        return bool(self._open)

    @property
    def watches(self) -> bool:
        """Whether there may be something to look at again."""
        return bool(self._watched or self._tensors)

    def again(self, guards: Iterable[Guard], sizes: Sizes, written: Iterable[Source]) -> Again | None:
        """What backwards look at, of what these guards say, and what is assumed of symbols; `written`: tensors that the
        frame writes itself."""
        kept = tuple(
            g
            for g in guards
            if g.kind not in UNWATCHED
            and (self._is_watched(g.source) or (g.kind in LACKS and _lacks(g) in self._watched))
        )
        assumed = sizes.guard_about(self._is_watched)
        kept = kept if assumed is None else (*kept, assumed)
        read = [s for s in self._tensors if s not in set(written)]
        tensors = tuple(s for s in read if self._is_watched(s))
        held = tuple(s for s in read if s not in tensors)
        roots = [s.root for g in kept for s in (g.source, *g.others)] + [s.root for s in read]
        names = dict.fromkeys(root.arg for root in roots if root.kind == "local")
        return Again(kept, tensors, held, tuple(names)) if kept or read else None

    def _is_watched(self, source: Source) -> bool:
        """Whether a body looked at what is at `source`, or at the container that holds it."""
        while ("contents", source, None) not in self._watched:
            if source.base is None:
                return False
            if _place_of(source) in self._watched:
                return True
            if source.base.kind == "instance_dict":
                return False
            source = source.base
        return True

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


LACKS = {"instance_absent": "attribute", "dict_absent": "global"}


def _lacks(guard: Guard) -> tuple[str, Source, Any]:
    """The place that a guard says to be empty."""
    return LACKS[guard.kind], guard.source, guard.arg


def _by_source(place: Place, owner: Source) -> tuple[str, Source, Any]:
    """A place by its owner's source."""
    kind, name = place[0], place[-1]
    if kind == "attributes":
        return "contents", owner.then("instance_dict"), None
    return kind, owner, None if kind == "cell" else name


def _place_of(source: Source) -> tuple[str, Source, Any]:
    """The place whose value is at `source`."""
    base = source.base
    assert base is not None
    if source.kind == "dict_item":
        inside = base.kind == "instance_dict" and base.base is not None
        return ("attribute", base.base, source.arg) if inside else ("global", base, source.arg)  # type: ignore[return-value]
    return (source.kind if source.kind in ("cell", "grad") else "attribute", base, source.arg)


def _below(values: Iterable[Value]) -> list[Value]:
    """The containers and tensors that these values are, or hold."""
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
    if isinstance(value, Lazy):
        return [value.seen]
    if isinstance(value, Method):
        return [value.function, value.receiver]
    if isinstance(value, Partial):
        return [value.function, *value.args, *value.kwargs.values()]
    if isinstance(value, Function):
        return [*(value.made_defaults or ()), *(value.made_kwdefaults or {}).values()]
    return [getattr(value, "storage", None)]
