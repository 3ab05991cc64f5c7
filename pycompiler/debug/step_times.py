"""The time of a program's steps, split by what spends it: guards, graphs, eager stretches, dispatch, the program around.

In: the engine's reports of calls and plans, in order (`call_watchers.py`).  Out: `StepTimes.totals()`, one dict for each
root: a compiled callable that the program calls itself.  A step of a root is the time from one of its calls to the next.
Steps during which something was compiled do not count.  The time of observers is left out.

Example: `{"root": 0, "steps": 9, "outside": 2.1e6, "before": {1: 4.0e5}, "guards": {0: 8.1e3, 1: 9.0e2}, ...}`, in
nanoseconds of 9 steps: nine times the median.

- `before[1]`: the eager stretch before frame 1, which is the statement of the graph break that frame 1 continues.
  `before[0]`: the stretch before the end of frame 0, the root, if the end was seen (`eager_operators.py`).
- `operators`: the time of ATen's operators in each stretch, if they were timed; `functions`: that of functions under
  `disable`, such as custom operators.
- `last`: the parts of the last step in order; `inner`: for each graph in `last` the nanoseconds of its kernels and ATen
  calls; `device`: see `device_times.py`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pycompiler.debug.device_times import MEASURED, DeviceRecorder, Row, StepClock

PARTS = ("before", "guards", "graph", "dispatch")
ROWS = 2_000  # most rows of a step's timeline
INNER = 20_000  # most kernels and ATen calls of it
REPORTS = 25  # reports of a calibration
RECENT = 101  # steps of a root of which the median is taken
ROOTS = 16  # most roots of a thread


class TimedPart(NamedTuple):
    """A part of a step.  `number`: of a frame; for the part "graph", of a graph.  `inner`: times of a graph's steps."""

    part: str
    number: int
    nanoseconds: float
    inner: Sequence[float] = ()


@dataclass
class Step:
    """The step of a root that has not ended.  `clock`: of a step during which the device is recorded."""

    parts: list[TimedPart] = field(default_factory=list)
    compiled: bool = False
    clock: StepClock | None = None
    around: list[int] = field(default_factory=list)  # positions of stretches before backward graphs
    total: float = 0.0  # nanoseconds of all parts
    operators: dict[int, float] | None = None  # by frame, in the stretch before it, if they were timed
    functions: dict[int, float] = field(default_factory=dict)  # eager functions, in the stretch before a frame
    returned: bool = False  # the end of the root's call was seen

    def add(self, part: str, number: int, nanoseconds: float, inner: Sequence[float] = ()) -> None:
        self.parts.append(TimedPart(part, number, nanoseconds, inner))
        self.total += nanoseconds

    def add_around(self, nanoseconds: float) -> None:
        """Autograd before a backward graph: a part of the stretch that the next call ends."""
        self.around.append(len(self.parts))
        self.add("outside", -1, nanoseconds)

    def call(self, part: str, number: int, nanoseconds: float) -> None:
        """A call ends a stretch of the program."""
        for position in self.around:
            self.parts[position] = TimedPart(part, number, self.parts[position].nanoseconds)
        self.around.clear()
        self.add(part, number, nanoseconds)

    def shares(self) -> dict[int, float]:
        """The share of operators in each stretch, by the frame after it.  To time them makes a stretch longer."""
        whole: dict[int, float] = {}
        for row in self.parts:
            if row.part == "before":
                whole[row.number] = whole.get(row.number, 0.0) + row.nanoseconds
        return {f: min(1.0, ns / whole[f]) for f, ns in (self.operators or {}).items() if whole.get(f)}

    def reported(self, at: float) -> None:
        """A report has ended."""
        if self.clock is not None:
            self.clock.add(at, self.total)


@dataclass
class Root:
    """The steps of a root that have ended: the latest of them by part.  `last`: the parts of the last one, in order.

    Once a step has been recorded with its `device` rows, that step stays the last one.  The medians do not include it,
    since the profiler takes time.
    """

    number: int
    function: str
    calls: int = 0
    steps: int = 0
    recent: list[dict[tuple[str, int], float]] = field(default_factory=list)
    last: list[TimedPart] = field(default_factory=list)
    device: list[Row] | None = None
    around: list[float] = field(default_factory=list)  # the program outside of a call, if the call's end was seen
    operators: list[dict[int, float]] = field(default_factory=list)  # shares of stretches
    functions: list[dict[int, float]] = field(default_factory=list)

    def end(self, step: Step) -> None:
        if step.compiled or not step.parts:
            return
        self.steps += 1
        if step.returned and step.operators is None:
            self.around.append(sum(row.nanoseconds for row in step.parts if row.part == "outside"))
        if step.operators is not None:
            self.operators.append(step.shares())
        if step.returned or step.operators is not None:  # to watch them takes time
            return
        if self.device is None:
            self.last = step.parts[:ROWS]
        sums: dict[tuple[str, int], float] = {}
        for part, number, spent, _ in step.parts:
            sums[part, number] = sums.get((part, number), 0.0) + spent
        self.functions.append(step.functions)
        del self.functions[:-RECENT]
        self.recent.append(sums)
        del self.recent[:-RECENT]

    def end_recorded(self, step: Step, device: list[Row] | None) -> None:
        if device is not None and not step.compiled and step.parts:
            self.last, self.device = step.parts[:ROWS], device

    def inner(self) -> list[list[float]]:
        """For each graph of the last step the times of its kernels and ATen calls."""
        found: list[list[float]] = []
        for row in self.last:
            if row.part == "graph":
                fits = sum(map(len, found)) + len(row.inner) <= INNER
                found.append([round(ns) for ns in row.inner] if fits else [])
        return found

    def totals(self) -> dict[str, Any]:
        """Nanoseconds of all steps: the median of each part, times the number of steps.  A mean would have other
        processes' work in it."""
        parts: dict[str, Any] = {name: {} for name in (*PARTS, "outside")}
        for part, number in {key for sums in self.recent for key in sums}:
            spent = statistics.median(sums.get((part, number), 0.0) for sums in self.recent)
            parts[part][number] = round(spent * self.steps, 1)
        outside = sum(parts.pop("outside").values())
        operators: dict[int, float] = {}
        if self.around:
            around = min(outside, statistics.median(self.around) * self.steps)
            parts["before"][self.number] = round(outside - around, 1)
            outside = around
        for frame, share in _medians(self.operators).items():
            operators[frame] = round(share * parts["before"].get(frame, 0.0), 1)
        return {
            "root": self.number,
            "function": self.function,
            "calls": self.calls,
            "steps": self.steps,
            "outside": outside,
            **parts,
            "operators": operators,
            "functions": {frame: round(spent * self.steps, 1) for frame, spent in _medians(self.functions).items()},
            "last": [[row.part, row.number, row.nanoseconds] for row in self.last],
            "inner": self.inner(),
            "device": self.device,
        }


def _medians(rows: list[dict[int, float]]) -> dict[int, float]:
    return {frame: statistics.median(row.get(frame, 0.0) for row in rows) for frame in {f for row in rows for f in row}}


class ThreadSteps:
    """The steps of one thread."""

    def __init__(self) -> None:
        self.since: float | None = None  # the end of the last report
        self.open: dict[int, Step] = {}  # by id of the root's function
        self.inside = False  # a function runs eagerly, and is part of the current stretch
        self.watched = 0.0  # nanoseconds of a trace function in the current stretch


class StepTimes:
    """See the module.  Times are `time.perf_counter()`, in seconds."""

    def __init__(self, device: DeviceRecorder | None = None) -> None:
        self.threads = threading.local()
        self.states: list[ThreadSteps] = []  # of all threads
        self.device = device
        self.roots: dict[int, Root] = {}
        self.overhead = 0.0  # seconds of a report outside of `begin` and `end`
        self.end_overhead = 0.0  # seconds of the report of a call's end, after its end
        self.kept: dict[int, object] = {}  # keeps the ids of the roots' functions unique

    @property
    def state(self) -> ThreadSteps:
        found: ThreadSteps | None = getattr(self.threads, "state", None)
        if found is None:
            found = self.threads.state = ThreadSteps()
            self.states.append(found)
        return found

    def waiting(self) -> ThreadSteps:
        """The state of the thread that waits for a backward graph: autograd runs graphs of a GPU in a thread of its own."""
        if self.state.open:
            return self.state
        others = [state for state in self.states if state.open]
        return others[0] if len(others) == 1 else self.state

    def calibrate(self, report: Callable[[], tuple[float, float]]) -> None:
        """Measure the time of a report outside of its begin and end.  `report` makes a report, and returns both."""
        around = []
        for _ in range(REPORTS):
            start = time.perf_counter()
            begun, ended = report()
            around.append(time.perf_counter() - start - (ended - begun))
        self.overhead = max(0.0, statistics.median(around))

    def passed(self, at: float, state: ThreadSteps, otherwise: float = 0.0) -> float:
        """Nanoseconds that passed for the program since the last report."""
        since = state.since
        return otherwise if since is None else max(0.0, at - since - self.overhead) * 1e9

    def begin(self) -> float:
        """A report begins; returns the time."""
        return time.perf_counter()

    def end(self) -> None:
        """A report is over: time passes for the program again."""
        self.over(self.state, time.perf_counter())

    def over(self, state: ThreadSteps, at: float) -> None:
        """A report of a thread was over at that time."""
        state.since = at
        for step in state.open.values():
            step.reported(at)

    def compiling(self) -> None:
        """Something is compiled in this thread: its open steps do not count."""
        for step in self.state.open.values():
            step.compiled = True

    def call(self, at: float, function: Any, name: str, frame: int, is_root: bool, guards: float) -> Root | None:
        """An entry's guards hold, and the entry will run.  guards: nanoseconds of their check.

        Returns the root if its number of steps has just become a power of two.
        """
        state = self.state
        passed = max(0.0, self.passed(at, state) - guards)
        if state.inside:
            for step in state.open.values():
                step.functions[frame] = step.functions.get(frame, 0.0) + passed
        passed = max(0.0, passed - state.watched)
        state.watched, state.inside = 0.0, False
        ended = None
        for step in state.open.values():
            step.call("outside" if is_root else "before", -1 if is_root else frame, passed)
        if is_root:
            ended = self.next_step(function, name, frame)
        for step in state.open.values():
            step.add("guards", frame, guards)
        return ended

    def next_step(self, function: Any, name: str, frame: int) -> Root | None:
        key, state = id(function), self.state
        root = self.roots.get(key)
        if root is None:
            if len(self.roots) >= ROOTS:
                return None
            root = self.roots[key] = Root(frame, name)
            self.kept[key] = function
        before, root.calls = root.steps, root.calls + 1
        if (step := state.open.pop(key, None)) is not None:
            if step.clock is None or self.device is None:
                root.end(step)
            else:
                root.end_recorded(step, self.device.end(step.clock))
        state.open[key] = made = Step()
        if self.device and root.device is None and root.steps >= MEASURED and self.device.begin():
            made.clock = StepClock()
        return root if root.steps > before and root.steps & (root.steps - 1) == 0 else None

    def plan(self, at: float, graph: int, is_backward: bool, spent: float, inner: Sequence[float] = ()) -> None:
        """A graph has run; spent: nanoseconds of it; inner: of its kernels and ATen calls."""
        state = self.waiting() if is_backward else self.state
        rest = max(0.0, self.passed(at, state, spent) - spent)
        for step in state.open.values():
            if is_backward:
                step.add_around(rest)
            step.add("graph", graph, spent, inner)
            if not is_backward:
                step.add("dispatch", graph, rest)
        if state is not self.state:
            self.over(state, time.perf_counter())

    def eager_call(self, at: float) -> None:
        """A function under `disable`, such as a custom operator's, runs eagerly as a part of the stretch around it."""
        passed = self.passed(at, self.state)
        for step in self.state.open.values():
            step.add_around(passed)
        self.state.inside = True

    def operators(self, spent: dict[int, float]) -> None:
        """Nanoseconds of operators in the step that ends, by the frame after their stretch."""
        for step in self.state.open.values():
            step.operators = spent

    def returned(self, at: float, frame: int) -> None:
        """The call of a root is over."""
        state = self.state
        for step in state.open.values():
            step.returned = True
            step.call("before", frame, self.passed(at, state))
        state.watched, state.inside = 1e9 * self.end_overhead, False

    def stop(self) -> None:
        if self.device is not None:
            self.device.cancel()

    def totals(self) -> list[dict[str, Any]]:
        return [root.totals() for root in list(self.roots.values()) if root.steps]
