"""Reads in the body of a checkpoint besides its arguments: an eager backward reads these places again, and sees new
values.

In: places that are read while a body is traced, and places that the frame writes later.
Out: a `Break` before the checkpoint's call, if a place is both; eager then makes the call.  Also the places to check
when the backward starts (`recompute_checks.py`), since any code may write them until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from pycompiler.capture.assumptions.recompute_checks import RecomputeCheck
from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.fact_log import FactLog, Location
from pycompiler.capture.recording.input_symbols import Sizes
from pycompiler.capture.values.attributes import is_mutable
from pycompiler.capture.values.base import Cell, LazyObject, Value
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Deque, List, Sequence
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.functions import Function, Method, Partial
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import Guard
from pycompiler.ir.higher_order import register_gradient_hook
from pycompiler.ir.source import Source

if TYPE_CHECKING:
    from pycompiler.capture.interpreter.evaluation import Frame

CONTAINERS = (Sequence, Dict, Set)
MADE = (List, Deque, Dict, Set, Object)  # mutable containers and objects
NUMBERS = ("int", "minus", "float")  # kinds of origins of symbols; sizes are compared with their tensors
UNWATCHED = ("global_state", "no_alias", "sizes", "data")  # guards on more than one place


@dataclass(eq=False)
class BodyReads:
    """The reads of one body, including inner bodies, and the graph's call that it is part of."""

    step: int  # of the root frame at which the body was called
    live: bool = True  # whether a backward may still go through it
    watched: set[tuple[str, Source, Any]] = field(default_factory=set)  # places by source
    tensors: dict[Source, None] = field(default_factory=dict)  # sources of the tensors that the body reaches
    made: tuple[Value, ...] = ()  # containers and objects of the frame that the body reaches
    call: fx.Node | None = None

    def starts(self) -> list[torch.Tensor]:
        """The tensors that start a backward through this body: fakes that require grad."""
        assert self.call is not None
        node = self.call.args[1] if self.call.target is register_gradient_hook else self.call
        made = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        found = made if isinstance(made, (tuple, list)) else (made,)
        return [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]

    @property
    def runs_again(self) -> bool:
        """Whether a backward can reach the body."""
        if self.call is None:
            return False
        return self.call.target is register_gradient_hook or bool(self.starts())


@dataclass(eq=False)
class Rebound:
    """A checkpoint that reads variables which the frame may set again.  An eager backward runs its function with the new
    values.

    `cells`: the variables and their values at the call.
    `step`: the step of the root frame at the call.
    `trace`: traces the second body, which the backward runs.
    """

    call: fx.Node
    step: int
    cells: dict[Cell, Value | None]
    trace: Callable[[], None]

    def finish(self) -> None:
        """The frame has run to its end: trace the second body if a variable has changed."""
        if any(cell.contents is not held for cell, held in self.cells.items()):
            self.trace()

    def go_backward(self) -> None:
        """A backward in the frame runs the function now; a second backward would run it with later values."""
        self.finish()
        self.cells, self.trace = {cell: cell.contents for cell in self.cells}, self.refuse

    def refuse(self) -> None:
        """The later values of the variables are unknown: the frame ends in its middle, or goes backward more than
        once."""
        raise Break(
            "inner-graph",
            "the passed function reads a variable that the frame may set again after a break or a backward",
            self.step,
        )


class RecomputeReads:
    """The bodies of one capture, and their reads.  `facts`: the log, which has all reads."""

    def __init__(self, facts: FactLog) -> None:
        self.facts = facts
        self._open: list[dict[Location, Value | None]] = []
        self._owners: dict[Location, Source] = {}  # the source of the owner, if it existed before the frame
        self._body: BodyReads | None = None  # the outermost body that is traced
        self.bodies: list[BodyReads] = []  # the outermost bodies
        self.rebound: list[Rebound] = []

    def at(self, kind: str, of: Any, name: str | None, value: Value | None, owner: Source | None) -> None:
        """Record that the program reads `value` at a location."""
        place = self.facts.read(kind, of, name, constant=isinstance(value, PLAIN_VALUES))
        if owner is not None and self._open:
            self._owners[place] = owner
        for seen in self._open:
            seen[place] = value

    def assumed(self, guard: Guard) -> None:
        """Record the attribute of a program's class that a guard is about as read."""
        owner, name = guard.source, guard.arg if guard.kind in LACKS else None
        while owner.base is not None:
            owner, name = owner.base, owner.arg
        if owner.kind == "const" and isinstance(name, str) and _is_programs(owner.arg):
            self.at("attribute", owner.arg, name, None, owner)

    @contextmanager
    def of_body(
        self, step: int, args: list[Value], frames: Iterable[Frame], rebound: dict[Cell, Value | None] | None = None
    ) -> Iterator[None]:
        """Record the reads of a body called with `args` in the innermost of `frames`.

        `rebound` receives the variables that the body reads and a frame may set again, with their values.  The caller
        then traces the body again when they are set.  Without `rebound`, such variables break the graph.
        """
        seen: dict[Location, Value | None] = {}
        body = self._body if self._body is not None and self._open else BodyReads(step)
        self._open.append(seen)
        self._body = body
        try:
            yield
        finally:
            self._open.remove(seen)
        cells = {place.owner for place in seen if place.kind == "cell"}
        for frame in frames if cells else ():
            for name in set_later(frame):
                cell = frame.free.get(name) or frame.locals.get(name)
                if id(cell) in cells and rebound is not None and isinstance(cell, Cell):
                    rebound[cell] = cell.contents
                    seen.pop(self.facts.location("cell", cell), None)
                elif id(cell) in cells:
                    where = frame.code.co_name
                    raise Break(
                        "inner-graph", f"the passed function reads the variable {name}, which {where}() may set again"
                    )
        containers = _reachable([*args, *filter(None, seen.values())])
        for place in (*seen, *(self.facts.location("contents", v) for v in containers)):
            self.facts.read_again(place, body)
        if not self._open:
            body.watched = {_by_source(p, self._owners[p]) for p in seen if p in self._owners}
            body.watched |= {("contents", v.source, None) for v in containers if isinstance(v, CONTAINERS) and v.source}
            body.tensors = {v.source: None for v in containers if isinstance(v, Tensor) and v.source is not None}
            body.made = tuple(v for v in containers if v.source is None and isinstance(v, MADE))
            self.bodies.append(body)

    def called(self, node: fx.Node) -> None:
        """`node` is the call in the outermost graph of all bodies that have none yet."""
        for body in self.bodies if not self._open else ():
            body.call = body.call or node

    def tensors(self, found: Iterable[Tensor]) -> None:
        """The last body reads these tensors."""
        body = self._body if self._open else self.bodies[-1]
        assert body is not None
        for tensor in found:
            self.facts.read_again(self.facts.storage(tensor.fake).location, body)
            if tensor.source is not None and not self._open:
                body.tensors[tensor.source] = None

    def go_backward(self) -> None:
        """A backward in the frame may run functions of checkpoints."""
        for rebound in self.rebound:
            rebound.go_backward()

    def end(self, broke: bool) -> None:
        """The frame has run to its end, or to its break (`broke`)."""
        for rebound in self.rebound:
            rebound.refuse() if broke else rebound.finish()

    def spend(self, is_spent: Callable[[Any], bool]) -> None:
        """A backward has gone through autograd nodes.

        `is_spent`: whether each path back from a tensor ends at a spent node.  Bodies behind such nodes read nothing
        any more.
        """
        if self._open:
            return
        for body in self.bodies:
            found = body.starts() if body.call is not None else []
            body.live = not found or not all(map(is_spent, found))
        self.bodies = [body for body in self.bodies if body.live]
        calls = {body.call for body in self.bodies}
        self.rebound = [r for r in self.rebound if r.call in calls]

    @property
    def open(self) -> bool:
        """Whether a body is being traced that will read again later."""
        return bool(self._open)

    @property
    def watches(self) -> bool:
        """Whether there may be places to check again."""
        return any(body.watched or body.tensors or body.made for body in self.bodies)


def recompute_check(
    bodies: list[BodyReads], guards: Iterable[Guard], sizes: Sizes, written: Iterable[Source], stored: Iterable[Source]
) -> RecomputeCheck | None:
    """The checks for the backwards of these bodies, from these guards and the assumptions on symbols.

    `written`: tensors that the frame writes itself; `stored`: places and containers that it writes.
    """

    watched = set[tuple[str, Source, Any]]().union(*(body.watched for body in bodies))

    def is_watched(source: Source) -> bool:
        return _is_watched(watched, source)

    kept = tuple(
        g
        for g in guards
        if g.kind not in UNWATCHED and (is_watched(g.source) or (g.kind in LACKS and _lacks(g) in watched))
    )
    assumed = sizes.guard_about(is_watched)
    kept = kept if assumed is None else (*kept, assumed)
    numbers = tuple(o.number for o in sizes.origins.values() if o.what in NUMBERS and is_watched(o.source))
    own = set(written)
    read = {s: is_watched(s) for body in bodies for s in body.tensors if s not in own}
    tensors = tuple(s for s, stays in read.items() if stays)
    held = tuple(s for s, stays in read.items() if not stays)
    places = tuple(s for s in dict.fromkeys(stored) if is_watched(s))
    looked_at = [s for g in kept for s in (g.source, *g.others)] + [*tensors, *places, *numbers]
    roots = [s for source in looked_at for s in source.reads() if s.base is None]
    looked = dict.fromkeys(root.arg for root in roots if root.kind == "local")
    names = looked | dict.fromkeys(s.root.arg for s in held if s.root.kind == "local")
    made = any(body.made for body in bodies)
    if not (kept or read or places or made or numbers):
        return None
    return RecomputeCheck(kept, tensors, held, tuple(names), len(looked), places, numbers)


def _is_watched(watched: set[tuple[str, Source, Any]], source: Source) -> bool:
    """Whether bodies read the value at `source`, or the container that holds it."""
    while ("contents", source, None) not in watched:
        if source.base is None:
            return False
        if _place_of(source) in watched:
            return True
        if _is_namespace(source.base):
            return False
        source = source.base
    return True


def _is_programs(cls: Any) -> bool:
    """Whether a class is one whose attributes programs set; torch's classes do not change between forward and
    backward."""
    return isinstance(cls, type) and is_mutable(cls) and cls.__module__.partition(".")[0] != "torch"


def _is_namespace(source: Source) -> bool:
    """Whether a source is an object's attribute dict, including the dict of a `threading.local`."""
    return source.kind == "instance_dict" or (source.kind == "attr" and source.arg == "__dict__")


LACKS = {"instance_absent": "attribute", "class_absent": "attribute", "dict_absent": "global"}


def _lacks(guard: Guard) -> tuple[str, Source, Any]:
    """The place that a guard requires to be empty."""
    return LACKS[guard.kind], guard.source, guard.arg


def _by_source(place: Location, owner: Source) -> tuple[str, Source, Any]:
    """A place by its owner's source."""
    kind, name = place.kind, place.name
    if kind == "attributes":
        return "contents", owner.then("instance_dict"), None
    return kind, owner, name


def _place_of(source: Source) -> tuple[str, Source, Any]:
    """The place whose value is at `source`."""
    base = source.base
    assert base is not None
    if source.kind == "dict_value_at":
        return "contents", base, None
    if source.kind == "dict_item":
        inside = base.base if _is_namespace(base) else None
        return ("global", base, source.arg) if inside is None else ("attribute", inside, source.arg)
    return (source.kind if source.kind in ("cell", "grad") else "attribute", base, source.arg)


def _reachable(values: Iterable[Value]) -> list[Value]:
    """The containers and tensors among these values, or inside them."""
    found: dict[int, Value] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) not in found:
            found[id(value)] = value
            todo += filter(None, _parts(value))
    return list(found.values())


def set_later(frame: Frame) -> set[str]:
    """The cell variables that later instructions may set, including the instructions of a loop around the present
    one."""
    behind = frame.instructions[frame.ip :]
    begin = min([frame.ip, *(frame.position[i.target] for i in behind if i.target is not None)])
    return {i.argval for i in frame.instructions[begin:] if i.opname in ("STORE_DEREF", "DELETE_DEREF")}


def _parts(value: Value) -> Iterable[Value | None]:
    if isinstance(value, Sequence):
        return value.raw
    if isinstance(value, Dict):
        return [*value.entries.values()]
    if isinstance(value, Cell):
        return [value.contents]
    if isinstance(value, LazyObject):
        return [value.seen]
    if isinstance(value, Method):
        return [value.function, value.receiver]
    if isinstance(value, Partial):
        return [value.function, *value.args, *value.kwargs.values(), *value.overlay.values()]
    if isinstance(value, Function):
        return [*(value.made_defaults or ()), *(value.made_kwdefaults or {}).values()]
    return [getattr(value, "storage", None)]
