"""The name of a compile: created when the compile of a frame starts, read by logs, traces, debug folders and reports.

In: the compiled function's name and code object, the numbers of its frame and of the entry.
Out: `CompileName`.  `named_compile(title)` surrounds all work of a compile, in every thread; `current()` is the title of this
thread's compile.

Example: `[2/1] step#1` is the compile of the second entry of the third frame, `[2/1/backward] step#1.backward` its backward
graph.  If a compile has several captured graphs, those of the second one are `forward.1` and `backward.1`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

RESUMED = re.compile(r"resume_in_(.*)_at_(\d+)$")
CALLS = {torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__}
frames = itertools.count()  # numbers of frames in this process


@dataclass(frozen=True)
class CompileName:
    """`code`: the program's code object; for a module the `forward` of its class.  `graph`: kind of ATen graph, empty
    for a frame.  `model`: number of the captured graph within the compile.  `models`: the
    numbers given so far (a list, since artefacts contain names)."""

    frame: int
    entry: int
    function: str
    code: types.CodeType
    graph: str = ""
    model: int = 0
    models: list[int] = field(default_factory=list, compare=False, repr=False)

    @property
    def id(self) -> str:
        """`[frame/entry]`, or `[frame/entry/graph]`."""
        return f"[{self.frame}/{self.entry}{f'/{self.graph}' if self.graph else ''}]"

    @property
    def name(self) -> str:
        return f"{self.function}#{self.entry}{f'.{self.graph}' if self.graph else ''}"

    @property
    def line(self) -> int:
        """The line at which the function begins; for a resume function, where it resumes."""
        resumed = RESUMED.search(self.code.co_qualname)
        return int(resumed[2]) if resumed else self.code.co_firstlineno

    @property
    def place(self) -> str:
        """`function (file:line)`."""
        function = RESUMED.sub(r"\1", self.code.co_qualname)
        return f"{function} ({os.path.basename(self.code.co_filename)}:{self.line})"

    def of(self, graph: str) -> CompileName:
        return replace(self, graph=f"{graph}.{self.model}" if self.model else graph)

    def __str__(self) -> str:
        return f"{self.id} {self.name}"


def name_of_compile(frame: int, entry: int, name: str, code: types.CodeType, values: Mapping[str, Any]) -> CompileName:
    """The title of a compile.  values: locals of the call; `values["self"]` is the module if `code` is torch's module call."""
    shown = RESUMED.sub(r"\1@\2", name.rpartition("<locals>.")[2])
    return CompileName(frame, entry, shown, own_code(code, values))


def own_code(code: types.CodeType, values: Mapping[str, Any]) -> types.CodeType:
    """The program's code object that a frame runs.  For torch's call of a module: the `forward` of the module's class."""
    if code not in CALLS or "self" not in values:
        return code
    forward = next((vars(c)["forward"] for c in type(values["self"]).__mro__ if "forward" in vars(c)), None)
    return forward.__code__ if isinstance(forward, types.FunctionType) else code


def program_code(code: types.CodeType) -> types.CodeType:
    """The program's code object of a frame that is being compiled."""
    known = current()
    return known.code if known is not None and code in CALLS else code


_state = threading.local()


def current() -> CompileName | None:
    return getattr(_state, "title", None)


def title() -> str | None:
    """Id and name of this thread's compile."""
    known = current()
    return None if known is None else str(known)


@contextlib.contextmanager
def named_compile(title: CompileName | None) -> Iterator[None]:
    before = current()
    _state.title = title
    try:
        yield
    finally:
        _state.title = before


def named_model() -> contextlib.AbstractContextManager[None]:
    """Context manager around the compile of one captured graph of this thread's compile."""
    known = current()
    if known is not None:
        known = replace(known, model=len(known.models))
        known.models.append(known.model)
    return named_compile(known)


@contextlib.contextmanager
def named_graph(graph: str) -> Iterator[None]:
    """Context manager around the compile of one ATen graph; an error gets the graph's name as `pycompiler_compile`."""
    known = current()
    title = known and known.of(graph)
    with named_compile(title):
        try:
            yield
        except Exception as error:
            if title is not None and not hasattr(error, "pycompiler_compile"):
                error.pycompiler_compile = str(title)  # type: ignore[attr-defined]
            raise


def name_of_error(error: BaseException) -> str:
    """The name of the graph in whose compile an error or its cause was raised; else of this thread's compile."""
    named = (getattr(one, "pycompiler_compile", "") for one in (error, error.__cause__))
    return next(filter(None, named), str(current() or ""))


def add_name(error: Exception) -> None:
    """Add a note to an error that leaves this thread's compile; tracebacks print it below the message."""
    known = name_of_error(error)
    note = f"pycompiler: in the compile {known}"
    if known and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def log_prefix() -> str:
    """Prefix of a log line: the title of the current compile; empty outside of compiles."""
    known = current()
    return f"{known}: " if known else ""
