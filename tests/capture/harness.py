"""Differential test of a compiled function against eager Python.

In: a function, arguments, and what its capture should look like.  Out: an assertion error that says what differs.
Example: `check(lambda x: x.sin() + 1, torch.ones(3))`, or in a corpus file, collected by `cases()`:

    @case(torch.ones(3))
    def sine(x):
        return x.sin() + 1

Both runs get deep copies of the same *world*: arguments, data in closure cells, and the globals that the function
stores to.  Afterwards everything observable must agree: the result and the world (types, values, which objects are
the same object, which tensors share storage), the exception and the user's line that raised it, printed text, random
state, grad mode.  The compiled function runs twice; the second run must compile nothing.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import io
import random
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import pycompiler

ANY = "any"  # as `breaks`: the number and kinds of breaks are not asserted


@dataclass(frozen=True)
class Case:
    """One function under test.  `make` gives the arguments where they cannot be copied; `breaks` must occur."""

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
    """Register a function of a corpus file with its arguments; `breaks` is a kind, several, or ANY."""
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


# what a run leaves behind -------------------------------------------------------------------------------------
@dataclass
class Outcome:
    """All that can be seen of one run."""

    result: Any = None
    error: BaseException | None = None
    world: Any = None
    printed: str = ""
    rng: Any = None
    grad_mode: bool = True

    def __str__(self) -> str:
        return f"raised {self.error!r}" if self.error is not None else f"returned {self.result!r}"


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
        return {n: c.cell_contents for n, c in pairs if _is_data(_contents(c))}

    def _globals(self) -> dict[str, Any]:
        fn = self._function()
        names = _stored_globals(fn.__code__) if fn else set()
        return {n: fn.__globals__[n] for n in names if fn is not None and n in fn.__globals__}

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put cells and globals back, and give new arguments."""
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


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return check  # an empty cell: not data


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
    outcome = Outcome()
    out = io.StringIO()
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome.result = fn(*args, **kwargs)
            if isinstance(outcome.result, types.GeneratorType):
                outcome.result = list(outcome.result)
        except (Exception, BaseExceptionGroup, GeneratorExit) as e:
            outcome.error = e
        outcome.grad_mode = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
    outcome.world = (args, kwargs, *world.seen())
    outcome.printed = out.getvalue()
    outcome.rng = (torch.random.get_rng_state(), random.getstate())
    return outcome


# comparison ---------------------------------------------------------------------------------------------------
class Differs(AssertionError):
    """Two outcomes differ; the text says where."""


class Comparer:
    """Structural equality that also demands the same sharing: equal objects are the same object in both or neither."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.pairs: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.storages_back: dict[int, int] = {}
        self.keep: list[Any] = []

    def same(self, a: Any, b: Any, where: str) -> None:
        if type(a) is not type(b):
            raise Differs(f"{where}: type {type(a).__name__} eager, {type(b).__name__} compiled ({a!r} / {b!r})")
        if isinstance(a, types.BuiltinFunctionType) and not isinstance(
            a.__self__, (types.ModuleType, type, type(None))
        ):
            if a.__name__ != b.__name__:
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            self.same(a.__self__, b.__self__, f"{where}.__self__")
            return
        if isinstance(a, (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum, torch.dtype)):
            if a is not b:
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            return
        if isinstance(a, (int, float, complex, str, bytes, type(None), torch.device, range, slice)):
            if repr(a) != repr(b):
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            return
        if self.pair(a, b, where):
            return
        for kinds, compare in COMPARERS:
            if isinstance(a, kinds):
                compare(self, a, b, where)
        self.attributes(a, b, where)

    def pair(self, a: Any, b: Any, where: str) -> bool:
        """Whether this pair was met before; sharing must be one to one (empty tuples are shared by CPython)."""
        self.keep += [a, b]
        if isinstance(a, (tuple, frozenset, types.CodeType)):
            return False
        known, back = self.pairs.get(id(a)), self.back.get(id(b))
        if known is None and back is None:
            self.pairs[id(a)], self.back[id(b)] = id(b), id(a)
            return False
        if known != id(b) or back != id(a):
            raise Differs(f"{where}: sharing differs: the same object in one run, different objects in the other")
        return True

    def attributes(self, a: Any, b: Any, where: str) -> None:
        names = [s for c in type(a).__mro__ for s in _slots(c)]
        for name in names:
            if hasattr(a, name) != hasattr(b, name):
                raise Differs(f"{where}.{name}: only in one of the runs")
            if hasattr(a, name):
                self.same(getattr(a, name), getattr(b, name), f"{where}.{name}")
        ours, theirs = getattr(a, "__dict__", None), getattr(b, "__dict__", None)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            skip = ("__wrapped__", "_forward_hooks_with_kwargs") if isinstance(a, types.FunctionType) else ()
            if list(ours) != list(theirs) and set(ours) != set(theirs):
                raise Differs(f"{where}: attributes {sorted(ours)} eager, {sorted(theirs)} compiled")
            for name in ours:
                if name not in skip:
                    self.same(ours[name], theirs[name], f"{where}.{name}")

    def tensors(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        for what in ("dtype", "shape", "device", "requires_grad", "is_leaf", "layout"):
            if getattr(a, what) != getattr(b, what):
                raise Differs(f"{where}.{what}: {getattr(a, what)} eager, {getattr(b, what)} compiled")
        if a.layout is torch.strided and a.stride() != b.stride() and a.numel() > 1:
            raise Differs(f"{where}.stride(): {a.stride()} eager, {b.stride()} compiled")
        x, y = (t.detach().to_dense() if t.layout is not torch.strided else t.detach() for t in (a, b))
        close = torch.equal(x, y) if self.exact else torch.allclose(x, y, equal_nan=True, rtol=1e-4, atol=1e-5)
        if not close and not (x.is_floating_point() and torch.allclose(x, y, equal_nan=True, rtol=0, atol=0)):
            raise Differs(f"{where}: {a} eager, {b} compiled")
        if a.layout is torch.strided and x.numel():
            s, t = x.untyped_storage()._cdata, y.untyped_storage()._cdata
            if self.storages.setdefault(s, t) != t or self.storages_back.setdefault(t, s) != s:
                raise Differs(f"{where}: storage shared differently")
        if a.is_leaf:
            self.same(a.grad, b.grad, f"{where}.grad")

    def sequences(self, a: Any, b: Any, where: str) -> None:
        if len(a) != len(b):
            raise Differs(f"{where}: length {len(a)} eager, {len(b)} compiled ({a!r} / {b!r})")
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            self.same(x, y, f"{where}[{i}]")

    def mappings(self, a: Any, b: Any, where: str) -> None:
        self.sequences(list(a), list(b), f"{where}.keys()")
        for k, v in zip(a, b, strict=True):
            self.same(a[k], b[v], f"{where}[{k!r}]")

    def sets(self, a: Any, b: Any, where: str) -> None:
        if sorted(map(repr, a)) != sorted(map(repr, b)):
            raise Differs(f"{where}: {a!r} eager, {b!r} compiled")

    def functions(self, a: types.FunctionType, b: types.FunctionType, where: str) -> None:
        if a.__code__ != b.__code__ or a.__qualname__ != b.__qualname__:
            raise Differs(f"{where}: function {a.__qualname__} eager, {b.__qualname__} compiled")
        self.same(a.__defaults__, b.__defaults__, f"{where}.__defaults__")
        self.same(a.__kwdefaults__, b.__kwdefaults__, f"{where}.__kwdefaults__")
        self.same(a.__closure__, b.__closure__, f"{where}.__closure__")

    def cells(self, a: types.CellType, b: types.CellType, where: str) -> None:
        x, y = _contents(a), _contents(b)
        if x is check or y is check:
            if x is not y:
                raise Differs(f"{where}: cell empty in one of the runs")
            return
        self.same(x, y, f"{where}.cell_contents")

    def methods(self, a: types.MethodType, b: types.MethodType, where: str) -> None:
        self.same(a.__self__, b.__self__, f"{where}.__self__")
        self.same(a.__func__, b.__func__, f"{where}.__func__")

    def partials(self, a: functools.partial[Any], b: functools.partial[Any], where: str) -> None:
        for name in ("func", "args", "keywords"):
            self.same(getattr(a, name), getattr(b, name), f"{where}.{name}")

    def errors(self, a: BaseException, b: BaseException, where: str) -> None:
        self.same(a.args, b.args, f"{where}.args")
        self.same(a.__cause__, b.__cause__, f"{where}.__cause__")
        if a.__suppress_context__ != b.__suppress_context__ or type(a.__context__) is not type(b.__context__):
            raise Differs(f"{where}.__context__: {a.__context__!r} eager, {b.__context__!r} compiled")
        if isinstance(a, BaseExceptionGroup) and isinstance(b, BaseExceptionGroup):
            self.same(a.exceptions, b.exceptions, f"{where}.exceptions")


def _slots(cls: type) -> list[str]:
    found = cls.__dict__.get("__slots__", ())
    return [found] if isinstance(found, str) else [s for s in found if not s.startswith("__")]


COMPARERS: list[tuple[Any, Callable[[Comparer, Any, Any, str], None]]] = [
    (torch.Tensor, Comparer.tensors),
    ((dict, types.MappingProxyType), Comparer.mappings),
    ((list, tuple), Comparer.sequences),
    ((type({}.keys()), type({}.values()), type({}.items())), lambda c, a, b, w: c.sequences(list(a), list(b), w)),
    ((set, frozenset), Comparer.sets),
    (types.FunctionType, Comparer.functions),
    (types.CellType, Comparer.cells),
    (types.MethodType, Comparer.methods),
    (functools.partial, Comparer.partials),
    (BaseException, Comparer.errors),
]  # fmt: skip


def compare(eager: Outcome, compiled: Outcome, *, exact: bool = True, where: bool = True) -> None:
    """Raise `Differs` unless the two outcomes agree."""
    if (eager.error is None) != (compiled.error is None) or type(eager.error) is not type(compiled.error):
        shown = "".join(traceback.format_exception(compiled.error)) if compiled.error is not None else ""
        raise Differs(f"eager {eager}, compiled {compiled}\n{shown}") from compiled.error
    c = Comparer(exact)
    if eager.error is not None and compiled.error is not None:
        c.same(eager.error, compiled.error, "exception")
        ours, theirs = user_lines(eager.error), user_lines(compiled.error)
        if where and ours[-1:] != theirs[-1:]:
            raise Differs(f"the exception comes from {ours} eager, from {theirs} compiled")
    c.same(eager.result, compiled.result, "result")
    c.same(eager.world, compiled.world, "world")
    if eager.printed != compiled.printed:
        raise Differs(f"printed {eager.printed!r} eager, {compiled.printed!r} compiled")
    if not torch.equal(eager.rng[0], compiled.rng[0]) or eager.rng[1] != compiled.rng[1]:
        raise Differs("random state differs afterwards")
    if eager.grad_mode != compiled.grad_mode:
        raise Differs(f"grad mode {eager.grad_mode} eager, {compiled.grad_mode} compiled")


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
        """How many frames were given up: misses without an entry."""
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
    """Assert that nothing is compiled inside."""
    before = len(compiled.records)
    yield
    assert len(compiled.records) == before, "compiled again"
