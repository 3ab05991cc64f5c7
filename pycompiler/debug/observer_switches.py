"""Knobs that switch observers on and off.

In: changes of knobs.  Out: observers added to, or removed from, `ir/phases.py` and other places.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from pycompiler import config, logs
from pycompiler._native import CompiledFunction
from pycompiler.debug import ranges
from pycompiler.errors import ConfigError
from pycompiler.ir import choices, phases
from pycompiler.pipeline import reports

_directory: Any = None


def _trace_changed() -> None:
    """`config.trace.enabled`: the debug directory is an observer of compiles."""
    global _directory
    if config.trace.enabled and _directory is None:
        from pycompiler.debug.directory import Directory  # imported only for debugging

        _directory = Directory()
    if _directory is None or config.trace.enabled == (_directory in phases.observers):
        return
    if config.trace.enabled:
        phases.observers.append(_directory)
    else:
        phases.observers.remove(_directory)
        _directory.close()


def _trace_dir_changed() -> None:
    if config.trace_dir is not None or "pycompiler.debug.trace" in sys.modules:
        from pycompiler.debug import trace  # imported only for traces

        trace.changed()


def _summary_changed() -> None:
    if config.summary_at_exit or "pycompiler.debug.exit_summary" in sys.modules:
        from pycompiler.debug.exit_summary import exit_summary  # imported only for the line

        exit_summary.changed()


def _limit_hit(function: CompiledFunction) -> None:
    from pycompiler.debug.exit_summary import exit_summary  # imported only for the line

    exit_summary.limit_hit(function)


def _log_level_changed() -> None:
    if config.log_level is None:
        logs.restore()
    else:
        logs.show("dynamo", config.log_level)


def _debug_changed() -> None:
    """`config.debug`: the compiler of graphs logs its work and the generated code."""
    if config.debug:
        logs.show("inductor", logging.DEBUG)
    else:
        logs.restore()


def _repro_changed() -> None:
    if config.repro_after is None and not phases.wrappers:
        return
    from pycompiler.debug import repro_after  # imported only for a search

    repro_after.listen()


def _bisect_changed() -> None:
    try:
        choices.set_limits(config.bisect, config.bisect_log)
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"config.bisect = {config.bisect!r}, config.bisect_log = {config.bisect_log!r}: {error}"
        ) from None


def _record_changed() -> None:
    if config.replay_record_enabled or "pycompiler.debug.recording" in sys.modules:
        from pycompiler.debug import recording  # imported only for recordings

        recording.listen()


ranges.install()
config.on_change("trace.enabled", _trace_changed)
config.on_change("bisect", _bisect_changed)
config.on_change("bisect_log", _bisect_changed)
if config.bisect or config.bisect_log:
    _bisect_changed()
config.on_change("repro_after", _repro_changed)
config.on_change("replay_record_enabled", _record_changed)
_record_changed()
_trace_changed()
config.on_change("trace_dir", _trace_dir_changed)
_trace_dir_changed()
config.on_change("summary_at_exit", _summary_changed)
reports.limit_listeners.append(_limit_hit)
_summary_changed()
config.on_change("log_level", _log_level_changed)
config.on_change("debug", _debug_changed)
if config.log_level is not None:
    _log_level_changed()
if config.debug:
    _debug_changed()
_repro_changed()
