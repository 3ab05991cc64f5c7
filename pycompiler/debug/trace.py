"""Traces: the compiles of every process of a program, in a folder.

In: `config.trace_dir` (PYCOMPILER_TRACE, TORCH_TRACE).  Out, for each process: `pycompiler_<pid>_<stamp>.jsonl`, one
event a line (`debug/events.py: EVENTS`), and `….trace.json`, its phases in Chrome's format, which Perfetto and
chrome://tracing open.  Both files are valid after each line, however the process ends.  Calls are not observed:
torch.profiler shows those.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from pycompiler import config
from pycompiler.debug import event_fields
from pycompiler.debug.describe import Data
from pycompiler.debug.events import EVENTS, Recorder, event_of, start
from pycompiler.errors import ArgumentError
from pycompiler.runtime import private_files

END = b"\n]\n"  # end of Chrome's format: each row overwrites it, and writes it again


class Trace:
    """Two files of this process, created at the first event."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = -1
        self.files: tuple[TextIO, io.FileIO] | None = None
        self.rows = 0  # rows in Chrome's format

    def take(self, event: Data) -> None:
        try:
            with self.lock:
                self.write(event)
        except (OSError, ValueError) as error:  # a full disk, or a folder that is gone
            config.say_once(f"no trace in {config.trace_dir}: {type(error).__name__}: {error}")

    def write(self, event: Data) -> None:
        if event["event"] == "start":
            return  # the first line of each file; a process without compiles has no file
        events, chrome = self.open()
        events.write(json.dumps(event, default=str) + "\n")
        events.flush()
        if (row := chrome_row(event, self.pid)) is not None:
            data = json.dumps(row).encode()
            chrome.seek(-len(END), os.SEEK_END)
            chrome.write((b",\n" if self.rows else b"\n") + data + END)
            self.rows += 1

    def open(self) -> tuple[TextIO, io.FileIO]:
        if self.files is None or self.pid != os.getpid():  # a fork has files of its own
            self.pid = os.getpid()
            folder = Path(config.trace_dir or ".")
            folder.mkdir(parents=True, exist_ok=True)
            name = f"pycompiler_{self.pid}_{datetime.datetime.now():%Y%m%d_%H%M%S_%f}"
            paths = [folder / f"{name}.jsonl", folder / f"{name}.trace.json"]
            events, chrome = paths[0].open("w", encoding="utf-8"), io.FileIO(paths[1], "w")
            self.files, self.rows = (events, chrome), 0
            chrome.write(b"[" + END)
            events.write(json.dumps(event_of("start", **start())) + "\n")
            events.flush()  # so that a fork has nothing buffered to write again
        return self.files

    def forked(self) -> None:
        """Reset in a forked child: another thread may have held the lock; the files belong to the parent."""
        self.lock = threading.Lock()

    def close(self) -> None:
        with self.lock:
            for file in self.files or ():
                file.close()
            self.files = None


def chrome_row(event: Data, pid: int) -> Data | None:
    """An event in Chrome's format: phases have a length, breaks and recompiles are instants."""
    common: dict[str, Any] = {"pid": pid, "tid": event["thread"], "cat": event["event"]}
    if event["event"] == "phase":
        told = {k: event[k] for k in ("id", "title", "model", "graph") if event.get(k) is not None}
        return {
            **common,
            "name": event["name"],
            "ph": "X",
            "ts": event["start"] * 1e6,
            "dur": max(0.0, event["at"] - event["start"])
            * 1e6,  # so that spans of a thread nest, as the format requires
            "args": told,
        }
    named = {k: event[k] for k in ("id", "title") if event.get(k) is not None}
    instant = {**common, "ph": "i", "s": "t", "ts": event["at"] * 1e6}
    if event["event"] == "frame":
        told = {"file": event["file"], "line": event["line"], "break": event["break"] and event["break"]["reason"]}
        return {**instant, "name": f"frame {event['function']}", "args": {**named, **told}}
    if event["event"] == "recompile":
        return {**instant, "name": f"recompile of {event['function']}", "args": {**named, "reasons": event["reasons"]}}
    return None


def files(place: Path) -> list[Path]:
    """The traces in a folder, or the one file; none if there is neither."""
    return [place] if place.is_file() else sorted(path for path in place.glob("*.jsonl") if path.is_file())


def read(place: Path) -> Iterator[Data]:
    """The events of all processes in a folder, or of one file, one process after the other.

    Truncated lines (of a process that was killed, or that writes at this moment) and lines without an event are skipped.
    ArgumentError for an event with wrong fields (`event_fields.py`), and for a path that is no plain file any more.
    """
    for path in files(place):
        try:
            # A trace is data, not a program: other users may have written it.
            opened = private_files.open_file(path, trust=True)
        except private_files.Unsafe as error:
            raise ArgumentError(str(error)) from error
        with io.TextIOWrapper(opened, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                kind = event.get("event") if isinstance(event, dict) else None
                if isinstance(kind, str) and kind in EVENTS and "at" in event and "thread" in event:
                    event_fields.check(event, f"{path}, line {number},")
                    yield event


_current: tuple[Trace, Recorder] | None = None


def _forked() -> None:
    if _current is not None:
        _current[0].forked()


os.register_at_fork(after_in_child=_forked)


def changed() -> None:
    """`config.trace_dir` has changed."""
    global _current
    if _current is not None:
        trace, recorder = _current
        recorder.__exit__()
        trace.close()
        _current = None
    if config.trace_dir is not None:
        trace = Trace()
        _current = trace, Recorder(trace.take)
        _current[1].__enter__()
