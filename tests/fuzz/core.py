"""Core of the guard fuzzer: scenes, knobs, and the walk that turns knobs and compares with eager.

In: a `Scene`: a function, its arguments, and `Knob`s. Each knob puts an object that the function reads (or ignores)
into one of several positions, in various ways that bypass the usual stores. The walk turns one knob after another.
After each turn the function runs eagerly and compiled on the same objects; results, exceptions and effects must
agree.
Out: a `Tally`: mutations, compiles, misses by guard kind; a `Stale` error names the walk that reproduces it.

Three more rules are checked at each turn. A state that occurred before compiles nothing (knobs that do not matter
are no part of the state). The native check of a recorded guard list agrees with `ir.guards.first_failure`. An entry
fits the call for which it was compiled.

Example: `@family("equals")` over a function `(rng) -> Scene` registers a family of programs for that guard kind.
"""

from __future__ import annotations

import random
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from capture.harness import Comparer, compile_recorded

import pycompiler
from pycompiler import _native
from pycompiler.ir.guards import GUARD_KINDS, Guard, first_failure
from pycompiler.ir.source import Scope

ERRORS = (AttributeError, NameError, TypeError, KeyError, IndexError, ValueError, RuntimeError, ZeroDivisionError)
LIMIT = 100  # entries of a scene before its compiled form starts afresh
STEPS = 2000  # random turns in a scene


@dataclass
class Knob:
    """`turn(i)` sets position `i` of `n`; position 0 is the initial state of the scene.

    `matters`: the program may behave differently in another position. `fresh`: a turn creates new objects, so that
    guards may fail in a state that occurred before.
    """

    turn: Callable[[int], Any]
    n: int = 2
    matters: bool = True
    fresh: bool = False
    cell: tuple[Any, ...] | None = (
        None  # knobs of one cell set the same state: when one leaves position 0, the others return to 0
    )
    at: int = 0


@dataclass
class Scene:
    """A program with its knobs. `args()` gives the arguments; `restore()` undoes the changes of a run.

    `effects()` gives the changes of a run, for the comparison. `guards`: a guard list that is checked natively and
    by its oracle; `fn` is then not compiled.
    """

    fn: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    knobs: dict[str, Knob]
    effects: Callable[[], Any] = lambda: None
    restore: Callable[[], Any] = lambda: None
    guards: list[Guard] | None = None
    backend: str = "eager"
    dynamic: bool | None = None


Maker = Callable[[random.Random], Scene]


@dataclass(frozen=True)
class Family:
    name: str
    kind: str
    make: Maker


FAMILIES: dict[str, Family] = {}


def family(kind: str) -> Callable[[Maker], Maker]:
    """Register a family of programs, named after its function, that exercises guards of `kind`."""
    if kind not in GUARD_KINDS:
        raise ValueError(f"unknown guard kind {kind!r}")

    def register(make: Maker) -> Maker:
        name = make.__name__.strip("_")
        if name in FAMILIES:
            raise ValueError(f"two families {name!r}")
        FAMILIES[name] = Family(name, kind, make)
        return make

    return register


@dataclass
class Tally:
    """The counters of walks."""

    mutations: int = 0
    compiles: int = 0
    hits: int = 0
    seen: set[str] = field(default_factory=set)  # kinds of the guards in entries
    failed: Counter[str] = field(default_factory=Counter)  # kinds of the guards that rejected a state
    inert: set[str] = field(default_factory=set)  # knobs with `matters` that never changed the outcome

    def add(self, other: Tally) -> None:
        self.mutations += other.mutations
        self.compiles += other.compiles
        self.hits += other.hits
        self.seen |= other.seen
        self.failed += other.failed
        self.inert |= other.inert


class Stale(AssertionError):
    """A compiled program differs from eager, compiles needlessly, or an oracle disagrees."""

    needless = False


class Walk:
    """A scene with the compiled form of its program."""

    def __init__(self, chosen: Family, seed: int) -> None:
        self.family = chosen
        self.seed = seed
        self.tally = Tally()
        self.history: list[tuple[str, int]] = []
        self.scene = chosen.make(random.Random(seed))
        self.compiles: Counter[tuple[tuple[str, int], ...]] = Counter()  # per state
        self.known: set[tuple[tuple[str, int], ...]] = set()
        self.broken = 0
        self.trees: list[tuple[list[Guard], Any]] = []
        if self.scene.guards is None:
            self.start()
        else:
            self.trees = [(self.scene.guards, _native.GuardTree(self.scene.guards, ("x",)))]
            self.tally.seen = {g.kind for g in self.scene.guards}

    def start(self) -> None:
        """Replace the compiled form by one without entries."""
        self.compiled = compile_recorded(self.scene.fn, self.scene.backend, dynamic=self.scene.dynamic)
        self.compiled.family.recompile_limit = 8 * LIMIT
        for member in self.compiled.family.members:
            self.compiled.family.set_limits(member)
        self.known.clear()
        self.compiles.clear()
        self.broken = 0
        self.trees.clear()

    # one step -------------------------------------------------------------------------------------------------
    def state(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, k.at) for name, k in self.scene.knobs.items() if k.matters)

    def turn(self, name: str, position: int) -> None:
        knob = self.scene.knobs[name]
        for other in self.scene.knobs.values():
            if other is not knob and other.at and other.cell is not None and other.cell == knob.cell:
                other.turn(0)
                other.at = 0
        knob.turn(position)
        knob.at = position
        self.scene.restore()
        self.history.append((name, position))
        self.tally.mutations += 1

    def outcome(self, fn: Callable[..., Any]) -> Any:
        torch.default_generator.manual_seed(0)
        try:
            result = fn(*self.scene.args())
        except ERRORS as e:
            result = (type(e), str(e))
        found = (result, self.scene.effects())
        self.scene.restore()
        return found

    def counters(self) -> dict[str, int]:
        return pycompiler.counters(self.compiled.fn)

    def check(self, rng: random.Random, *, may_compile: bool = False) -> None:
        """Check that the program agrees with eager in this state; `may_compile` allows a compile in a known state."""
        if self.scene.guards is None:
            before = self.counters()
            if before["compiles"] >= LIMIT:
                self.start()
                before = self.counters()
            expected = self.outcome(self.scene.fn)
            verdicts = self.verdicts(rng)
            got = self.outcome(self.compiled.fn)
            after = self.counters()
            self.compare(expected, got)
            compiles = after["compiles"] - before["compiles"]
            self.tally.compiles += compiles
            self.tally.hits += after["hits"] - before["hits"]
            self.compiles[self.state()] += compiles
            # Rule: an entry with a graph break may serve further states, and each state may compile its resume
            # functions.
            needless = compiles and self.state() in self.known and self.compiles[self.state()] > 4 * self.broken
            if needless and not may_compile:
                raise self.fault(
                    f"compiled {compiles} times in a state met before; native verdicts {self.shown(verdicts)}",
                    needless=True,
                )
            for what in ("fresh_failures", "limit_hits"):
                if after.get(what, 0) != before.get(what, 0):
                    raise self.fault(f"{what} went up")
            self.known.add(self.state())
            self.remember()
        else:
            self.verdicts(rng)

    def compare(self, expected: Any, got: Any) -> None:
        try:
            Comparer(exact=self.scene.backend == "eager").same(expected, got, "outcome")
        except AssertionError as e:
            raise self.fault(str(e)) from e

    # guard lists ------------------------------------------------------------------------------------------------
    def remember(self) -> None:
        """Builds a guard tree for each new guard list of the program's own frame."""
        names = names_of(self.scene.fn)
        for record in self.compiled.records:
            self.tally.seen |= {g.kind for g in record.guards}
            self.broken += record.broke is not None
            if record.code is getattr(self.scene.fn, "__code__", None) and len(self.trees) < 8:
                self.trees.append((record.guards, _native.GuardTree(record.guards, names)))
        self.compiled.records.clear()

    def verdicts(self, rng: random.Random) -> list[int | None]:
        """The verdict of the native check for each guard list; at times one verdict is compared with the oracle."""
        if not self.trees:
            return []
        scope = self.scope()
        failures: list[int | None] = []
        for guards, tree in self.trees:
            failed = tree.check(scope.locals, scope.globals)
            if failed is not None and failed < len(guards):
                self.tally.failed[guards[failed].kind] += 1
            failures.append(failed)
        if rng.random() < 0.5:
            return failures
        i = rng.randrange(len(self.trees))
        guards = self.trees[i][0]
        want = first_failure(guards, scope)
        if (failures[i] is None) != (want is None):
            index = want if want is not None else failures[i]
            raise self.fault(f"native verdict {failures[i]}, oracle {want}: {guards[index]}")
        return failures

    def shown(self, verdicts: list[int | None]) -> list[str]:
        return ["fits" if f is None else str(g[f]) for f, (g, _) in zip(verdicts, self.trees, strict=False)]

    def scope(self) -> Scope:
        fn, args = self.scene.fn, self.scene.args()
        if self.scene.guards is not None:
            return Scope({"x": args[0]}, fn.__globals__)
        names = names_of(fn)
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        values = {**dict(zip(names, args, strict=False)), **cells}
        defaults = fn.__defaults__ or ()
        count = fn.__code__.co_argcount
        for name, value in zip(names[count - len(defaults) : count], defaults, strict=True):
            values.setdefault(name, value)
        return Scope(
            {**values, **{k: v for k, v in (fn.__kwdefaults__ or {}).items() if k not in values}}, fn.__globals__
        )

    # walks ----------------------------------------------------------------------------------------------------
    def prove_knobs(self, rng: random.Random) -> None:
        """Turn each knob alone, there and back: the results agree with eager, and each knob that matters changes the
        outcome."""
        self.check(rng)
        base = self.outcome(self.scene.fn) if self.scene.guards is None else None
        for name, knob in self.scene.knobs.items():
            inert = True
            for position in [*range(1, knob.n), 0]:
                self.turn(name, position)
                if position and self.scene.guards is None:
                    inert = inert and self.alike(base, self.outcome(self.scene.fn))
                self.check(rng, may_compile=knob.fresh)
                self.check(rng)
            if inert and knob.matters and self.scene.guards is None:
                self.tally.inert.add(f"{self.family.name}: {name}")

    def alike(self, a: Any, b: Any) -> bool:
        try:
            Comparer(exact=True).same(a, b, "outcome")
        except AssertionError:
            return False
        return True

    def run(self, rng: random.Random, steps: int) -> None:
        """Random turns: usually one knob is away from position 0, at times several."""
        knobs = self.scene.knobs
        names = list(knobs)
        last = self.tally.mutations + steps
        while self.tally.mutations < last:
            away = [n for n in names if knobs[n].at and knobs[n].matters]
            if len(away) >= 2 or (away and rng.random() < 0.4):
                name = rng.choice(away)
                position = 0
            else:
                name = rng.choice(names)
                position = rng.randrange(knobs[name].n)
            self.turn(name, position)
            fresh = any(k.fresh for k in knobs.values())
            if rng.random() < 0.9:  # at times several turns pass without a call
                self.check(rng, may_compile=fresh)
            if rng.random() < 0.1:
                self.check(rng, may_compile=fresh)
        self.finish()

    def replay(self, history: list[tuple[str, int]]) -> None:
        """Repeat the same turns, with a check after each; the errors of the checks propagate."""
        rng = random.Random(0)
        self.check(rng)
        for name, position in history:
            self.turn(name, position)
            self.check(rng, may_compile=any(k.fresh for k in self.scene.knobs.values()))

    def finish(self) -> None:
        """Return all knobs to position 0; this restores global state."""
        for knob in self.scene.knobs.values():
            if knob.at:
                knob.turn(0)
                knob.at = 0

    def fault(self, text: str, *, needless: bool = False) -> Stale:
        turns = self.history[-12:]
        made = Stale(f"family {self.family.name}, seed {self.seed}, after turns ...{turns}: {text}")
        made.needless = needless
        return made


def names_of(fn: Any) -> tuple[str, ...]:
    """The engine's slot names: parameters in `co_varnames` order, then free variables."""
    code = fn.__code__
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return (*code.co_varnames[:n], *code.co_freevars)


def walk(chosen: Family, seed: int, mutations: int) -> Tally:
    """Makes at least `mutations` turns over scenes from `seed` on; every knob of every scene is proved first."""
    total = Tally()
    while total.mutations < mutations:
        rng = random.Random(seed)
        w = Walk(chosen, seed)
        try:
            w.prove_knobs(rng)
            w.run(rng, min(STEPS, max(1, mutations - total.mutations - w.tally.mutations)))
        except Stale as e:
            w.finish()
            e.add_note(f"reduced: {reduced(chosen, seed, w.history)}")
            raise
        finally:
            w.finish()
        total.add(w.tally)
        seed += 1
    return total


def reduced(chosen: Family, seed: int, history: list[tuple[str, int]]) -> str:
    """The shortest failing list of turns found, as a call that reproduces it."""

    def fails(turns: list[tuple[str, int]]) -> bool:
        w = Walk(chosen, seed)
        try:
            w.replay(turns)
        except Stale:
            return True
        finally:
            w.finish()
        return False

    if not fails(history):
        return f"seed {seed} (the whole walk is needed)"
    turns, size = list(history), max(1, len(history) // 2)
    while size:
        i = 0
        while i < len(turns):
            shorter = turns[:i] + turns[i + size :]
            if fails(shorter):
                turns = shorter
            else:
                i += size
        size //= 2
    return f"Walk(FAMILIES[{chosen.name!r}], {seed}).replay({turns!r})"


# knobs --------------------------------------------------------------------------------------------------------
GONE = object()


def places(turn: Callable[[Any], Any], *values: Any, matters: bool = True, cell: Any = None) -> Knob:
    """A knob that calls `turn` with one of `values`."""
    return Knob(lambda i: turn(values[i]), len(values), matters, cell=cell)


def attr(owner: Any, name: str, *values: Any, matters: bool = True) -> Knob:
    """setattr, or delattr for GONE."""

    def turn(v: Any) -> None:
        _drop(delattr, owner, name) if v is GONE else setattr(owner, name, v)

    return places(turn, *values, matters=matters, cell=("attr", id(owner), name))


def raw_attr(owner: Any, name: str, *values: Any, matters: bool = True) -> Knob:
    """A write to the instance dict that bypasses the class's hooks."""

    def turn(v: Any) -> None:
        own = object.__getattribute__(owner, "__dict__")
        own.pop(name, None) if v is GONE else own.__setitem__(name, v)

    return places(turn, *values, matters=matters, cell=("attr", id(owner), name))


def hidden_attr(owner: Any, name: str, *values: Any) -> Knob:
    """object.__setattr__."""
    return places(lambda v: object.__setattr__(owner, name, v), *values, cell=("attr", id(owner), name))


def item(container: Any, key: Any, *values: Any, matters: bool = True) -> Knob:
    """container[key] = value, or del for GONE."""

    def turn(v: Any) -> None:
        container.pop(key, None) if v is GONE else container.__setitem__(key, v)

    return places(turn, *values, matters=matters, cell=("item", id(container)))


def contents(container: Any, *values: Any) -> Knob:
    """Replace all contents of a list, set or dict in place."""

    def turn(value: Any) -> None:
        container.clear()
        (container.extend if hasattr(container, "extend") else container.update)(value)

    return places(turn, *values, cell=("item", id(container)))


def calls(*turns: Callable[[], Any], matters: bool = True, fresh: bool = False, cell: Any = None) -> Knob:
    """A knob whose position i calls `turns[i]`."""
    return Knob(lambda i: turns[i](), len(turns), matters, fresh, cell)


def count(owner: Any, name: str = "count") -> Knob:
    """An unread attribute that changes at each turn."""
    return Knob(lambda i: setattr(owner, name, getattr(owner, name, 0) + 1), 2, matters=False)


def _drop(delete: Callable[[Any, str], Any], owner: Any, name: str) -> None:
    try:
        delete(owner, name)
    except AttributeError:
        pass


def with_globals(fn: Callable[..., Any], namespace: dict[str, Any]) -> Any:
    """`fn` with globals of its own."""
    return types.FunctionType(fn.__code__, namespace, fn.__name__, fn.__defaults__, fn.__closure__)


def X() -> torch.Tensor:
    return torch.arange(4.0)


def chunks(total: int, size: int) -> Iterator[int]:
    while total > 0:
        yield min(size, total)
        total -= size
