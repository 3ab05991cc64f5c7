"""Tracebacks of exceptions that a capture raised: generated code builds them entry by entry.

In: places, as a capture notes them. Out: `traceback` objects that show what eager's would: lines and columns, and the names
of which hints at misspelt ones are made. Their frames never ran: their variables are None, and they lead to no caller.
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
from pycompiler.capture.values.base import Place
from pycompiler.ir.guards import UserFrame

OURS = str(Path(__file__).parent)
"""What stands there is inlined for C, of which tracebacks show nothing."""


def _empty() -> Iterator[None]:
    yield


def shown(code: types.CodeType) -> types.CodeType:
    """The code of a generator that does nothing, and is `code` to who prints a traceback.  Its variables are its arguments:
    hints are made of those that a frame has."""
    names = tuple(name for name in slot_names(code) if not name.endswith(LOCAL_SUFFIX))
    return _empty.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno,
        co_linetable=code.co_linetable, co_varnames=names, co_nlocals=len(names), co_argcount=len(names),
    )  # fmt: skip


def is_ours(code: types.CodeType) -> bool:
    """Whether tracebacks show nothing of it."""
    return code.co_filename.startswith(OURS)


def place_of(code: types.CodeType, namespace: dict[str, Any], offset: int | None, line: int) -> Place:
    """The place of the instruction at `offset` of a frame's code."""
    original, offsets = origin_of(code)
    at = offset if offsets is None or offset is None else offsets.get(offset)
    return original, namespace, -1 if at is None else at & ~1, line


def entries(places: Sequence[Place]) -> list[Place]:
    """What `add_traceback` is given: the places that eager's traceback has, too; one at least, since CPython wants one."""
    seen = [p for p in places if not is_ours(p[0])] or places
    return [(shown(code), namespace, at, line) for code, namespace, at, line in seen]


def add_traceback(exception: BaseException, *places: Place) -> None:
    """Let the exception have passed these places, the innermost first.

    CPython takes for granted that what is being handled has a traceback: `with` passes it to `__exit__` unchecked.
    """
    exception.__traceback__ = _passed(exception.__traceback__, places)


def _passed(inside: types.TracebackType | None, places: Sequence[Place]) -> types.TracebackType | None:
    _native.pause_hook()  # the code bears the user's names
    try:
        for code, namespace, at, line in places:
            frame = types.FunctionType(code, namespace)(*[None] * code.co_argcount).gi_frame
            inside = types.TracebackType(inside, frame, at, line)
    finally:
        _native.resume_hook()
    return inside


def raised_in_graph(error: BaseException) -> None:
    """Let an error of a graph that runs as it was captured have passed the program's lines, and not the graph's."""
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
    """Where the program called for the operator that a graph's code runs there."""
    ran = nodes_run(entry)
    return ran[-1].meta.get("user", ()) if ran else ()


def nodes_run(entry: types.TracebackType) -> list[fx.Node]:
    """Of a graph's code the nodes that it has run, with that which it runs there."""
    if not entry.tb_frame.f_code.co_filename.startswith("<eval_with_key>"):
        return []  # to look at the variables of a frame that has the error as one would close a cycle
    module = entry.tb_frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule):
        return []
    at = (getattr(module, "_lineno_map", None) or {}).get(entry.tb_lineno - getattr(module, "_prologue_start", 0))
    return [] if at is None else [*islice(module.graph.nodes, at + 1)]


def _place_at(frame: UserFrame) -> Place:
    code = _empty.__code__.replace(
        co_filename=frame.filename, co_name=frame.function, co_qualname=frame.function, co_firstlineno=frame.lineno
    )
    return code, {}, -1, frame.lineno


def between(exception: BaseException, places: Sequence[Place]) -> None:
    """Let an exception that comes to a generated frame, from a resume function that it calls for several frames of the program,
    have passed those in between."""
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


def raise_outside(exception: BaseException, *places: Place) -> None:
    """`add_traceback` of an exception that was raised where no captured frame handles one: those that led here may."""
    handled = sys.exception()
    if handled is not None and handled is not exception:
        link: BaseException | None = handled
        while link is not None and link.__context__ is not exception:  # no exception comes to be its own context
            link = link.__context__
        if link is not None:
            link.__context__ = None
        exception.__context__ = handled
    add_traceback(exception, *places)
