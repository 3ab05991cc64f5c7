"""Knobs that switch observers on and off."""

from __future__ import annotations

from typing import Any

from pycompiler import config
from pycompiler.ir import watch

_directory: Any = None


def _trace_changed() -> None:
    """`config.trace.enabled`: the debug directory is an observer of compiles."""
    global _directory
    if config.trace.enabled and _directory is None:
        from pycompiler.debug.directory import Directory  # only who debugs needs it

        _directory = Directory()
    if _directory is None or config.trace.enabled == (_directory in watch.observers):
        return
    if config.trace.enabled:
        watch.observers.append(_directory)
    else:
        watch.observers.remove(_directory)
        _directory.close()


config.on_change("trace.enabled", _trace_changed)
_trace_changed()
