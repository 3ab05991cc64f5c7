"""The name of a compile: given when the compile of a frame begins, read by logs, traces, debug folders and reports.

In: the compiled function's name, its code, the number of its frame and of the entry.  Out: `Title`; `titled(title)` around all
that this compile does, in whatever thread, and `current()`, the title of this thread's compile.
Example: `[2/1] step#1.backward`: the second entry of the third frame, and of it the backward graph.
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
frames = itertools.count()  # numbers of frames, in this process


@dataclass(frozen=True)
class Title:
    """`code`: the program's own, for a module its class's `forward`.  `graph`: the kind of ATen graph, empty for the frame."""

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

    def of(self, graph: str) -> Title:
        return replace(self, graph=graph)

    def __str__(self) -> str:
        return f"{self.id} {self.name}"


def title(frame: int, entry: int, name: str, code: types.CodeType, values: Mapping[str, Any]) -> Title:
    """values: locals of the call, among them the module whose call `code` may be."""
    shown = RESUMED.sub(r"\1@\2", name.rpartition("<locals>.")[2])
    return Title(frame, entry, shown, own_code(code, values))


def own_code(code: types.CodeType, values: Mapping[str, Any]) -> types.CodeType:
    """The program's code that a frame runs: of a call of a module the `forward` of its class."""
    if code not in CALLS or "self" not in values:
        return code
    forward = next((vars(c)["forward"] for c in type(values["self"]).__mro__ if "forward" in vars(c)), None)
    return forward.__code__ if isinstance(forward, types.FunctionType) else code


def shown(code: types.CodeType) -> types.CodeType:
    """The program's code of a frame that is being compiled."""
    known = current()
    return known.code if known is not None and code in CALLS else code


_state = threading.local()


def current() -> Title | None:
    return getattr(_state, "title", None)


@contextlib.contextmanager
def titled(title: Title | None) -> Iterator[None]:
    before = current()
    _state.title = title
    try:
        yield
    finally:
        _state.title = before


def within(graph: str) -> contextlib.AbstractContextManager[None]:
    """Around the compile of one ATen graph of this thread's compile."""
    known = current()
    return titled(known and known.of(graph))


def tag() -> str:
    """What a line of the log begins with; empty outside of compiles."""
    known = current()
    return f"{known}: " if known else ""
