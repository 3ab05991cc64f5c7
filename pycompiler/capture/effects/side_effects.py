"""Side effects of the captured program on existing objects, recorded for a replay at the end.

In: stores during capture.  Out: one journal of `Write`s in program order.  Reads go through the overlays first, so that
the program sees its own writes.

A store drops the old object.  Its end may run code of the program (a finalizer), which sees earlier writes but no later
ones.  So two writes to one place share an entry, at the place of the earlier one, only if no such code can run between
them.  For a place that is written often, the last entry stands for the rest (`MOST`).
"""

from __future__ import annotations

import builtins
import collections
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx

from pycompiler.capture.assumptions.recompute_reads import RecomputeReads
from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.attribute_dicts import NamespaceViews, is_globals
from pycompiler.capture.effects.fact_log import FactLog, Location
from pycompiler.capture.values.attributes import WRITTEN, instance_dict, is_behind_python_descriptor
from pycompiler.capture.values.base import Cell, StandIn, TracebackEntry, Value, next_age
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.instance_dicts import DELETED
from pycompiler.capture.values.containers.sequences import List
from pycompiler.capture.values.containers.sets import Set, values_in
from pycompiler.capture.values.finalizers import in_slot, runs_code
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, is_open_text
from pycompiler.capture.values.tensor import Tensor

MOST = 16
UNKNOWN = Value()


@dataclass(eq=False)
class Write:
    """One entry of the journal.

    `kind`: attribute, class, grad, flag, contents, global, cell, traceback, call, draw, warning, advance, keep, hit.

    - keep: `name` has the names of the last arguments, `value` the result (None: a hit) and arguments of the cached
      function.
    - advance: `value` is the number of steps of an iterator.
    - contents: `before` and `after` are states of the container (`state_of`); `after` is None for the final state.
    """

    kind: str
    target: Any
    name: Any = None
    value: Any = None
    before: Any = None
    after: Any = None
    ends: bool = True  # whether it may drop more than numbers, str and tensors
    keeps: bool = False  # of contents: whether it drops only numbers and str


@dataclass(frozen=True, eq=False)
class DeferredWarning:
    """A warning of the program: its text, category and line, in a module with this namespace."""

    message: str
    category: type[Warning]
    filename: str
    lineno: int
    namespace: dict[str, Any]
    by: Any = None  # for a warning of torch's C++ code, which has the text and counts: a `replay.TorchWarning`


def state_of(container: Value) -> Any:
    """The current state of a container: its contents, or for a set the length of its log."""
    if isinstance(container, (List, Dict)):
        return container.contents()
    return len(container.log) if isinstance(container, Set) else None


def is_harmless(dropped: Value | None) -> bool:
    """Whether no code runs when the program drops this value: a number, str or tensor."""
    text = dropped is not None and is_open_text(dropped)
    return text or isinstance(dropped, (*PLAIN_VALUES, Tensor)) or dropped is DELETED


def may_end(value: Value, depth: int = 3) -> bool:
    """Whether code of the program may run when it drops this existing object, or the objects in this container."""
    held = values_in(value) if depth else ()
    return runs_code(getattr(value, "real", None)) or any(may_end(v, depth - 1) for v in held)


class Effects:
    """All pending writes of one frame, in order."""

    def __init__(self, graph: fx.Graph, facts: FactLog) -> None:
        self.facts = facts
        self.graph = graph  # the outermost graph: tensors of inner ones cannot be stored
        self.journal: list[Write] = []
        self.moved: set[Location] = set()
        """Attributes that were deleted and stored again: they come last among the object's attributes."""
        self.changes = 0  # number of writes, without calls
        self.globals: dict[tuple[int, str], Value] = {}
        self._last: dict[Location, int] = {}  # place -> its last entry
        self._entries: collections.Counter[Location] = collections.Counter()
        self._noise = -1  # the last entry that may run code
        self.advanced: dict[int, Value] = {}  # existing iterators that the program advanced
        self._following = False  # whether the steps of an iterator come with another iterator's
        self.looks = RecomputeReads(facts)
        self.namespaces = NamespaceViews()
        self.drops: dict[Any, tuple[str, str | None, Any]] = {}  # old objects that may end: places and values
        self.works: list[Any] = []  # running collectives (`capture/library/torch_functions/distributed.py`)
        self.readings: list[Any] = []  # calls that only read (`values/deferred.py`)
        self.waiting: list[Value] = []  # existing objects and dicts that deferred calls change
        self.let_go: list[Value] = []  # existing objects that variables held
        self.restoring: Callable[[], bool] = lambda: False  # whether a resume function is in its head
        self.since: int | None = None  # values older than this must not change: the age of the innermost pure tracer

    def __bool__(self) -> bool:
        """Whether anything was changed; cache hits change nothing."""
        return any(w.kind != "hit" for w in self.journal)

    def describe(self) -> str:
        """One line per write, in order, for logs."""
        return "\n".join(f"  {LINES[w.kind](w)}" for w in self.journal)

    def _write(
        self, place: Location, kind: str, target: Any, *, quiet: bool, name: str | None = None, anew: bool = False
    ) -> Write:
        """The entry for a write to `place` that happens now.

        `quiet`: it runs no code.  `anew`: after all other writes, since the place was empty.
        """
        self.changes += 1
        if not quiet and place not in self._last and kind in ("attribute", "global", "cell"):
            self.drops[place] = (kind, name, target)
        at, end = self._last.get(place), len(self.journal)
        if at is not None and not anew:
            found = self.journal[at]
            if (quiet and at > self._noise) or self._entries[place] == MOST or not self._stays(found):
                self._noise = max(self._noise, -1 if quiet else at)
                found.ends |= not quiet
                return found
        made = Write(kind, target, name, ends=not quiet)
        if kind == "contents":
            made.before = state_of(target)
            if at is not None:
                self.journal[at].after = made.before
        self.journal.append(made)
        self._last[place] = end
        self._entries[place] += 1
        self._noise = self._noise if quiet else end
        return made

    def _stays(self, write: Write) -> bool:
        """Whether generated code can produce the state after this write, although other writes follow."""
        made = values_in(write.target) if write.kind == "contents" else (write.value,)
        return all(
            v is None or v is DELETED or v.source is not None or isinstance(v, PLAIN_VALUES)
            or (isinstance(v, Tensor) and v.node.graph is self.graph)
            for v in made
        )  # fmt: skip

    def is_written(self, container: Value) -> bool:
        """Whether an existing container is changed."""
        return Location("contents", id(container)) in self._last or any(v is container for v in self.waiting)

    def written(self) -> list[Value]:
        """The objects and containers that are changed."""
        return [*(w.target for w in self.journal if w.kind in ("attribute", "contents")), *self.waiting,
                *self.advanced.values()]  # fmt: skip

    def is_disturbed(self, real: Any, known: Value | None) -> bool:
        """Whether the program has changed an existing container (`known`: its value), or may have changed it as a
        namespace."""
        parts = [v for v in (known, getattr(known, "storage", None)) if v is not None]
        return any(map(self.is_written, parts)) or (
            isinstance(real, dict) and any(w.kind in ("attribute", "global", "class") for w in self.journal)
        )

    def advance(self, iterator: Value) -> None:
        """Advance an existing iterator by one step.  Earlier writes do not depend on its position, but code that they
        run may."""
        self.changes += 1
        self.advanced[id(iterator)] = iterator
        if self._following:
            return
        place = self.facts.location("advance", iterator)
        at = self._last.get(place, -1)
        if at <= self._noise:
            at = self._last[place] = len(self.journal)
            self.journal.append(Write("advance", iterator, value=0))
        self.journal[at].value += 1

    @contextmanager
    def following(self) -> Iterator[None]:
        """Steps taken inside belong to an outer iterator."""
        before, self._following = self._following, True
        try:
            yield
        finally:
            self._following = before

    def mark(self) -> tuple[int, int]:
        """The current state, for `calls_since`."""
        return self.changes, len(self.journal)

    def quiet_since(self, mark: tuple[int, int]) -> bool:
        """Whether nothing has changed since then, except for cache hits."""
        return mark[0] == self.changes and all(w.kind == "hit" for w in self.journal[mark[1] :])

    def calls_since(self, mark: tuple[int, int]) -> bool:
        """Whether calls were deferred since then, and nothing else happened."""
        return mark[0] == self.changes and mark[1] < len(self.journal)

    def forget_since(self, mark: tuple[int, int]) -> None:
        """Remove the calls deferred since then."""
        del self.journal[mark[1] :]
        self._noise = min(self._noise, len(self.journal) - 1)

    def begin(self, pure: bool) -> int | None:
        """Start a tracer; returns the mark that its `end` takes."""
        mark = self.since
        if pure:
            self.since = next_age()
        return mark

    def end(self, mark: int | None) -> None:
        self.since = mark

    def allow(self, value: Value | None, what: str) -> None:
        """Check that an effect on `value`, or outside of all values, is allowed.

        A function that may run twice, or never, must not change objects that existed before it.
        """
        if self.since is not None and (value is None or value.source is not None or value.age < self.since):
            raise Break("inner-graph", f"the inner graph changes an object from outside: {what}")

    def defer(
        self, fn: Value, args: list[Value], changes: tuple[dict[str, Any], tuple[str, ...]] | None = None
    ) -> None:
        """Defer a call until the graph has run.  `changes`: a namespace and the globals that it makes unknown."""
        if changes is not None:
            self.globals |= {(id(changes[0]), name): UNKNOWN for name in changes[1]}
        self.allow(None, fn.describe())
        self.journal.append(Write("call", fn, value=args))
        self._noise = len(self.journal) - 1

    def keep(self, keeping: Any, names: tuple[str, ...], result: Value | None, args: list[Value]) -> None:
        """Record a call of a cached function, which its table (`lru_cache_tables.ResultStore`) must count.  Evicted results
        end quietly."""
        self.allow(None, "the table of a cached function")
        self.changes += 1
        self.journal.append(Write("keep", keeping, names, [result, *args]))

    def wait(self, changed: Any, names: tuple[str, ...], unknown: Value) -> None:
        """Record that a deferred call changes attributes of an existing object, or entries of a dict, by name."""
        self.waiting.append(changed)
        if isinstance(changed, Dict):
            at = self._last.get(Location("contents", id(changed)))
            if at is not None and self.journal[at].after is None:
                self.journal[at].after = state_of(changed)
            self.namespaces.write(changed.real)
            for key in [k for k in changed.entries if k.value.is_const() and k.value.const() in names]:
                changed.entries[key] = unknown
            return
        memory = instance_dict(changed.real)
        self.namespaces.reached(memory, changed)
        self.namespaces.write(memory)
        changed.overlay.update(dict.fromkeys(names, unknown))

    def hit(self, cached: Any) -> None:
        """Record a hit of a cached function with constant arguments (`lru_cache_calls.Cached`).  A function that may
        run twice counts none."""
        if self.since is None:
            self.journal.append(Write("hit", cached))

    @property
    def tables(self) -> dict[Any, int]:
        """The number of stores and hits of each table."""
        return collections.Counter(w.target for w in self.journal if w.kind == "keep")

    def warn(self, said: DeferredWarning) -> None:
        """Record a warning that waits until the graph has run."""
        self.allow(None, f"a {said.category.__name__}")
        self.namespaces.reached(said.namespace, None)
        self.namespaces.write(said.namespace)  # the registry, which must not be read as a dict
        self.defer(UNKNOWN, [], (said.namespace, ("__warningregistry__",)))
        self.journal[-1] = Write("warning", said)

    @property
    def warnings(self) -> list[DeferredWarning]:
        return [w.target for w in self.journal if w.kind == "warning"]

    def draw(self, fn: Value, args: list[Value]) -> None:
        """Record a call before the graph, for a number or a generator.

        See `capture/library/standard/random_numbers.py` and `capture/library/torch_functions/random_generators.py`.
        """
        self.allow(None, fn.describe())
        self.changes += 1
        self.journal.append(Write("draw", fn, value=args))

    def read(self, reading: Any) -> None:
        """Record a call that only reads, before the graph or after it."""
        self.allow(None, reading.describe())
        self.readings.append(reading)

    def may_raise(self) -> bool:
        """Whether generated code computes a value that may raise an error of the program."""
        return any(not hasattr(r, "told") for r in self.readings)

    @property
    def draws(self) -> list[Write]:
        return [w for w in self.journal if w.kind == "draw"]

    def passed(self, exception: Value, place: TracebackEntry) -> None:
        """Record that an exception passes through a frame.  A new exception gets its traceback when it is built."""
        exception.passed = [*exception.passed, place]
        if exception.source is not None:
            self._write(self.facts.location("traceback", exception), "traceback", exception, quiet=True)

    def mutate(self, container: Value, drops: Iterable[Value] | None = None) -> None:
        """Call before a container changes; only existing ones need a replay.  `drops`: the values that may go out
        (None: any)."""
        self.allow(container, container.describe())
        place = self.facts.change("contents", container)
        if isinstance(container, Dict):
            if container.real is not None and is_globals(container.real):
                raise Break("mutation-unsupported", "the globals of a module, changed through a dict")
            self.namespaces.write(container.real)
            container.changed = True
        gone = [*values_in(container)] if drops is None else [*drops]
        self.drop(gone)
        if container.source is not None:
            loud = [v for v in gone if not is_harmless(v)]
            self._ask(container, loud, whole=drops is None)
            first = place not in self._last
            made = self._write(place, "contents", container, quiet=not loud)
            made.keeps = (first or made.keeps) and all(isinstance(v, PLAIN_VALUES) for v in gone)

    def store_unasked(self, container: Dict, key: Value) -> None:
        """Record a store into an existing dict under an open key.  Each call checks the value that it drops."""
        self.mutate(container, [UNKNOWN])
        self.drops["key", id(container), id(key)] = ("key", None, (container, key))

    def count(self, container: Dict, key: Value, *, zero: bool) -> None:
        """Record a change of the int at an open key of an existing dict.  Each call checks that an int is there.

        `zero`: a missing key counts as 0.
        """
        self.mutate(container, [Const(0)])
        self.drops["tally", id(container), id(key)] = ("tally", None, (container, key, zero))

    def _ask(self, container: Value, loud: list[Value], *, whole: bool) -> None:
        """Register the values that go out for a check in generated code, by their sources at the frame's start.

        New values have no source.  A set with such values is checked as a whole.  Other containers are checked as a
        whole only if all of it may go out.
        """
        if loud and (whole or (isinstance(container, Set) and any(v.source is None for v in loud))):
            self.drops["contents", id(container)] = ("contents", None, container)
            return
        for value in loud:
            if value.source is not None:
                self.drops["value", value.source] = ("value", None, value)

    def unbind(self, value: Value | None) -> None:
        """A variable no longer holds this value."""
        if value is not None and value.source is not None and not isinstance(value, PLAIN_VALUES):
            self.let_go.append(value)

    def ending(self, *, tensor: bool, gradient: bool = True) -> list[Write]:
        """The writes that may have dropped a tensor, or another object; with `gradient`, also writes of gradients."""
        return [w for w in self.journal if (tensor or w.ends) and not w.keeps and (gradient or w.kind != "grad")]

    def ends(self, *, tensor: bool) -> bool:
        """Whether there is such a write."""
        return bool(self.ending(tensor=tensor))

    def may_end(self, *, tensor: bool) -> bool:
        """Whether the frame may have ended a tensor, or another object, by a write or a variable."""
        gone = [getattr(v, "seen", None) or v for v in self.let_go]
        return self.ends(tensor=tensor) or any(tensor or not isinstance(v, Tensor) for v in gone)

    def drop(self, values: list[Value] | dict[str, Any], name: str = "") -> None:
        """Check that the program may drop these values, or the existing object that `values` has at a name."""
        found = any(map(may_end, values)) if isinstance(values, list) else runs_code(values.get(name))
        if found and not self.restoring():
            raise Break("finalizer", "a write drops the object", gives_end=True)

    def set_attr(self, obj: Any, name: str, value: Value) -> None:
        self.allow(obj, f"{obj.describe()}.{name}")
        if obj.exists:
            memory = instance_dict(obj.real)
            self.namespaces.reached(memory, obj)
            self.namespaces.write(memory)
        place = self.facts.change("attribute", obj, name)
        self.facts.change("attributes", obj)
        old = obj.overlay.get(name)
        anew = old is DELETED and value is not DELETED
        if anew:  # it becomes the last attribute
            del obj.overlay[name]
            self.moved.add(place)
        obj.overlay[name] = value
        if obj.exists:
            quiet = (
                is_harmless(old)
                if old is not None
                else self.facts.saw_constant(place) and not is_behind_python_descriptor(obj.cls, name)
            )
            held = instance_dict(obj.real) or {}
            if name not in held:
                held = dict.fromkeys([name], *in_slot(obj.real, name))
            self.drop([old] if old is not None else held, name)
            self._write(place, "attribute", obj, quiet=quiet, name=name, anew=anew).value = value

    def set_class(self, cls: Any, name: str, value: Value, step: int | None) -> None:
        """`cls.name = value` for a class, at this step; lookups find it from now on."""
        self.allow(None, f"{cls.describe()}.{name}")
        place = self.facts.change("class", cls.cls, name)
        WRITTEN[threading.get_ident(), id(cls.cls), name] = StandIn(value)
        made = self._write(place, "class", cls, quiet=True, name=name)
        made.value, made.before = value, step

    def set_grad(self, tensor: Tensor, value: Value) -> None:
        """`tensor.grad = value`; the old gradient ends quietly."""
        self.allow(tensor, f"{tensor.describe()}.grad")
        place = self.facts.change("grad", tensor)
        tensor.overlay["grad"] = value
        if tensor.exists:
            self._write(place, "grad", tensor, quiet=True).value = value

    def set_flag(self, tensor: Tensor, value: bool) -> None:
        """`tensor.requires_grad_(value)` of an existing tensor."""
        self.allow(tensor, f"{tensor.describe()}.requires_grad")
        self.facts.change_memory(tensor.fake)
        self._write(self.facts.location("flag", tensor), "flag", tensor, quiet=True).value = Const(value)

    def set_global(self, namespace: dict[str, Any], name: str, value: Value) -> None:
        self.allow(None, f"global {name}")
        if namespace is vars(builtins):  # names of all modules may refer to them, also in running functions
            raise Break("mutation-unsupported", f"builtins.{name}")
        self.namespaces.reached(namespace, None)
        self.namespaces.write(namespace)
        place = self.facts.change("global", namespace, name)
        old = self.globals.get((id(namespace), name))
        self.globals[id(namespace), name] = value
        quiet = is_harmless(old) if old is not None else self.facts.saw_constant(place)
        self.drop([old] if old is not None else namespace, name)
        self._write(place, "global", namespace, quiet=quiet, name=name).value = value

    def get_global(self, namespace: dict[str, Any], name: str) -> Value | None:
        found = self.globals.get((id(namespace), name))
        if found is UNKNOWN:
            raise Break("global-state", f"a read of {name}, which a call that runs after the graph changes")
        return found

    def set_cell(self, cell: Cell, value: Value | None) -> None:
        self.allow(cell, cell.describe())
        place = self.facts.change("cell", cell)
        quiet = cell.contents is None or is_harmless(cell.contents)
        self.drop([] if cell.contents is None else [cell.contents])
        self.unbind(cell.contents)
        cell.contents = value
        cell.changed = True
        if cell.source is not None:
            self._write(place, "cell", cell, quiet=quiet).value = value


def _object(value: Any) -> Any:
    return value.source or value.describe()


LINES: dict[str, Callable[[Write], str]] = {
    "contents": lambda w: f"the contents of {w.target.source}",
    "attribute": lambda w: f"{_object(w.target)}.{w.name} = {w.value!r}",
    "class": lambda w: f"{w.target.describe()}.{w.name} = {w.value!r}",
    "flag": lambda w: f"{_object(w.target)}.requires_grad_({w.value!r})",
    "grad": lambda w: f"{_object(w.target)}.grad = {w.value!r}",
    "global": lambda w: f"global {w.name} = {w.value!r}",
    "cell": lambda w: f"cell {_object(w.target)} = {w.value!r}",
    "traceback": lambda w: f"traceback of {w.target.source}",
    "call": lambda w: f"{w.target.describe()}({', '.join(a.describe() for a in w.value)})",
    "warning": lambda w: f"{w.target.category.__name__}: {w.target.message}",
    "advance": lambda w: f"{w.value} steps of {w.target.source}",
    "keep": lambda w: f"a cached result of {w.target.fn!r}",
    "hit": lambda w: f"a cache hit of {w.target.call[0]!r}",
    "draw": lambda w: f"before the graph: {LINES['call'](w).strip()}",
}
"""Kind of write -> its line in a log."""
