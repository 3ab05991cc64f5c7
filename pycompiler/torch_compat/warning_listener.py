"""Warnings of code that runs while a frame is compiled: a listener receives them, and they are not printed.

While a thread listens, `warnings.filters` begins with a filter that matches this thread's warnings.  The function that
shows a warning passes it to the listener.  Warnings of other threads are unaffected.  Registries do not change.
"""

from __future__ import annotations

import dis
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from pycompiler.torch_compat.process_settings import Lock, WhileInside

IN_C = "(Triggered internally at "
"""Part of torch's C++ warnings."""

lock = Lock()
_open: list[Listening] = []


@dataclass(frozen=True)
class WarningLine:
    """A line of a frame, in a module with this namespace."""

    code: CodeType
    lineno: int
    namespace: dict[str, Any]

    @property
    def module(self) -> str:
        return str(self.namespace.get("__name__"))


@dataclass(frozen=True)
class CapturedWarning:
    """A warning, its line, and the frames that led to it, innermost first.

    `inside`: how many of these frames belong to the code that the listener called.
    """

    message: str
    category: type[Warning]
    filename: str
    lineno: int
    frames: tuple[WarningLine, ...]
    inside: int


class Listening:
    """``with Listening() as heard:``, a list of warnings.

    texts: only these texts, which are swallowed and not listed.  in_c: also torch's C++ warnings.
    """

    def __init__(self, texts: frozenset[str] | None = None, *, in_c: bool = True) -> None:
        self.texts, self.in_c = texts, in_c
        self.heard: list[CapturedWarning] = []

    def __enter__(self) -> list[CapturedWarning]:
        self.thread, self.caller = threading.get_ident(), sys._getframe(1)
        self.shows = vars(warnings).get("_showwarnmsg_impl")
        with lock():
            if not _open:
                _Original.before = warnings._showwarnmsg  # type: ignore[attr-defined]
                warnings._showwarnmsg = _receive  # type: ignore[attr-defined]
            _open.append(self)
            warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]
        return self.heard

    def __exit__(self, *exc: object) -> None:
        with lock():
            _open.remove(self)
            if _FILTER in warnings.filters:
                warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]
            if not _open and warnings._showwarnmsg is _receive:  # type: ignore[attr-defined]
                warnings._showwarnmsg = _Original.before  # type: ignore[attr-defined]
        del self.caller

    def takes(self, text: str) -> bool:
        """Whether this listener receives the warning.  Code inside of it that records warnings has precedence."""
        mine = self.thread == threading.get_ident() and (self.texts is None or text in self.texts)
        return mine and (self.in_c or IN_C not in text) and vars(warnings).get("_showwarnmsg_impl") == self.shows


class _Original:
    before: Callable[[Any], None]


def _listener(text: str) -> Listening | None:
    return next((one for one in reversed(_open) if one.takes(text)), None)


class _Message:
    """Stands in for a filter's pattern."""

    def match(self, text: str) -> bool:
        return _listener(text) is not None


_FILTER: Any = ("always", _Message(), Warning, None, 0)


def _receive(told: Any) -> None:
    listener = _listener(str(told.message))
    if listener is None:
        _Original.before(told)
        return
    if listener.texts is not None:  # they are not read, and this runs in each call
        return
    frames = [*_frames(sys._getframe(1))]
    inside = next((i for i, f in enumerate(frames) if f is listener.caller), 0)
    places = tuple(WarningLine(f.f_code, f.f_lineno, f.f_globals) for f in frames)
    listener.heard.append(CapturedWarning(str(told.message), told.category, told.filename, told.lineno, places, inside))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


ALWAYS = WhileInside(torch.is_warn_always_enabled, torch.set_warn_always, lambda before: True)
"""While any thread is inside, torch repeats all warnings that it otherwise issues once per process."""


def line_of_call(code: CodeType, which: int = -1) -> int:
    """The line of one of the calls in a function that passes on all of its arguments."""
    starts, line, found = dict(dis.findlinestarts(code)), 0, []
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        found += [line] if instruction.opname == "CALL_FUNCTION_EX" else []
    return found[which]


def lines_of(code: CodeType, name: str) -> list[int]:
    """The lines that load this variable, in order."""
    starts, line, found = dict(dis.findlinestarts(code)), 0, []
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        found += [line] if instruction.argval == name and instruction.opname.startswith("LOAD") else []
    return sorted(set(found))


class SilencedGraph:
    """A graph whose warnings with these texts are swallowed; the frame issues them itself."""

    def __init__(self, run: Callable[..., Any], texts: frozenset[str]) -> None:
        self.run, self.texts = run, texts

    def __call__(self, *args: Any) -> Any:
        with Listening(self.texts):
            return self.run(*args)


__all__ = ["ALWAYS", "IN_C", "CapturedWarning", "Listening", "SilencedGraph", "WarningLine", "line_of_call", "lines_of"]
