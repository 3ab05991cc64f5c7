"""Log records that generated code creates after the graph, if they reach no code of the program.

A handler of the program may do anything that the frame can see, so such a call breaks the graph.  Generated code checks
before the graph whether a handler has been added (`check_loggers`).  If so, it raises `Unfit` and the frame runs eagerly.
Not detected: a method that the program adds to a library's class after its instances were checked.
"""

from __future__ import annotations

import logging
import types
import weakref
from logging.handlers import MemoryHandler
from typing import Any

from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.semantics import polyfills
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
    """Whether the record of this call reaches no code of the program."""
    called = call_of(fn, args)
    return called is not None and not _reaches_program(getattr(called[0], "real", None), called[1])


def check_loggers(*calls: Any) -> None:
    """Raise `Unfit` if one of these (logger, level, logger, level, ...) reaches code of the program."""
    each = iter(calls)
    for logger, level in zip(each, each, strict=True):
        if _reaches_program(logger, level):
            raise Unfit("a log record would reach code of the program")


def _reaches_program(logger: logging.Logger | None, level: int) -> bool:
    logger = logger or logging.root
    return polyfills.is_enabled_for(logger, level) and any(map(_is_programs, _receivers(logger)))


def _receivers(logger: logging.Logger) -> list[type]:
    """The classes of all objects that process a record of a logger."""
    told: list[Any] = [logger, *logger.filters]
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            told += (handler, *handler.filters, handler.formatter, handler.__dict__.get("stream"))
        at = at.parent if at.propagate else None
    return [*map(type, told)]


def _is_programs(cls: type) -> bool:
    """Whether a class runs code of the program, or formats records later, when the arguments may have changed.

    A function (a filter) counts as code of the program.  Each class is checked once, since calls repeat the check.
    """
    known = _known.get(cls)
    if known is None:
        own = [held for c in mro_of(cls) if is_mutable(c) for held in namespace_of(c).values()]
        known = (
            cls is types.FunctionType
            or issubclass(cls, MemoryHandler)
            or any(type(f) is types.FunctionType and not inlining_rules.is_library(f) for f in own)
        )
        _known[cls] = known
    return known


_known: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


__all__ = ["call_of", "check_loggers", "may_wait"]
