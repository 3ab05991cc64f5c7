"""Tests of one file in a forked child: for each test the executed lines, the duration and the outcome (`mutants.py`
forks).

In: a copy of the tree, a test file, the tests to run (all by default), the lines to watch (file → lines). Out: a
file with a line of JSON for each test, {"test", "outcome", "seconds", "seen": [[file, line], …], "why"}; `run`
returns pytest's exit status.

Lines are watched by `sys.monitoring`, which Python 3.11 does not have: there the lines of a test are unknown
(`LINES_ARE_KNOWN`). `sys.settrace` cannot be used: the compiler switches it off during a compile.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

LINES_ARE_KNOWN = sys.version_info >= (3, 12)
TOOL = 1  # sys.monitoring.COVERAGE_ID


class Lines:
    """The watched lines that were executed since the last `take`."""

    def __init__(self, folder: Path, watched: Mapping[str, Collection[int]]) -> None:
        self.files = {str(folder / name): (name, frozenset(lines)) for name, lines in watched.items()}
        self.seen: set[tuple[str, int]] = set()

    def begin(self) -> None:
        """Must precede the product's import. Python disables the event of an unwatched line after its first execution."""
        if sys.version_info < (3, 12) or not self.files:
            return
        monitoring = sys.monitoring
        events = monitoring.events
        monitoring.use_tool_id(TOOL, "mutants")

        def start(code: types.CodeType, offset: int) -> object:
            if code.co_filename in self.files:
                monitoring.set_local_events(TOOL, code, events.LINE)
            return monitoring.DISABLE

        def line(code: types.CodeType, number: int) -> object:
            name, lines = self.files[code.co_filename]
            if number not in lines:
                return monitoring.DISABLE
            self.seen.add((name, number))
            return None

        monitoring.register_callback(TOOL, events.PY_START, start)
        monitoring.register_callback(TOOL, events.LINE, line)
        monitoring.set_events(TOOL, events.PY_START)

    def take(self) -> list[tuple[str, int]]:
        seen, self.seen = sorted(self.seen), set()
        return seen


class Report:
    """Plugin of pytest: selects the tests, and writes a line when each has ended."""

    def __init__(self, path: Path, only: Collection[str] | None, lines: Lines) -> None:
        self.path, self.only, self.lines = path, only, lines
        self.outcome, self.why = "passed", ""
        self.imported: list[tuple[str, int]] = []  # executed at the import of the file: each of its tests needs them

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.imported = self.lines.take()
        if self.only is not None:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.only])
            items[:] = [item for item in items if item.nodeid in self.only]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.outcome, self.why, begin = "passed", "", time.monotonic()
        try:
            return (yield)
        finally:
            seen = sorted({*self.imported, *self.lines.take()})
            row = {"test": item.nodeid, "outcome": self.outcome, "seconds": round(time.monotonic() - begin, 3)}
            with open(self.path, "a") as file:
                file.write(json.dumps({**row, "seen": seen, "why": self.why}) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" and self.outcome != "failed":
            self.outcome = report.outcome
            crash = getattr(report.longrepr, "reprcrash", None)
            self.why = str(crash.message if crash else report.longrepr)[:300]


def run(
    folder: Path,
    test: str,
    only: Collection[str] | None,
    watched: Mapping[str, Collection[int]],
    report: Path,
    environment: Mapping[str, str],
    stop_at_first: bool,
) -> int:
    """Run the tests in the forked child. Only the module `tests` of the tree was imported before; it is dropped first."""
    os.chdir(folder)
    os.environ.update(environment)
    output = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    here = Path(__file__).resolve().parent.parent
    sys.path[:] = [str(folder), *(p for p in sys.path if p and Path(p).resolve() != here)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["pytest"]
    lines = Lines(folder, watched)
    lines.begin()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-o", "timeout=0", "-o", "addopts=--import-mode=importlib"]
    first = ["-x"] if stop_at_first else []
    status = int(pytest.main([*options, *first, test], plugins=[Report(report, only, lines)]))
    sys.stdout.flush()
    sys.stderr.flush()
    return status
