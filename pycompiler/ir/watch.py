"""What a compile lets be seen: named phases, and what each of them made.  Who looks is not known here.

In: `with phase("lowering"):` around each phase; `with graph("backward"):` around the compile of an ATen graph, and
`artefact(name, render)` for what it made.  Out: `compile_times()`, and calls of the `observers`.  Without observers a
phase costs a microsecond, and nothing is rendered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

# In the order of a compile.  `compile`, `backend` and `backward` contain the ones that follow them.
PHASES: tuple[str, ...] = (
    "compile", "capture", "backend", "backward", "joint", "partition", "lowering", "scheduling", "codegen", "build",
    "plan", "guards", "assemble",
)  # fmt: skip


class Observer:
    """Base of those who look: each method may be overridden.  They are called in the thread that compiles."""

    def begin(self, phase: str) -> None:
        """A phase begins."""

    def end(self, phase: str, seconds: float) -> None:
        """The phase that began last in this thread is over, also by an exception."""

    def graph(self, kind: str) -> contextlib.AbstractContextManager[Any]:
        """The compile of an ATen graph ("forward", "backward", "inference"): entered before, left after it."""
        return contextlib.nullcontext()

    def artefact(self, name: str, render: Callable[[], str]) -> None:
        """Something that a phase made; `render()` is its text.  One of a graph is given inside of `graph`."""


observers: list[Observer] = []
_times: dict[str, list[float]] = {name: [] for name in PHASES}


class phase:
    """Context manager of one phase."""

    __slots__ = ("name", "start")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        for observer in observers:
            observer.begin(self.name)
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        seconds = time.perf_counter() - self.start
        _times[self.name].append(seconds)
        for observer in observers:
            observer.end(self.name, seconds)


@contextlib.contextmanager
def graph(kind: str) -> Iterator[None]:
    """Around the compile of one ATen graph."""
    with contextlib.ExitStack() as stack:
        for observer in list(observers):
            stack.enter_context(observer.graph(kind))
        yield


def artefact(name: str, render: Callable[[], str]) -> None:
    """Offers what a phase made to whoever looks."""
    for observer in list(observers):
        observer.artefact(name, render)


def compile_times(repr: str = "str", aggregate: bool = False) -> str | tuple[list[str], list[str]]:
    """Seconds of each phase of the compiles of this process so far; summed with `aggregate`.

    `repr="str"`: a text, one phase a line; "csv": the phases' names, and for each its seconds as a cell.
    """
    rows = {name: [sum(times)] if aggregate else list(times) for name, times in _times.items() if times}
    if repr == "csv":
        return list(rows), [", ".join(f"{s:.6f}" for s in times) for times in rows.values()]
    width = max(map(len, rows), default=0)
    lines = [f"{name:<{width}}  {', '.join(f'{s:.4f}' for s in times)}" for name, times in rows.items()]
    return "\n".join(["Compile times (seconds):", *lines])
