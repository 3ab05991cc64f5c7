"""Tiers of the suite: `--tier fast` runs a part that takes minutes, another part with each commit.

In: the collected tests, and `durations.json`: the seconds that tests took when they were last recorded.
Out: the tests to run, those of the longest files first.

- A test function runs so many of its cases as take `SECONDS`, and at least one.  Functions without a record are quick:
  all their cases run.
- A function whose single case takes longer than `SLOW` seconds, and a file whose fixtures do, run in one of four turns.
- Tests with the marker `whole` (rules about the sources, tables whose rows are rules) run all their cases.
- Fuzzers that loop over seeds run a fifth of their seeds (`part`).

`--turn N` says which cases, slow tests and seeds run.  Successive numbers reach all of them.  The default is drawn from the
commit's hash, since a shallow clone cannot count commits.  `--tier rest` runs a quarter of the tests that the fast tier
leaves out, another quarter in each turn.  `--tier all`, the default, runs everything.

    pytest --tier fast --turn 3
    pytest --shard 2/6                      # the second of six parts that take equally long
    pytest --record-durations               # writes durations.json for the files that ran; nothing else should run
"""

from __future__ import annotations

import json
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SECONDS, SLOW, TURNS, PARTS = 0.3, 2.0, 4, 5
RECORDED = 0.2  # seconds: functions whose cases take less in all are not written down
ROOT = Path(__file__).resolve().parent.parent
DURATIONS = Path(__file__).resolve().parent / "durations.json"


@dataclass
class Durations:
    """Seconds: of a file's fixtures, and of one case of a function (by `file::function`)."""

    fixtures: dict[str, float] = field(default_factory=dict)
    cases: dict[str, float] = field(default_factory=dict)


def read(path: Path = DURATIONS) -> Durations:
    return Durations(**json.loads(path.read_text())) if path.is_file() else Durations()


@dataclass
class Tier:
    """The chosen part of the suite: "fast", "rest" or "all"."""

    name: str = "all"
    turn: int = 0


current = Tier()  # set before tests are collected


def part(count: int) -> range:
    """The seeds that a fuzzer of `count` seeds runs now: all of them, or a fifth in turn."""
    if current.name == "all" or count < PARTS:
        return range(count)
    size = count // PARTS
    first = current.turn % PARTS * size
    return range(first, first + size)


def function_of(test: str) -> str:
    return test.partition("[")[0]


def file_of(test: str) -> str:
    return test.partition("::")[0]


def chosen(count: int, seconds: float, turn: int) -> set[int]:
    """The positions of the cases that run, of a function with `count` cases of this duration."""
    keep = max(1, int(SECONDS / seconds) if seconds else count)
    share = -(-count // keep)
    return {i for i in range(count) if i % share == turn % share}


def has_turn(name: str, turn: int) -> bool:
    """Whether a slow test runs in this turn: one of four."""
    return zlib.crc32(name.encode()) % TURNS == turn % TURNS


def select(tests: Sequence[str], turn: int, known: Durations) -> set[str]:
    """The tests of the fast tier."""
    cases: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        cases[function_of(test)].append(test)
    kept: set[str] = set()
    for function, same in cases.items():
        seconds, file = known.cases.get(function, 0.0), file_of(function)
        if known.fixtures.get(file, 0.0) > SLOW and not has_turn(file, turn):
            continue
        if seconds > SLOW and not has_turn(function, turn):
            continue
        # `has_turn` uses the turn modulo `TURNS`: the cases of slow tests follow the quotient, so that all have their turn
        slow = seconds > SLOW or known.fixtures.get(file, 0.0) > SLOW
        kept.update(same[i] for i in chosen(len(same), seconds, turn // TURNS if slow else turn))
    return kept


def is_whole(file: Path) -> bool:
    """Whether all tests of a file run in every tier."""
    return "pytestmark = pytest.mark.whole" in file.read_text()


def seconds_of_files(tests: Sequence[str], known: Durations) -> dict[str, float]:
    """Seconds of each file's tests and fixtures; 0.01 for a test without a record."""
    files: dict[str, float] = {}
    for test in tests:
        file = file_of(test)
        files[file] = files.get(file, known.fixtures.get(file, 0.0)) + known.cases.get(function_of(test), 0.01)
    return files


def sharded(tests: Sequence[str], shard: int, count: int, known: Durations) -> set[str]:
    """The tests of shard number `shard` (from 1) of `count`: whole files, so that all shards take equally long."""
    loads, owner = [0.0] * count, {}
    for file, seconds in sorted(seconds_of_files(tests, known).items(), key=lambda item: (-item[1], item[0])):
        least = loads.index(min(loads))
        owner[file], loads[least] = least, loads[least] + seconds
    return {test for test in tests if owner[file_of(test)] == shard - 1}


def addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=("fast", "rest", "all"), default="all", help="part of the suite (tests/tiers.py)")
    group.addoption("--turn", type=int, help="which cases the fast tier runs; default: by the commit")
    group.addoption("--shard", help="I/N: part I (from 1) of N parts that take equally long")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json after the run")


def turn_of_commit() -> int:
    """A number that changes with the commit; 0 without git or outside of a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(found.stdout[:8], 16) if found.returncode == 0 else 0


def configure(config: pytest.Config) -> None:
    turn = config.getoption("--turn")
    current.name = config.getoption("--tier")
    if current.name != "all":
        current.turn = turn_of_commit() if turn is None else turn
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "recorded-durations")


def modify(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = read()
    tests = [item.nodeid for item in items]
    kept = set(tests)
    if current.name != "all":
        fast = select(tests, current.turn, known) | {i.nodeid for i in items if i.get_closest_marker("whole")}
        kept = fast if current.name == "fast" else {t for t in kept - fast if has_turn(f"rest of {t}", current.turn)}
    if (shard := config.getoption("--shard")) is not None:
        which, _, count = shard.partition("/")
        if not (which.isdigit() and count.isdigit() and 1 <= int(which) <= int(count)):
            raise pytest.UsageError(f"--shard {shard}: expected I/N with 1 <= I <= N, for example 2/6")
        kept = sharded([test for test in tests if test in kept], int(which), int(count), known)
    left_out = [item for item in items if item.nodeid not in kept]
    seconds = seconds_of_files([test for test in tests if test in kept], known)
    # the longest file first, so that no process runs a long file alone at the end
    items[:] = sorted((item for item in items if item.nodeid in kept), key=lambda item: -seconds[file_of(item.nodeid)])
    if left_out:
        config.hook.pytest_deselected(items=left_out)


class Recorder:
    """Collects the durations of a run, and writes them at its end."""

    def __init__(self) -> None:
        self.calls: dict[str, list[float]] = defaultdict(list)
        self.setups: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.calls[function_of(report.nodeid)].append(report.duration)
        else:
            self.setups[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        write(self.added_to(read()), DURATIONS)

    def added_to(self, known: Durations) -> Durations:
        """The recorded durations, and the known ones of files that did not run."""
        made, ran = self.durations(), set(self.setups)
        made.fixtures |= {file: seconds for file, seconds in known.fixtures.items() if file not in ran}
        made.cases |= {name: seconds for name, seconds in known.cases.items() if file_of(name) not in ran}
        return made

    def durations(self) -> Durations:
        made = Durations()
        for function, seconds in sorted(self.calls.items()):
            if sum(seconds) > RECORDED:
                made.cases[function] = sum(seconds) / len(seconds)
        for file, spent in sorted(self.setups.items()):
            if spent > 1.0:
                made.fixtures[file] = spent
        return made


def write(found: Durations, path: Path) -> None:
    """One line for each file and function, so that changes are readable."""

    def rounded(table: Mapping[str, float], digits: int) -> dict[str, float]:
        return {name: round(seconds, digits) for name, seconds in sorted(table.items())}

    tables = {"fixtures": rounded(found.fixtures, 1), "cases": rounded(found.cases, 3)}
    path.write_text(json.dumps(tables, indent=1) + "\n")
