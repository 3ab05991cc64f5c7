"""The time of a program's steps, split by what spends it: guards, graphs, eager stretches, dispatch, the program around.

In: the engine's reports of calls and plans, in order (`call_watchers.py`).  Out: `StepTimes.totals()`, one dict for each
root: a compiled callable that the program calls itself.  A step of a root is the time from one of its calls to the next.
Steps during which something was compiled do not count.  The time of observers is left out.

Example: `{"root": 0, "steps": 9, "outside": 2.1e6, "before": {1: 4.0e5}, "guards": {0: 8.1e3, 1: 9.0e2}, ...}`, in
nanoseconds of 9 steps: nine times the median.  `before[1]` is the eager stretch before frame 1: the statement of the
graph break that frame 1 continues.  `before[0]` is the stretch before the end of frame 0, the root, if the end was
seen (`eager_operators.py`).  `operators` has the time of ATen's operators in each stretch, if they were
timed; `functions` that of functions under `disable`, such as custom operators.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PARTS = ("before", "guards", "graph", "dispatch")
ROWS = 2_000  # most rows of a step's timeline
REPORTS = 25  # reports of a calibration
RECENT = 101  # steps of a root of which the median is taken
ROOTS = 16  # most roots of a thread


class TimedPart(NamedTuple):
    """A part of a step.  `number`: of a frame; for the part "graph", of a graph."""

    part: str
    number: int
    nanoseconds: float


@dataclass
class Step:
    """The step of a root that has not ended."""

    parts: list[TimedPart] = field(default_factory=list)
    compiled: bool = False
    operators: dict[int, float] | None = None  # by frame, in the stretch before it, if they were timed
    functions: dict[int, float] = field(default_factory=dict)  # eager functions, in the stretch before a frame
    returned: bool = False  # the end of the root's call was seen

    def add(self, part: str, number: int, nanoseconds: float) -> None:
        self.parts.append(TimedPart(part, number, nanoseconds))

    def shares(self) -> dict[int, float]:
        """The share of operators in each stretch, by the frame after it.  To time them makes a stretch longer."""
        whole: dict[int, float] = {}
        for part, frame, spent in self.parts:
            if part == "before":
                whole[frame] = whole.get(frame, 0.0) + spent
        return {f: min(1.0, ns / whole[f]) for f, ns in (self.operators or {}).items() if whole.get(f)}


@dataclass
class Root:
    """The steps of a root that have ended: the latest of them by part.  `last`: the parts of the last one, in order."""

    number: int
    function: str
    calls: int = 0
    steps: int = 0
    recent: list[dict[tuple[str, int], float]] = field(default_factory=list)
    last: list[TimedPart] = field(default_factory=list)
    around: list[float] = field(default_factory=list)  # the program outside of a call, if the call's end was seen
    operators: list[dict[int, float]] = field(default_factory=list)  # shares of stretches
    functions: list[dict[int, float]] = field(default_factory=list)

    def end(self, step: Step) -> None:
        if step.compiled or not step.parts:
            return
        self.steps += 1
        if step.returned and step.operators is None:
            self.around.append(step.parts[-1].nanoseconds)
        if step.operators is not None:
            self.operators.append(step.shares())
        if step.returned or step.operators is not None:  # to watch them takes time
            return
        self.last = step.parts[:ROWS]
        sums: dict[tuple[str, int], float] = {}
        for part, number, spent in step.parts:
            sums[part, number] = sums.get((part, number), 0.0) + spent
        self.functions.append(step.functions)
        del self.functions[:-RECENT]
        self.recent.append(sums)
        del self.recent[:-RECENT]

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
            "last": [list(row) for row in self.last],
        }


def _medians(rows: list[dict[int, float]]) -> dict[int, float]:
    return {frame: statistics.median(row.get(frame, 0.0) for row in rows) for frame in {f for row in rows for f in row}}


class ThreadSteps:
    """The steps of one thread."""

    def __init__(self) -> None:
        self.since: float | None = None  # the end of the last report
        self.open: dict[int, Step] = {}  # by id of the root's function
        self.inside = False  # a function runs eagerly, and is part of the current stretch
        self.around = 0.0  # time around backward graphs since the last call


class StepTimes:
    """See the module.  Times are `time.perf_counter()`, in seconds."""

    def __init__(self) -> None:
        self.threads = threading.local()
        self.roots: dict[int, Root] = {}
        self.overhead = 0.0  # seconds of a report outside of `begin` and `end`
        self.end_overhead = 0.0  # seconds of the report of a call's end, after its end
        self.kept: dict[int, object] = {}  # keeps the ids of the roots' functions unique

    @property
    def state(self) -> ThreadSteps:
        found: ThreadSteps | None = getattr(self.threads, "state", None)
        if found is None:
            found = self.threads.state = ThreadSteps()
        return found

    def calibrate(self, report: Callable[[], tuple[float, float]]) -> None:
        """Measure the time of a report outside of its begin and end.  `report` makes a report, and returns both."""
        around = []
        for _ in range(REPORTS):
            start = time.perf_counter()
            begun, ended = report()
            around.append(time.perf_counter() - start - (ended - begun))
        self.overhead = max(0.0, statistics.median(around))

    def passed(self, at: float, otherwise: float = 0.0) -> float:
        """Nanoseconds that passed for the program since the last report."""
        since = self.state.since
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

    def compiling(self) -> None:
        """Something is compiled in this thread: its open steps do not count."""
        for step in self.state.open.values():
            step.compiled = True
        self.state.around = 0.0

    def call(self, at: float, function: Any, name: str, frame: int, is_root: bool, guards: float) -> Root | None:
        """An entry's guards hold, and the entry will run.  guards: nanoseconds of their check.

        Returns the root if its number of steps has just become a power of two.
        """
        state = self.state
        inside = max(0.0, self.passed(at) - guards)
        passed = max(0.0, inside + state.around)
        if state.inside:
            for step in state.open.values():
                step.functions[frame] = step.functions.get(frame, 0.0) + inside
        state.around, state.inside = 0.0, False
        ended = None
        for step in state.open.values():
            step.add("outside" if is_root else "before", -1 if is_root else frame, passed)
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
        if (step := state.open.get(key)) is not None:
            root.end(step)
        state.open[key] = Step()
        return root if root.steps > before and root.steps & (root.steps - 1) == 0 else None

    def plan(self, at: float, graph: int, is_backward: bool, spent: float) -> None:
        """A graph has run; spent: nanoseconds of its steps."""
        state = self.state
        rest = max(0.0, self.passed(at, spent) - spent)
        for step in state.open.values():
            step.add("graph", graph, spent)
            if not is_backward:
                step.add("dispatch", graph, rest)
        if is_backward:  # autograd around it: part of the eager stretch, or of the program outside
            state.around += rest

    def eager_call(self, at: float) -> None:
        """A function under `disable`, such as a custom operator's, runs eagerly as a part of the stretch around it."""
        self.state.around += self.passed(at)
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
            step.add("before", frame, self.passed(at) + state.around)
        state.around = -1e9 * self.end_overhead

    def totals(self) -> list[dict[str, Any]]:
        return [root.totals() for root in list(self.roots.values()) if root.steps]
