"""Records of `logging` that generated code makes after the graph, where those whom they reach are no code of the program's.

A handler of the program's may do anything that the frame sees: while it captures, such a call breaks the graph; before the graph
generated code asks (`only_logged`) whether one has come since.  Else `Unfit`: the frame runs eagerly.  (Not seen: a method that
the program puts into a class of a library whose instances have been asked about.)
"""

from __future__ import annotations

import logging
import types
import weakref
from logging.handlers import MemoryHandler
from typing import Any

from pycompiler.capture import polyfills, skip
from pycompiler.capture.values.attributes import is_mutable
from pycompiler.capture.values.base import Value
from pycompiler.capture.values.constant import Const
from pycompiler.errors import Unfit
from pycompiler.ir.source import mro_of, namespace_of

LEVELS = {
    name: getattr(logging, name.upper(), logging.ERROR)
    for name in ("debug", "info", "warning", "error", "exception", "critical")
}


def call_of(fn: types.FunctionType, args: list[Value]) -> tuple[Value | None, int] | None:
    """Logger (None: the root) and level of a call of a deferred function; None where they are not known."""
    logger, *rest = args if fn.__qualname__.startswith("Logger.") else [None, *args]
    level = LEVELS.get(fn.__name__)
    if level is None and rest and isinstance(rest[0], Const) and type(rest[0].value) is int:
        level = rest[0].value
    known = logger is None or isinstance(getattr(logger, "real", None), logging.Logger)
    return (logger, level) if known and level is not None else None


def may_wait(fn: types.FunctionType, args: list[Value]) -> bool:
    """Whether a record of this call is handed to no code of the program's."""
    called = call_of(fn, args)
    return called is not None and not _reaches_program(getattr(called[0], "real", None), called[1])


def only_logged(*calls: Any) -> None:
    """Raises `Unfit` where one of these (logger, level, logger, level, ...) reaches code of the program's."""
    each = iter(calls)
    for logger, level in zip(each, each, strict=True):
        if _reaches_program(logger, level):
            raise Unfit("a handler of the program's gets a record")


def _reaches_program(logger: logging.Logger | None, level: int) -> bool:
    logger = logger or logging.root
    return polyfills.is_enabled_for(logger, level) and any(map(_is_programs, _told(logger)))


def _told(logger: logging.Logger) -> list[type]:
    """The classes of those who get a record of a logger, and of what these ask."""
    told: list[Any] = [logger, *logger.filters]
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            told += (handler, *handler.filters, handler.formatter, handler.__dict__.get("stream"))
        at = at.parent if at.propagate else None
    return [*map(type, told)]


def _is_programs(cls: type) -> bool:
    """Whether it is a function (a filter), has methods of the program's, or formats records later, when what they hold may be
    another; a class is looked at once, since calls ask."""
    known = _known.get(cls)
    if known is None:
        own = [held for c in mro_of(cls) if is_mutable(c) for held in namespace_of(c).values()]
        known = (
            cls is types.FunctionType
            or issubclass(cls, MemoryHandler)
            or any(type(f) is types.FunctionType and not skip.is_library(f) for f in own)
        )
        _known[cls] = known
    return known


_known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


__all__ = ["call_of", "may_wait", "only_logged"]
