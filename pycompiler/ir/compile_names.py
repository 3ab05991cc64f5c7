"""The name of a compile: created when the compile of a frame starts, read by logs, traces, debug folders and reports.

In: the compiled function's name and code object, the numbers of its frame and of the entry.
Out: `CompileName`.  `named_compile(title)` surrounds all work of a compile, in every thread; `current()` is the title of this
thread's compile.

Example: `[2/1] step#1.backward` is the backward graph of the second entry of the third frame.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

RESUMED = re.compile(r"resume_in_(.*)_at_(\d+)$")
CALLS = {torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__}
frames = itertools.count()  # numbers of frames in this process


@dataclass(frozen=True)
class CompileName:
    """`code`: the program's code object; for a module the `forward` of its class.  `graph`: kind of ATen graph, empty
    for a frame."""

    frame: int
    entry: int
    function: str
    code: types.CodeType
    graph: str = ""

    @property
    def id(self) -> str:
        return f"[{self.frame}/{self.entry}]"

    @property
    def name(self) -> str:
        return f"{self.function}#{self.entry}{f'.{self.graph}' if self.graph else ''}"

    @property
    def place(self) -> str:
        """`function (file:line)`."""
        return f"{self.code.co_qualname} ({os.path.basename(self.code.co_filename)}:{self.code.co_firstlineno})"

    def of(self, graph: str) -> CompileName:
        return replace(self, graph=graph)

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


@contextlib.contextmanager
def named_compile(title: CompileName | None) -> Iterator[None]:
    before = current()
    _state.title = title
    try:
        yield
    finally:
        _state.title = before


def named_graph(graph: str) -> contextlib.AbstractContextManager[None]:
    """Context manager around the compile of one ATen graph of this thread's compile."""
    known = current()
    return named_compile(known and known.of(graph))


def log_prefix() -> str:
    """Prefix of a log line: the title of the current compile; empty outside of compiles."""
    known = current()
    return f"{known}: " if known else ""
