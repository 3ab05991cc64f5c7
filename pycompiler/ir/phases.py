"""What a compile lets be seen: named phases, and what each of them made.  Who looks is not known here.

In: `with phase("lowering"):` around each phase; `with model(number):` around what is compiled of a captured graph, in it
`with graph("backward"):` around each ATen graph, and `artefact(name, value)` for what is made.  Out: `compile_times()`,
and calls of the `observers`.  Nothing is rendered here, and where nobody looks a phase costs a few microseconds.
An observer that raises is said in the log; what it looks at goes on as if nobody looked.
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
    """Base of those who look: each method may be overridden.  They are called in the thread that compiles.

    `wanted`: which of `COSTLY` it asks for.
    """

    wanted: frozenset[str] = frozenset()

    def begin(self, phase: str) -> None:
        """A phase begins."""

    def end(self, phase: str, seconds: float) -> None:
        """The phase that began last in this thread is over, also by an exception."""

    def model(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """The compile of captured graph `number`, and later that of its backward: entered before, left after it."""
        return contextlib.nullcontext()

    def graph(self, kind: str) -> contextlib.AbstractContextManager[Any]:
        """The compile of an ATen graph of this thread's model: see `KINDS`."""
        return contextlib.nullcontext()

    def artefact(self, name: str, value: Any) -> None:
        """Something that was made: see `ARTEFACTS`."""


KINDS = ("forward", "backward", "inference")
# What is offered: of frames, inside of a model (`joint`), of a graph (the others).
ARTEFACTS: dict[str, str] = {
    "frame": "pipeline.records.GraphRecord: a frame was captured, and its graph compiled",
    "recompile": "pipeline.records.RecompileRecord: a call fitted no entry",
    "failure": "pipeline.reports.FailureRecord: a frame could not be compiled",
    "hint": "(node, why): what keeps an operator from being compiled",
    "unfused": "(nodes, nodes, why): two groups of loops that are no kernel together",
    "branch": "(number, fx.GraphModules, [(shape, strides, dtype)], symbols): branches, or a loop's test, body and backward",
    "joint": "fx.Graph: forward and backward in one",
    "fx_graph": "fx.GraphModule: the functional ATen graph that is compiled",
    "program": "ir.loops.Program, before fusion",
    "schedule": "ir.kernel.Schedule, after fusion",
    "plan": "(ir.plan.Plan, its inputs as buffers)",
}
COSTLY = frozenset({"recompile", "unfused"})  # made only where somebody wants them
numbers = itertools.count()  # of models
observers: list[Observer] = []
_times: dict[str, list[float]] = {name: [] for name in PHASES}


# Who stands around the compilers of a layer, by its name: "dynamo", what compiles captured graphs, "aot", ATen graphs.
# Empty but while something is looked for.
wrappers: dict[str, Callable[[Any, str], Any]] = {}


def wrapped(layer: str, compiler: Any, name: str) -> Any:
    """The compiler of a layer (`name`: of the backend, of the kind of graph), or what stands around it now."""
    wrapper = wrappers.get(layer)
    return compiler if wrapper is None else wrapper(compiler, name)


_failed: set[str] = set()


class apart:
    """Context manager around what an observer does: an `Exception` of it ends here, and each is said once."""

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
        except Exception:  # its text has one
            text = f"{who} raised {type(error).__name__}"
        if text not in _failed:
            _failed.add(text)
            log.warning("somebody who looks on fails, which changes no result: %s", text, exc_info=error)
        return True


class phase:
    """Context manager of one phase."""

    __slots__ = ("name", "start")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        for observer in list(observers):
            with apart(observer):
                observer.begin(self.name)
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        seconds = time.perf_counter() - self.start
        _times[self.name].append(seconds)
        for observer in list(observers):
            with apart(observer):
                observer.end(self.name, seconds)


class _Around:
    """Context manager: the ones of all observers, which neither add nor swallow an exception."""

    __slots__ = ("entered", "open")

    def __init__(self, entered: Callable[[Observer], contextlib.AbstractContextManager[Any]]) -> None:
        self.entered = entered

    def __enter__(self) -> None:
        self.open: list[tuple[Observer, contextlib.AbstractContextManager[Any]]] = []
        for observer in list(observers):
            with apart(observer):
                made = self.entered(observer)
                made.__enter__()
                self.open.append((observer, made))

    def __exit__(self, *exc: Any) -> None:
        for observer, made in reversed(self.open):
            with apart(observer):
                made.__exit__(*exc)


def model(number: int) -> contextlib.AbstractContextManager[None]:
    """Around the compile of what captured graph `number` (of `numbers`) becomes."""
    return _Around(lambda observer: observer.model(number))


def graph(kind: str) -> contextlib.AbstractContextManager[None]:
    """Around the compile of one ATen graph."""
    return _Around(lambda observer: observer.graph(kind))


def wants(name: str) -> bool:
    """Whether somebody wants an artefact that is costly to make."""
    return any(name in observer.wanted for observer in observers)


def artefact(name: str, value: Any) -> None:
    """Offers what was made to whoever looks."""
    for observer in list(observers):
        with apart(observer):
            observer.artefact(name, value)


def compile_times(repr: str = "str", aggregate: bool = False) -> str | tuple[list[str], list[str]]:
    """Seconds of each phase of the compiles of this process so far; summed with `aggregate`.

    `repr="str"`: a text, one phase a line; "csv": the phases' names, and for each its seconds as a cell.
    """
    if repr not in ("str", "csv"):
        raise UnknownName.of("form of compile times", repr, ("str", "csv"))
    rows = {name: [sum(times)] if aggregate else list(times) for name, times in _times.items() if times}
    if repr == "csv":
        return list(rows), [", ".join(f"{s:.6f}" for s in times) for times in rows.values()]
    width = max(map(len, rows), default=0)
    lines = [f"{name:<{width}}  {', '.join(f'{s:.4f}' for s in times)}" for name, times in rows.items()]
    return "\n".join(["Compile times (seconds):", *lines])
