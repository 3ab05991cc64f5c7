"""Observable events of a compile: named phases, and the artefacts of each.  The observers are unknown here.

In: `with phase("lowering"):` around each phase; `with model(number):` around the compile of a captured graph; inside of it
`with graph("backward"):` around each ATen graph; `artefact(name, value)` for each artefact.
Out: `compile_times()`, and calls of the `observers`.

Nothing is rendered here.  A phase without observers costs a few microseconds.  The exception of an observer is logged,
and the compile goes on as if the observer were absent.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import types
from collections.abc import Callable
from typing import Any

from pycompiler.errors import UnknownName

log = logging.getLogger("pycompiler")

# In the order of a compile.  `compile`, `backend` and `backward` contain the ones that follow them.
PHASES: tuple[str, ...] = (
    "compile", "capture", "backend", "backward", "joint", "partition", "lowering", "scheduling", "codegen", "build",
    "plan", "guards", "assemble",
)  # fmt: skip


class Observer:
    """Base class of observers; each method may be overridden.  Methods are called in the thread that compiles.

    `wanted`: the artefacts of `COSTLY` that the observer needs.
    """

    wanted: frozenset[str] = frozenset()

    def begin(self, phase: str) -> None:
        """A phase begins."""

    def end(self, phase: str, seconds: float) -> None:
        """The innermost phase of this thread ends, normally or by an exception."""

    def model(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """The compile of captured graph `number`, and later of its backward: entered before, left after it."""
        return contextlib.nullcontext()

    def graph(self, kind: str) -> contextlib.AbstractContextManager[Any]:
        """The compile of an ATen graph of this thread's model: see `KINDS`."""
        return contextlib.nullcontext()

    def artefact(self, name: str, value: Any) -> None:
        """An artefact was created: see `ARTEFACTS`."""


KINDS = ("forward", "backward", "inference")
# Artefacts: of frames; inside of a model (`joint`); inside of a graph (the others).
ARTEFACTS: dict[str, str] = {
    "frame": "pipeline.records.GraphRecord: a frame was captured, and its graph compiled",
    "recompile": "pipeline.records.RecompileRecord: a call fitted no entry",
    "eager": "pipeline.records.EagerRecord: calls of a frame run eagerly",
    "failure": "pipeline.reports.FailureRecord: a frame could not be compiled",
    "hint": "(node, why): the reason why an operator is not compiled",
    "unfused": "(nodes, nodes, why): two groups of loops that are not fused",
    "branch": "(number, fx.GraphModules, [(shape, strides, dtype)], symbols): branches, or a loop's test, body and backward",
    "joint": "fx.Graph: forward and backward in one",
    "fx_graph": "fx.GraphModule: the functional ATen graph that is compiled",
    "program": "ir.loops.Program, before fusion",
    "schedule": "ir.kernel.Schedule, after fusion",
    "plan": "(ir.plan.Plan, its inputs as buffers)",
}
COSTLY = frozenset({"recompile", "unfused"})  # created only if an observer wants them
numbers = itertools.count()  # numbers of models
observers: list[Observer] = []
_times: dict[str, list[float]] = {name: [] for name in PHASES}


# Layer -> wrapper of its compilers: "dynamo" compiles captured graphs, "aot" ATen graphs.
# Empty except during a search for a failing graph.
wrappers: dict[str, Callable[[Any, str], Any]] = {}


def wrapped(layer: str, compiler: Any, name: str) -> Any:
    """The compiler of a layer, wrapped if the layer has a wrapper.  name: of the backend, or the kind of graph."""
    wrapper = wrappers.get(layer)
    return compiler if wrapper is None else wrapper(compiler, name)


_failed: set[str] = set()


class observer_errors_logged:
    """Context manager around an observer's code: swallows an `Exception`, and logs each message once."""

    __slots__ = ("who",)

    def __init__(self, who: object) -> None:
        self.who = who

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: types.TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return error is None
        who = getattr(self.who, "__qualname__", None) or type(self.who).__qualname__
        try:
            text = f"{who} raised {type(error).__name__}: {error}"
        except Exception:  # its `__str__` may raise too
            text = f"{who} raised {type(error).__name__}"
        if text not in _failed:
            _failed.add(text)
            log.warning("an observer failed, without effect on results: %s", text, exc_info=error)
        return True


class phase:
    """Context manager of one phase."""

    __slots__ = ("name", "start")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        for observer in list(observers):
            with observer_errors_logged(observer):
                observer.begin(self.name)
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        seconds = time.perf_counter() - self.start
        _times[self.name].append(seconds)
        for observer in list(observers):
            with observer_errors_logged(observer):
                observer.end(self.name, seconds)


class _ObserverContexts:
    """Combines the context managers of all observers.  Observers can neither raise nor swallow an exception."""

    __slots__ = ("entered", "open")

    def __init__(self, entered: Callable[[Observer], contextlib.AbstractContextManager[Any]]) -> None:
        self.entered = entered

    def __enter__(self) -> None:
        self.open: list[tuple[Observer, contextlib.AbstractContextManager[Any]]] = []
        for observer in list(observers):
            with observer_errors_logged(observer):
                made = self.entered(observer)
                made.__enter__()
                self.open.append((observer, made))

    def __exit__(self, *exc: Any) -> None:
        for observer, made in reversed(self.open):
            with observer_errors_logged(observer):
                made.__exit__(*exc)


def model(number: int) -> contextlib.AbstractContextManager[None]:
    """Context manager around the compile of captured graph `number` (from `numbers`)."""
    return _ObserverContexts(lambda observer: observer.model(number))


def graph(kind: str) -> contextlib.AbstractContextManager[None]:
    """Context manager around the compile of one ATen graph."""
    return _ObserverContexts(lambda observer: observer.graph(kind))


def is_wanted(name: str) -> bool:
    """Whether an observer wants a costly artefact."""
    return any(name in observer.wanted for observer in observers)


def artefact(name: str, value: Any) -> None:
    """Pass an artefact to all observers."""
    for observer in list(observers):
        with observer_errors_logged(observer):
            observer.artefact(name, value)


def compile_times(repr: str = "str", aggregate: bool = False) -> str | tuple[list[str], list[str]]:
    """Seconds of each phase, for all compiles of this process so far.

    Args:
        repr: "str": a text with one phase a line.  "csv": rows for a table.
        aggregate: Sum the seconds of each phase.

    Returns:
        str | tuple[list[str], list[str]]: The text; or names of the phases, and for each phase its seconds as a cell.

    Raises:
        UnknownName: `repr` is neither "str" nor "csv".

    Example:
        ```python
        pycompiler.compile(lambda x: x + 1)(torch.ones(3))
        print(pycompiler.compile_times(aggregate=True))
        ```
    """
    if repr not in ("str", "csv"):
        raise UnknownName.of("form of compile times", repr, ("str", "csv"))
    rows = {name: [sum(times)] if aggregate else list(times) for name, times in _times.items() if times}
    if repr == "csv":
        return list(rows), [", ".join(f"{s:.6f}" for s in times) for times in rows.values()]
    width = max(map(len, rows), default=0)
    lines = [f"{name:<{width}}  {', '.join(f'{s:.4f}' for s in times)}" for name, times in rows.items()]
    return "\n".join(["Compile times (seconds):", *lines])
