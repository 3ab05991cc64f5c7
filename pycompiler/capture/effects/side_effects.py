"""Side effects of the captured program on objects that existed before it, recorded to be replayed at the end.

In: stores seen during capture.  Out: one journal of `Write`s in program order.  Reads go through the overlays first, so that
the program sees its own writes.

A store drops what was there, which may run code of the program (a finalizer) that sees the writes before it, and none after
it.  So two writes of one place are one entry only where nothing between them may have run any: the later one is made at the
place of the earlier.  Of a place that is written often the last entry stands for the rest (`MOST`).
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

from pycompiler.capture.breaks import Break
from pycompiler.capture.looks import Looks
from pycompiler.capture.looks import Place as Spot
from pycompiler.capture.namespaces import Namespaces, is_globals
from pycompiler.capture.values.attributes import WRITTEN, instance_dict, is_held
from pycompiler.capture.values.base import Cell, Place, StandIn, Value, next_age
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.finalizers import in_slot, runs_code
from pycompiler.capture.values.instance_dicts import DELETED
from pycompiler.capture.values.sequences import List
from pycompiler.capture.values.sets import Set, values_in
from pycompiler.capture.values.symbolic import PLAIN_VALUES, is_open_text
from pycompiler.capture.values.tensor import Tensor

MOST = 16
UNKNOWN = Value()


@dataclass(eq=False)
class Write:
    """One entry of the journal.  `kind`: attribute, class, grad, flag, contents, global, cell, traceback, call, draw, warning,
    advance, keep, hit.

    Of a table of a cached function: `name` has the names of the last arguments, `value` the result (None: a hit) and arguments.
    `value` of an iterator that advances is its number of steps.
    Of contents, `before` and `after` are states of the container (`state_of`); `after` is None for the one it has at the end.
    """

    kind: str
    target: Any
    name: Any = None
    value: Any = None
    before: Any = None
    after: Any = None
    ends: bool = True  # whether it may let go of more than numbers, texts and tensors
    keeps: bool = False  # of contents: whether it lets go of numbers and texts alone


@dataclass(frozen=True, eq=False)
class Warned:
    """What a program warns of, and the line that it warns about, of a module with this namespace."""

    message: str
    category: type[Warning]
    filename: str
    lineno: int
    namespace: dict[str, Any]
    by: Any = None  # what torch warns of in C++, which has the text, and counts: a `shown.OfTorch`


def state_of(container: Value) -> Any:
    """What a container holds now: contents, entries with how often all went out, or of a set how much of its log has happened."""
    if isinstance(container, (List, Dict)):
        return container.contents()
    return len(container.log) if isinstance(container, Set) else None


def is_harmless(dropped: Value | None) -> bool:
    """Whether no code runs when the program lets go of this: numbers, texts, tensors."""
    text = dropped is not None and is_open_text(dropped)
    return text or isinstance(dropped, (*PLAIN_VALUES, Tensor)) or dropped is DELETED


def may_end(value: Value, depth: int = 3) -> bool:
    """Whether code of the program may run when it lets go of this existing object, or of those in this container."""
    held = values_in(value) if depth else ()
    return runs_code(getattr(value, "real", None)) or any(may_end(v, depth - 1) for v in held)


class Effects:
    """All pending writes of one frame, in order."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph  # the outermost: tensors of others cannot be stored
        self.journal: list[Write] = []
        self.moved: set[Spot] = set()
        """Attributes that were deleted and are stored again: they come last among the object's."""
        self.changes = 0  # how many writes there were, calls aside
        self.globals: dict[tuple[int, str], Value] = {}
        self._last: dict[Spot, int] = {}  # place → its last entry
        self._entries: collections.Counter[Spot] = collections.Counter()
        self._noise = -1  # the last entry that may run code
        self.advanced: dict[int, Value] = {}  # existing iterators of which the program took steps
        self._following = False  # whether such steps are another iterator's
        self.looks = Looks()
        self.namespaces = Namespaces()
        self.drops: dict[Any, tuple[str, str | None, Any]] = {}  # what was there, and may end: places and values
        self.works: list[Any] = []  # collectives that go on (`builtins/distributed.py`)
        self.readings: list[Any] = []  # calls that only read (`values/deferred.py`)
        self.waiting: list[Value] = []  # existing objects and dicts that calls change which wait
        self.let_go: list[Value] = []  # existing objects that variables held
        self.restoring: Callable[[], bool] = lambda: False  # whether a resume function is in its head
        self.since: int | None = None  # what was made before may not change now: the age of the innermost pure tracer

    def __bool__(self) -> bool:
        """Whether anything was changed; what tables count changes nothing."""
        return any(w.kind != "hit" for w in self.journal)

    def describe(self) -> str:
        """One line a write, in order, for logs."""
        return "\n".join(f"  {LINES[w.kind](w)}" for w in self.journal)

    def _write(
        self, place: Spot, kind: str, target: Any, *, quiet: bool, name: str | None = None, anew: bool = False
    ) -> Write:
        """The entry for a write of `place` that happens now.  `quiet`: it runs no code.  `anew`: behind all other
        writes, since the place was empty."""
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
        """Whether generated code can make the state after this write, although other writes followed."""
        made = values_in(write.target) if write.kind == "contents" else (write.value,)
        return all(
            v is None or v is DELETED or v.source is not None or isinstance(v, PLAIN_VALUES)
            or (isinstance(v, Tensor) and v.node.graph is self.graph)
            for v in made
        )  # fmt: skip

    def is_written(self, container: Value) -> bool:
        """Whether an existing container is changed."""
        return ("contents", id(container)) in self._last or any(v is container for v in self.waiting)

    def written(self) -> list[Value]:
        """The objects and containers that are changed."""
        return [*(w.target for w in self.journal if w.kind in ("attribute", "contents")), *self.waiting,
                *self.advanced.values()]  # fmt: skip

    def is_disturbed(self, real: Any, known: Value | None) -> bool:
        """Whether the program has changed an existing container (`known`: its value), or may have changed it as a namespace."""
        parts = [v for v in (known, getattr(known, "storage", None)) if v is not None]
        return any(map(self.is_written, parts)) or (
            isinstance(real, dict) and any(w.kind in ("attribute", "global", "class") for w in self.journal)
        )

    def advance(self, iterator: Value) -> None:
        """An existing iterator takes a step.  Where it was is no matter to writes before, but to code that these may run."""
        self.changes += 1
        self.advanced[id(iterator)] = iterator
        if self._following:
            return
        place = ("advance", id(iterator))
        at = self._last.get(place, -1)
        if at <= self._noise:
            at = self._last[place] = len(self.journal)
            self.journal.append(Write("advance", iterator, value=0))
        self.journal[at].value += 1

    @contextmanager
    def following(self) -> Iterator[None]:
        """Steps that are taken meanwhile come with those of another iterator."""
        before, self._following = self._following, True
        try:
            yield
        finally:
            self._following = before

    def mark(self) -> tuple[int, int]:
        """Now, for `calls_since`."""
        return self.changes, len(self.journal)

    def quiet_since(self, mark: tuple[int, int]) -> bool:
        """Whether nothing happened since then, but for what tables count."""
        return mark[0] == self.changes and all(w.kind == "hit" for w in self.journal[mark[1] :])

    def calls_since(self, mark: tuple[int, int]) -> bool:
        """Whether calls wait since then, and nothing else happened."""
        return mark[0] == self.changes and mark[1] < len(self.journal)

    def forget_since(self, mark: tuple[int, int]) -> None:
        """The calls since then wait no more."""
        del self.journal[mark[1] :]
        self._noise = min(self._noise, len(self.journal) - 1)

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

    def defer(
        self, fn: Value, args: list[Value], changes: tuple[dict[str, Any], tuple[str, ...]] | None = None
    ) -> None:
        """A call that waits until the graph has run; what globals of a namespace are then is not known (`changes`)."""
        if changes is not None:
            self.globals |= {(id(changes[0]), name): UNKNOWN for name in changes[1]}
        self.allow(None, fn.describe())
        self.journal.append(Write("call", fn, value=args))
        self._noise = len(self.journal) - 1

    def keep(self, keeping: Any, names: tuple[str, ...], result: Value | None, args: list[Value]) -> None:
        """A call of a cached function, which its table (a `caches.Keeping`) has to know; what goes out for it ends quietly."""
        self.allow(None, "the table of a cached function")
        self.changes += 1
        self.journal.append(Write("keep", keeping, names, [result, *args]))

    def wait(self, changed: Any, names: tuple[str, ...], unknown: Value) -> None:
        """A call that waits changes attributes of an existing object, or entries of a dict, by these names."""
        self.waiting.append(changed)
        if isinstance(changed, Dict):
            at = self._last.get(("contents", id(changed)))
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
        """A call with constants that a table knows (`cached.Cached`), which counts it; what may run twice counts none."""
        if self.since is None:
            self.journal.append(Write("hit", cached))

    @property
    def tables(self) -> dict[Any, int]:
        """How often each table is put into or asked."""
        return collections.Counter(w.target for w in self.journal if w.kind == "keep")

    def warn(self, said: Warned) -> None:
        """A warning of the program's that waits until the graph has run."""
        self.allow(None, f"a {said.category.__name__}")
        self.namespaces.reached(said.namespace, None)
        self.namespaces.write(said.namespace)  # the registry, which nobody may see who looks at it as a dict
        self.defer(UNKNOWN, [], (said.namespace, ("__warningregistry__",)))
        self.journal[-1] = Write("warning", said)

    @property
    def warnings(self) -> list[Warned]:
        return [w.target for w in self.journal if w.kind == "warning"]

    def draw(self, fn: Value, args: list[Value]) -> None:
        """A call that comes before the graph, for a number or a generator (`builtins/drawn.py`, `builtins/generators.py`)."""
        self.allow(None, fn.describe())
        self.changes += 1
        self.journal.append(Write("draw", fn, value=args))

    def read(self, reading: Any) -> None:
        """A call that only reads: before the graph, or behind it."""
        self.allow(None, reading.describe())
        self.readings.append(reading)

    def may_raise(self) -> bool:
        """Whether generated code computes what may raise an error of the program's, whoever needs it."""
        return any(not hasattr(r, "told") for r in self.readings)

    @property
    def draws(self) -> list[Write]:
        return [w for w in self.journal if w.kind == "draw"]

    def passed(self, exception: Value, place: Place) -> None:
        """An exception passes through a frame. A new one gets its traceback when it is built."""
        exception.passed = [*exception.passed, place]
        if exception.source is not None:
            self._write(("traceback", id(exception)), "traceback", exception, quiet=True)

    def mutate(self, container: Value, drops: Iterable[Value] | None = None) -> None:
        """A container is about to change; only existing ones need a replay.  `drops`: what may go out, by default anything."""
        self.allow(container, container.describe())
        self.looks.change(("contents", id(container)))
        if isinstance(container, Dict):
            if container.real is not None and is_globals(container.real):
                raise Break("mutation-unsupported", "the globals of a module, as a dict")
            self.namespaces.write(container.real)
            container.changed = True
        gone = [*values_in(container)] if drops is None else [*drops]
        self.drop(gone)
        if container.source is not None:
            loud = [v for v in gone if not is_harmless(v)]
            self._ask(container, loud, whole=drops is None)
            place = ("contents", id(container))
            first = place not in self._last
            made = self._write(place, "contents", container, quiet=not loud)
            made.keeps = (first or made.keeps) and all(isinstance(v, PLAIN_VALUES) for v in gone)

    def store_unasked(self, container: Dict, key: Value) -> None:
        """A store into an existing dict, under what may be any of its keys: what it drops is asked of each call."""
        self.mutate(container, [UNKNOWN])
        self.drops["key", id(container), id(key)] = ("key", None, (container, key))

    def count(self, container: Dict, key: Value, *, zero: bool) -> None:
        """Of an existing dict the int at a key that may be any changes: each call asks for one; `zero`: or for nothing there."""
        self.mutate(container, [Const(0)])
        self.drops["tally", id(container), id(key)] = ("tally", None, (container, key, zero))

    def _ask(self, container: Value, loud: list[Value], *, whole: bool) -> None:
        """Generated code asks what goes out, by where it was when the frame began: what the frame made has no source, but in
        a set, of which all is asked.  A container is asked as a whole only where all of it may go."""
        if loud and (whole or (isinstance(container, Set) and any(v.source is None for v in loud))):
            self.drops["contents", id(container)] = ("contents", None, container)
            return
        for value in loud:
            if value.source is not None:
                self.drops["value", value.source] = ("value", None, value)

    def unbind(self, value: Value | None) -> None:
        """A variable holds this no more."""
        if value is not None and value.source is not None and not isinstance(value, PLAIN_VALUES):
            self.let_go.append(value)

    def ending(self, *, tensor: bool, gradient: bool = True) -> list[Write]:
        """The writes that may have let go of a tensor, or of another object; a gradient among them?"""
        return [w for w in self.journal if (tensor or w.ends) and not w.keeps and (gradient or w.kind != "grad")]

    def ends(self, *, tensor: bool) -> bool:
        """Whether there is one."""
        return bool(self.ending(tensor=tensor))

    def may_end(self, *, tensor: bool) -> bool:
        """Whether a tensor, or another object, may have ended with what the frame let go of."""
        gone = [getattr(v, "seen", None) or v for v in self.let_go]
        return self.ends(tensor=tensor) or any(tensor or not isinstance(v, Tensor) for v in gone)

    def drop(self, values: list[Value] | dict[str, Any], name: str = "") -> None:
        """The program lets go of values, or of the existing object that `values` has by a name."""
        found = any(map(may_end, values)) if isinstance(values, list) else runs_code(values.get(name))
        if found and not self.restoring():
            raise Break("finalizer", "a write drops it", gives_end=True)

    def set_attr(self, obj: Any, name: str, value: Value) -> None:
        self.allow(obj, f"{obj.describe()}.{name}")
        if obj.exists:
            memory = instance_dict(obj.real)
            self.namespaces.reached(memory, obj)
            self.namespaces.write(memory)
        place = ("attribute", id(obj), name)
        self.looks.change(place, ("attributes", id(obj)))
        old = obj.overlay.get(name)
        anew = old is DELETED and value is not DELETED
        if anew:  # it comes last among the attributes
            del obj.overlay[name]
            self.moved.add(place)
        obj.overlay[name] = value
        if obj.exists:
            quiet = (
                is_harmless(old) if old is not None else self.looks.saw_constant(place) and not is_held(obj.cls, name)
            )
            held = instance_dict(obj.real) or {}
            if name not in held:
                held = dict.fromkeys([name], *in_slot(obj.real, name))
            self.drop([old] if old is not None else held, name)
            self._write(place, "attribute", obj, quiet=quiet, name=name, anew=anew).value = value

    def set_class(self, cls: Any, name: str, value: Value, step: int | None) -> None:
        """`cls.name = value`, of a class, at this step; look-ups find it from now on."""
        self.allow(None, f"{cls.describe()}.{name}")
        place = ("class", id(cls.cls), name)
        self.looks.change(place)
        WRITTEN[threading.get_ident(), id(cls.cls), name] = StandIn(value)
        made = self._write(place, "class", cls, quiet=True, name=name)
        made.value, made.before = value, step

    def set_grad(self, tensor: Tensor, value: Value) -> None:
        """`tensor.grad = value`; what was there ends quietly."""
        self.allow(tensor, f"{tensor.describe()}.grad")
        place = ("grad", id(tensor), None)
        self.looks.change(place)
        tensor.overlay["grad"] = value
        if tensor.exists:
            self._write(place, "grad", tensor, quiet=True).value = value

    def set_flag(self, tensor: Tensor, value: bool) -> None:
        """`tensor.requires_grad_(value)` of an existing tensor."""
        self.allow(tensor, f"{tensor.describe()}.requires_grad")
        self.looks.writes([tensor.fake])
        self._write(("flag", id(tensor), None), "flag", tensor, quiet=True).value = Const(value)

    def set_global(self, namespace: dict[str, Any], name: str, value: Value) -> None:
        self.allow(None, f"global {name}")
        if namespace is vars(builtins):  # what all names may mean, of functions that run already, too
            raise Break("mutation-unsupported", f"builtins.{name}")
        self.namespaces.reached(namespace, None)
        self.namespaces.write(namespace)
        place = ("global", id(namespace), name)
        self.looks.change(place)
        old = self.globals.get((id(namespace), name))
        self.globals[id(namespace), name] = value
        quiet = is_harmless(old) if old is not None else self.looks.saw_constant(place)
        self.drop([old] if old is not None else namespace, name)
        self._write(place, "global", namespace, quiet=quiet, name=name).value = value

    def get_global(self, namespace: dict[str, Any], name: str) -> Value | None:
        found = self.globals.get((id(namespace), name))
        if found is UNKNOWN:
            raise Break("global-state", f"a look at {name}, which a call has changed that waits for the graph")
        return found

    def set_cell(self, cell: Cell, value: Value | None) -> None:
        self.allow(cell, cell.describe())
        self.looks.change(("cell", id(cell)))
        quiet = cell.contents is None or is_harmless(cell.contents)
        self.drop([] if cell.contents is None else [cell.contents])
        self.unbind(cell.contents)
        cell.contents = value
        cell.changed = True
        if cell.source is not None:
            self._write(("cell", id(cell)), "cell", cell, quiet=quiet).value = value


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
    "keep": lambda w: f"what {w.target.fn!r} keeps",
    "hit": lambda w: f"a hit of {w.target.call[0]!r}",
    "draw": lambda w: f"before the graph: {LINES['call'](w).strip()}",
}
"""How a write is shown."""
