"""Differential test of a compiled function against eager Python.

In: a function, its arguments, and the expected shape of its capture.  Out: an assertion error that names the difference.
Example: `check(lambda x: x.sin() + 1, torch.ones(3))`, or in a corpus file, collected by `cases()`:

    @case(torch.ones(3))
    def sine(x):
        return x.sin() + 1

Both runs get deep copies of the same *world*: arguments, data in closure cells, and the globals that the function
stores to.  Afterwards these must agree: the result and the world (types, values, object identities, shared storage),
the exception and the user's line that raised it, printed text, random state, grad mode.  The compiled function runs
twice; the second run must compile nothing.
"""

from __future__ import annotations

import contextlib
import copy
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import Comparer, Differs, Outcome, compare_outcomes, contents, observe

ANY = "any"  # for `breaks`: the number and kinds of graph breaks are not checked


@dataclass(frozen=True)
class Case:
    """One function under test. `make` builds arguments that cannot be copied; the graph breaks `breaks` must occur."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    breaks: Any = ()
    graphs: int | None = None
    backend: str = "eager"
    recompiles: int = 0
    make: Callable[[], tuple[Any, ...]] | None = None
    skipped: bool = False
    where: bool = True


_CASES: dict[str, list[Case]] = {}


def case(*args: Any, breaks: Any = (), **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of a corpus file with its arguments; `breaks` is one kind, several kinds, or ANY."""
    kinds = (breaks,) if isinstance(breaks, str) and breaks != ANY else breaks

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        _CASES.setdefault(fn.__module__, []).append(Case(fn, args, breaks=kinds, **options))
        return fn

    return register


def cases(*modules: types.ModuleType) -> list[Any]:
    """The registered cases of corpus modules, as pytest parameters."""
    found = [(m, c) for m in modules for c in _CASES.get(m.__name__, [])]
    return [pytest.param(c, id=f"{m.__name__.rpartition('.')[2]}-{c.fn.__name__}") for m, c in found]


def check(fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Compare `fn(*args)` eager and compiled."""
    breaks = options.pop("breaks", ())
    kinds = (breaks,) if isinstance(breaks, str) and breaks != ANY else breaks
    check_case(Case(fn, args, breaks=kinds, **options))


class World:
    """The mutable surroundings of a function: arguments, data in cells, globals it stores to."""

    def __init__(self, case: Case) -> None:
        self.fn = case.fn
        self.make = case.make
        self.start = (case.args, case.kwargs, self._cells(), self._globals())

    def _function(self) -> types.FunctionType | None:
        return self.fn if isinstance(self.fn, types.FunctionType) else None

    def _cells(self) -> dict[str, Any]:
        fn = self._function()
        pairs = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True) if fn else ()
        return {n: c.cell_contents for n, c in pairs if _is_data(contents(c))}

    def _globals(self) -> dict[str, Any]:
        fn = self._function()
        names = _stored_globals(fn.__code__) if fn else set()
        return {n: fn.__globals__[n] for n in names if fn is not None and n in fn.__globals__}

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Restore cells and globals, and return new arguments."""
        args, kwargs, cells, global_values = copy.deepcopy(self.start)
        if self.make is not None:
            args = self.make()
        fn = self._function()
        if fn is not None:
            for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
                if name in cells:
                    cell.cell_contents = cells[name]
            for name in _stored_globals(fn.__code__):
                fn.__globals__.pop(name, None)
            fn.__globals__.update(global_values)
        return args, kwargs

    def seen(self) -> Any:
        return self._cells(), self._globals()


def _is_data(value: Any) -> bool:
    return isinstance(value, (int, float, str, list, dict, set, tuple, torch.Tensor))


def _stored_globals(code: types.CodeType) -> set[str]:
    import dis

    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _stored_globals(const)
    return found


def run(fn: Callable[..., Any], world: World) -> Outcome:
    """Call `fn` on a fresh copy of the world and record what happens."""
    args, kwargs = world.fresh()
    outcome = observe(lambda *given: fn(*given, **kwargs), args)
    outcome.world = (args, kwargs, *world.seen())
    return outcome


def compare(eager: Outcome, compiled: Outcome, *, exact: bool = True, where: bool = True) -> None:
    """Raise `Differs` unless the two outcomes agree.  `where`: exceptions come from the same line of the user."""
    compare_outcomes(eager, compiled, Comparer(exact, tolerance=None if exact else 1e-4))
    if where and eager.error is not None and compiled.error is not None:
        ours, theirs = user_lines(eager.error), user_lines(compiled.error)
        if ours[-1:] != theirs[-1:]:
            raise Differs(f"the exception comes from {ours} eager, from {theirs} compiled")


def user_lines(error: BaseException) -> list[tuple[str, int | None]]:
    """(function, line) of the traceback's frames in test files, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "tests/capture" in f.filename and not f.filename.endswith("harness.py")]
    return [(f.name, f.lineno) for f in ours]


# the check ----------------------------------------------------------------------------------------------------
@dataclass
class Compiled:
    """A compiled function with the records of its captures."""

    fn: Any
    family: Any
    records: list[Any]

    def counters(self, name: str) -> int:
        return sum(m.counters()[name] for m in list(self.family.members))

    @property
    def skipped(self) -> int:
        """The number of frames that stayed eager: cache misses without an entry."""
        return self.counters("misses") - self.counters("compiles")

    @property
    def breaks(self) -> list[str]:
        return [r.broke.kind for r in self.records if r.broke is not None]

    @property
    def graphs(self) -> int:
        return sum(r.graph is not None for r in self.records)


def compile_recorded(fn: Callable[..., Any], backend: str = "eager", **options: Any) -> Compiled:
    compiled = pycompiler.compile(fn, backend=backend, **options)
    family = compiled._pycompiler_family
    records: list[Any] = []
    family.listener = records.append
    return Compiled(compiled, family, records)


def check_case(c: Case) -> None:
    world = World(c)
    eager = run(c.fn, world)
    compiled = compile_recorded(c.fn, c.backend)
    exact = c.backend == "eager"
    first = run(compiled.fn, world)
    compare(eager, first, exact=exact, where=c.where)
    captures, hits = len(compiled.records), compiled.counters("hits")
    second = run(compiled.fn, world)
    compare(eager, second, exact=exact, where=c.where)
    again = len(compiled.records) - captures
    assert again <= c.recompiles, f"the second call compiled {again} frames, expected {c.recompiles}"
    if captures and not again and not compiled.skipped:
        assert compiled.counters("hits") > hits, "the second call hit nothing that the first one compiled"
    if c.breaks == ANY:
        return
    assert bool(compiled.skipped) == c.skipped, f"{compiled.skipped} frames ran eagerly, expected {c.skipped}"
    assert set(compiled.breaks) == set(c.breaks), (
        f"graph breaks {[r.broke.reason for r in compiled.records if r.broke]}, expected {c.breaks}"
    )
    if c.graphs is not None:
        assert compiled.graphs == c.graphs, f"{compiled.graphs} graphs, expected {c.graphs}"


@contextlib.contextmanager
def no_recompile(compiled: Compiled) -> Iterator[None]:
    """Assert that the body compiles nothing."""
    before = len(compiled.records)
    yield
    assert len(compiled.records) == before, "compiled again"
