"""Tracebacks of exceptions raised during capture: generated code builds them entry by entry.

In: places recorded by the capture.  Out: `traceback` objects with the lines, columns and variable names of eager's
traceback; hints at misspelt names use the latter.  Their frames never ran: the variables are None, and there is no
caller.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import fx

from pycompiler import _native
from pycompiler.capture.bytecode.decode import LOCAL_SUFFIX, slot_names
from pycompiler.capture.bytecode.resume import origin_of
from pycompiler.capture.values.base import TracebackEntry
from pycompiler.ir.guards import UserFrame

OURS = str(Path(__file__).parent)
"""Code in this folder is inlined in place of C code, which tracebacks do not show."""


def _empty() -> Iterator[None]:
    yield


def placeholder_code(code: types.CodeType) -> types.CodeType:
    """A generator's code object that does nothing and looks like `code` in a traceback.

    The variables of `code` become arguments, since hints at misspelt names use the frame's variables.
    """
    names = tuple(name for name in slot_names(code) if not name.endswith(LOCAL_SUFFIX))
    return _empty.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno,
        co_linetable=code.co_linetable, co_varnames=names, co_nlocals=len(names), co_argcount=len(names),
    )  # fmt: skip


def is_ours(code: types.CodeType) -> bool:
    """Whether tracebacks omit this code."""
    return code.co_filename.startswith(OURS)


def place_of(code: types.CodeType, namespace: dict[str, Any], offset: int | None, line: int) -> TracebackEntry:
    """The place of the instruction at `offset` of a frame's code."""
    original, offsets = origin_of(code)
    at = offset if offsets is None or offset is None else offsets.get(offset)
    return original, namespace, -1 if at is None else at & ~1, line


def entries(places: Sequence[TracebackEntry]) -> list[TracebackEntry]:
    """Arguments of `add_traceback`: the places that eager's traceback has; at least one, since CPython requires one."""
    seen = [p for p in places if not is_ours(p[0])] or places
    return [(placeholder_code(code), namespace, at, line) for code, namespace, at, line in seen]


def add_traceback(exception: BaseException, *places: TracebackEntry) -> None:
    """Extend the traceback by these places, the innermost first.

    CPython assumes that a handled exception has a traceback: `with` passes it to `__exit__` unchecked.
    """
    exception.__traceback__ = _passed(exception.__traceback__, places)


def _passed(inside: types.TracebackType | None, places: Sequence[TracebackEntry]) -> types.TracebackType | None:
    _native.pause_hook()  # the code has the names of the program's functions
    try:
        for code, namespace, at, line in places:
            frame = types.FunctionType(code, namespace)(*[None] * code.co_argcount).gi_frame
            inside = types.TracebackType(inside, frame, at, line)
    finally:
        _native.resume_hook()
    return inside


def raised_in_graph(error: BaseException) -> None:
    """Replace the graph's entries by the program's lines in the traceback of an error from a graph that runs as captured."""
    inside, stack = None, None
    for entry in walk(error):
        if entry.tb_frame.f_code.co_filename.startswith("<eval_with_key>"):
            stack, inside = _stack_at(entry) or stack, entry.tb_next
    if stack:
        seen = [frame for frame in stack if not frame.filename.startswith(OURS)]
        error.__traceback__ = _passed(inside, [_place_at(frame) for frame in reversed(seen)])


def walk(error: BaseException) -> Iterator[types.TracebackType]:
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _stack_at(entry: types.TracebackType) -> tuple[UserFrame, ...]:
    """The user stack of the operator that a graph's code runs at this entry."""
    ran = nodes_run(entry)
    return ran[-1].meta.get("user", ()) if ran else ()


def nodes_run(entry: types.TracebackType) -> list[fx.Node]:
    """The nodes of a graph's code that have run, including the current one."""
    if not entry.tb_frame.f_code.co_filename.startswith("<eval_with_key>"):
        return []  # reading the variables of a frame that holds the error would create a cycle
    module = entry.tb_frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule):
        return []
    at = (getattr(module, "_lineno_map", None) or {}).get(entry.tb_lineno - getattr(module, "_prologue_start", 0))
    return [] if at is None else [*islice(module.graph.nodes, at + 1)]


def _place_at(frame: UserFrame) -> TracebackEntry:
    code = _empty.__code__.replace(
        co_filename=frame.filename, co_name=frame.function, co_qualname=frame.function, co_firstlineno=frame.lineno
    )
    return code, {}, -1, frame.lineno


def insert_places(exception: BaseException, places: Sequence[TracebackEntry]) -> None:
    """Insert the program's frames between a generated frame and the resume function it calls.

    One resume function may continue several frames of the program.
    """
    own = exception.__traceback__
    if own is not None:
        exception.__traceback__ = own.tb_next
        add_traceback(exception, *places)
        exception.__traceback__ = types.TracebackType(
            exception.__traceback__, own.tb_frame, own.tb_lasti, own.tb_lineno
        )


def with_traceback_of(exception: BaseException, other: BaseException) -> BaseException:
    exception.__traceback__ = other.__traceback__
    return exception


def raise_outside(exception: BaseException, *places: TracebackEntry) -> None:
    """`add_traceback` for an exception raised where no captured frame handles one, though outer frames may."""
    handled = sys.exception()
    if handled is not None and handled is not exception:
        link: BaseException | None = handled
        while link is not None and link.__context__ is not exception:  # avoids a cycle of contexts
            link = link.__context__
        if link is not None:
            link.__context__ = None
        exception.__context__ = handled
    add_traceback(exception, *places)
