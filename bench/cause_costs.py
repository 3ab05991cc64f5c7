"""The cost of a cause in a report, beside the time that the program takes less when its advice is followed.

`python bench/cause_costs.py [NAME ...] [--repeats 5] [--steps 200] [--page docs/measured.md]` prints a table of the twelve
programs of `tests/debug/cause_programs.py` with the native backend, one thread, and empty caches.

- Reported: the cost of the first card: of steps under the recorder, in turns with the measured steps; seconds of compiles
  of a run of `--steps` steps.
- Measured, without the recorder.  For a graph break: the difference of a step between both programs, whose steps run in
  turns in one process.  For recompiles: the difference of the first steps after the first call, which compile again,
  divided by the number of steps.

Each run is a child process; freed memory stays in the process.  Figures are medians of the repeats; the range is that of
the ratios of all repeats.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import torch  # noqa: E402
from results import show_time  # noqa: E402

import pycompiler  # noqa: E402
from pycompiler import _native, config  # noqa: E402
from pycompiler.debug import step_times  # noqa: E402
from pycompiler.debug.call_watchers import notify  # noqa: E402
from pycompiler.debug.document import Document  # noqa: E402
from pycompiler.debug.events import Recorder  # noqa: E402
from tests.debug.cause_programs import PROGRAMS, CauseProgram, Step  # noqa: E402

SIZES = {"16 KB": 4_096, "1 MB": 262_144}
SMALL = (
    "branch",
    "unhashable",
    "custom operator",
)  # cost a few microseconds at any size: less than a large step varies
FIRST = 12  # steps until nothing is compiled any more
ROUNDS, LONGEST = 101, 3.0  # turns of two programs: most, and most seconds
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
BEGIN, END = "<!-- cause costs: begin -->", "<!-- cause costs: end -->"
step_times.RECENT = ROUNDS * FIRST  # steps under the recorder, in turns with those without it
compile = functools.partial(pycompiler.compile, backend="native")


def timed(step: Step, k: int) -> float:
    start = time.perf_counter()
    step(k)
    return time.perf_counter() - start


def first_steps(program: CauseProgram, size: int, caused: bool) -> list[float]:
    """Seconds of each of the first steps."""
    step = (program.caused if caused else program.advised)(compile, size)
    return [timed(step, k) for k in range(FIRST)]


def in_turns(program: CauseProgram, size: int) -> tuple[float, float, dict[str, float]]:
    """Seconds of a step with the cause, and with the advice followed; the parts of the cost in steps under the recorder."""
    advised = program.advised(compile, size)
    warm(advised)
    events: list[Any] = []
    with Recorder(events.append, costs=True):
        caused = program.caused(compile, size)
        warm(caused)
        times: list[list[float]] = [[], []]
        end = time.perf_counter() + LONGEST
        while time.perf_counter() < end and len(times[0]) < ROUNDS * FIRST:
            _native.set_watcher(None)
            for found, step in zip(times, (caused, advised), strict=True):
                step(FIRST)
                found.extend(timed(step, k) for k in range(FIRST, 2 * FIRST))
            _native.set_watcher(notify)
            for k in range(FIRST, 2 * FIRST):
                caused(k)
    return statistics.median(times[0]), statistics.median(times[1]), cost_in(events)


def warm(step: Step) -> None:
    for k in range(3 * FIRST):
        step(k)


def cost_in(events: list[Any]) -> dict[str, float]:
    """Seconds of each part of the first card's cost."""
    cause = Document.of(events).data["causes"][0]
    assert cause["cost"], cause
    return {part: ns / 1e9 for part, ns in cause["cost"].items()}


def reported(program: CauseProgram, size: int, steps: int) -> dict[str, float]:
    """The parts of the cost in a run under the recorder."""
    events: list[Any] = []
    with Recorder(events.append, costs=True):
        step = program.caused(compile, size)
        for k in range(steps):
            step(k)
    return cost_in(events)


def in_child(work: Callable[[], Any]) -> Any:
    """The result of `work` in a child process with empty caches, whose output is dropped."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reads)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            torch.set_num_threads(1)
            assert all(ctypes.CDLL(None).mallopt(option, 2**25) for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD))
            with tempfile.TemporaryDirectory() as path, config.patch(cache_dir=os.path.join(path, "cache")):
                text = json.dumps(work())
            with os.fdopen(writes, "w") as file:
                file.write(text)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads) as file:
        text = file.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a run failed")
    return json.loads(text)


def measured(caused: float, advised: float, compiles: float, parts: dict[str, float]) -> float:
    """Seconds of a step: of compiles if they are the only part of the reported cost, otherwise of all."""
    return compiles if parts["compiles"] == sum(parts.values()) > 0 else caused - advised + compiles


@dataclass
class Row:
    """Medians in seconds of a step; `parts` of the reported cost; `ratios` of all repeats."""

    name: str
    size: str
    caused: float
    advised: float
    compiles: float
    parts: dict[str, float]
    ratios: list[float]

    @property
    def measured(self) -> float:
        return measured(self.caused, self.advised, self.compiles, self.parts)

    @property
    def reported(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {show_time(s)}" for part, s in self.parts.items() if s > 1e-8)
        steady = f"{show_time(self.caused)} → {show_time(self.advised)}"
        compiles = show_time(self.compiles) if abs(self.compiles) > 2e-6 and "compiles" in parts else "–"
        return (
            f"| {self.name} | {self.size} | {steady} | {compiles} | {_signed(self.measured)} | {show_time(self.reported)} "
            f"| {self.reported / self.measured:.2f} | {min(self.ratios):.2f} – {max(self.ratios):.2f} | {parts} |"
        )


HEAD = """| program | tensors | a step: with the cause → advised | compiles / steps | measured cost | reported cost | ratio | range | parts reported |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501


def _signed(seconds: float) -> str:
    return f"−{show_time(-seconds)}" if seconds < 0 else show_time(seconds)


def row_of(name: str, size: str, repeats: int, steps: int) -> Row:
    program, elements = PROGRAMS[name], SIZES[size]
    found: list[tuple[float, float, float, dict[str, float]]] = []
    firsts: list[list[list[float]]] = []  # of each repeat, with the cause and with the advice followed
    for _ in range(repeats):
        a, b, parts = in_child(lambda: in_turns(program, elements))
        again = 0.0
        if parts["compiles"]:
            firsts.append([in_child(lambda: first_steps(program, elements, caused)) for caused in (True, False)])
            again = again_of(firsts[-1], a, b) / steps
            parts["compiles"] = in_child(lambda: reported(program, elements, steps))["compiles"]
        found.append((a, b, again, parts))
    ratios = [sum(row[3].values()) / measured(*row) for row in found]
    a, b = (statistics.median(row[i] for row in found) for i in (0, 1))
    again = (
        again_of([[statistics.median(k) for k in zip(*runs)] for runs in zip(*firsts)], a, b) / steps if firsts else 0.0
    )
    whole = {part: statistics.median(row[3][part] for row in found) for part in found[0][3]}
    return Row(name, size, a, b, again, whole, ratios)


def again_of(firsts: list[list[float]], caused: float, advised: float) -> float:
    """Seconds of compiles that one program has more than the other after its first call."""
    more = [sum(first[1:]) - (FIRST - 1) * plain for first, plain in zip(firsts, (caused, advised), strict=True)]
    return more[0] - more[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="number of steps of a run under the recorder")
    parser.add_argument("--page", type=Path, help="also write the table between the marks of this file")
    options = parser.parse_args()
    lines = [HEAD]
    print(HEAD, flush=True)
    for name in options.names or PROGRAMS:
        for size in SIZES if name not in SMALL else ("16 KB",):
            lines.append(str(row_of(name, size, options.repeats, options.steps)))
            print(lines[-1], flush=True)
    if options.page:
        before, _, rest = options.page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        options.page.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]))


if __name__ == "__main__":
    main()
