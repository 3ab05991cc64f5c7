"""Debugging tools: reports, traces and recordings of compiles and calls.

In: the events and artefacts of `ir/phases.py`.  Out: text, HTML pages, files that run alone.
Each tool is imported only when it is used.  Files in reading order:

Observation
- events.py: events of compiles and calls as plain data; describe.py: frames and graphs as data
- call_watchers.py, guard_profile.py, entry_memory.py: costs of calls, guards and entries
- step_times.py: the parts of a program's steps
- trace.py, event_fields.py: events in files
- ranges.py: ranges in torch's profile
- observer_switches.py: knobs that switch observers on

Reports
- document_queries.py, document.py: all events as one document
- causes.py, advice.py: what to change, what follows from it, what it costs
- step_shares.py, guard_groups.py: the parts of a step, and guards by object and line
- page.py, html_parts.py, page_data.py, number_format.py, templates/: the document as a page
- report.py, child_program.py, program.py: the report of a program
- report_server.py: the report in a browser, while the program runs
- comparison.py: two reports compared; exit_summary.py: one line at a program's end
- explain.py, profiler.py: a report of one call, and a backend that only observes
- render.py, directory.py: artefacts as text, and the debug directory

Searches for faults
- trial.py: one trial of a graph; fx_reader.py: a printed graph as an fx graph
- repro.py, repro_after.py, launcher.py, minifier.py: programs that repeat an error, and smaller ones
- bisect.py: the part of a compile that is at fault
- recording.py, freeze.py, replaying.py, thaw.py: calls in files

Commands
- doctor.py, operators.py, cache_commands.py: the machine, an operator's way, the kernel cache
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def record(path: str | os.PathLike[str], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Write the call `function(*args, **kwargs)` to a file that runs alone: arguments, code, and all that the code reads."""
    from pathlib import Path

    from pycompiler.debug import recording
    from pycompiler.wrapping import original_of

    settings: dict[str, Any] = {"backend": None, "fullgraph": False, "dynamic": None, "knobs": {}}
    recording.record(original_of(function), args, kwargs, settings, "", Path(path))


def replay(file: str | os.PathLike[str], *, eager: bool = False, backend: Any = None, trust: bool = False) -> Any:
    """Run a file written by `record` or `config.replay_record_enabled`, compiled as recorded; returns the call's result.

    This runs the code in the file: ArtefactError for a file that other users could have written, unless `trust`.
    eager: run without a compile.  backend: another backend.
    """
    from pycompiler.debug import replaying

    return replaying.read(os.fspath(file), trust=trust).run(eager=eager, backend=backend)
