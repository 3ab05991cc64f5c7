"""What had been done when a graph failed, and which operator failed; one of another library is not called a second time.

In: the error that a graph's call raised.  Out: whether its frame may run again as it is written; where it does, the operator that
raised stands aside until the frame comes to it, and raises what it has raised.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from pycompiler.capture.tracebacks import nodes_run, walk
from pycompiler.ir.effects import fails
from pycompiler.ir.plan import StepNote

_PACKAGE = str(Path(__file__).parent.parent)
_AROUND = (_PACKAGE, str(Path(torch.autograd.__file__).parent), "<")
"""Whose frames stand between a program's and an operator's."""
_CALLS = (OpOverload.__call__.__code__, OpOverloadPacket.__call__.__code__)


def raised_first(error: BaseException) -> bool:
    """Whether a graph has done nothing by then that lasts, the operator that raised included.  What is switched is switched back
    by who calls the graph."""
    if (note := StepNote.of(error)) is not None:
        return not note.lasts
    found = [(nodes, entry.tb_frame) for entry in walk(error) if (nodes := nodes_run(entry))]
    if len(found) != 1:
        return False
    (*before, last), frame = found[0]
    if "lasts" not in last.meta or any(n.meta.get("lasts") for n in before):
        return False
    return not last.meta["lasts"] or _checks_before(last, frame.f_locals)


def _checks_before(node: fx.Node, values: dict[str, Any]) -> bool:
    """Whether an operator that raised has not begun to write: one that writes one tensor, and may refuse it for what it is.  A
    tensor of inference mode (its counter stays, whatever its data are) autograd refuses when it is written."""
    written = values.get(str(node.args[0])) if node.args else None
    if not isinstance(written, torch.Tensor) or node.meta.get("acts") or node.meta.get("refuses"):
        return False
    try:
        return isinstance(written._version, int)
    except RuntimeError:
        return False


def raise_there(error: BaseException, code: types.CodeType) -> None:
    """A frame of `code` is about to run again: an operator of another library that raised is not called a second time."""
    found = _of_plan(error, code) or _of_graph(error)
    if found is not None:
        _Raised(*found, error, code)


_Found = tuple[OpOverload, int, types.TracebackType | None]
"""An operator of another library, how often the graph had called it before, and where it raised."""


def _of_plan(error: BaseException, code: types.CodeType) -> _Found | None:
    note = StepNote.of(error)
    if note is None or note.op is None or not fails(note.op):
        return None
    return note.op, note.earlier, _inside(error, code)


def _of_graph(error: BaseException) -> _Found | None:
    found = [(nodes, entry) for entry in walk(error) if (nodes := nodes_run(entry))]
    entry = found[-1][1].tb_next if found else None
    while entry is not None and entry.tb_frame.f_code not in _CALLS:
        entry = entry.tb_next
    if entry is None:
        return None
    called = entry.tb_frame.f_locals["self"]
    op = called if isinstance(called, OpOverload) else getattr(called, called.overloads()[0])
    if not fails(op) or _packet(found[-1][0][-1].target) is not _packet(op):
        return None
    return op, sum(_calls(n, op) for nodes, _ in found for n in nodes[:-1]), entry.tb_next


def _calls(node: fx.Node, op: OpOverload) -> int:
    """How often a node calls an operator, in the bodies that it is given too."""
    given = [getattr(n.graph.owning_module, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"]
    inside = sum(_calls(n, op) for body in given if isinstance(body, fx.GraphModule) for n in body.graph.nodes)
    return inside + (_packet(node.target) is _packet(op))


def _packet(target: Any) -> Any:
    target = getattr(target, "_opoverload", target)  # of what `custom_op` makes
    return getattr(target, "overloadpacket", target)


def _inside(error: BaseException, code: types.CodeType) -> types.TracebackType | None:
    """The traceback without the generated frame, of the same place as `code`, and what runs graphs."""
    for entry in walk(error):
        around = entry.tb_frame.f_code
        if _place(around) != _place(code) and not around.co_filename.startswith(_AROUND):
            return entry
    return None


class _Raised:
    """Stands where Python finds an operator, in one thread, until a frame calls it that runs again, or has ended."""

    last = threading.local()

    def __init__(
        self,
        op: OpOverload,
        earlier: int,
        inside: types.TracebackType | None,
        error: BaseException,
        code: types.CodeType,
    ) -> None:
        with contextlib.suppress(AttributeError):
            self.last.raised.end()
        self.last.raised = self
        self.thread, self.frame, self.left = threading.get_ident(), _place(code), earlier
        self.error: BaseException | None = error
        self.inside = inside
        self.owners: list[tuple[Any, Any]] = []
        for owner in (op.overloadpacket, op):
            stands = functools.partial(self, owner._op)
            self.owners.append((owner, stands))
            owner._op = stands
        StepNote.drop(error)

    def __call__(self, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self.error is None or threading.get_ident() != self.thread:
            return op(*args, **kwargs)
        if self.frame not in map(_place, _running()):
            self.end()
        elif self.left:
            self.left -= 1
        else:
            error, inside = self.error, self.inside
            self.end()
            try:
                raise error.with_traceback(inside)
            finally:
                del error, inside  # or this frame, which its traceback holds, would hold it
        return op(*args, **kwargs)

    def end(self) -> None:
        self.error = self.inside = None
        for owner, stands in self.owners:
            if owner._op is stands:
                owner._op = stands.args[0]
        self.owners.clear()


def _place(code: types.CodeType) -> tuple[Any, ...]:
    return code.co_filename, code.co_firstlineno, code.co_name


def _running() -> Iterator[types.CodeType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
