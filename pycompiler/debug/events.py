"""Events of compiles and calls, as a stream of plain data.

In: `with Recorder(take): ...`.  Out: `take(event)` for each event, a dict of `EVENTS`, in the thread of the event.
Traces write events to a file at once; reports collect them (`debug/document.py`).
With `costs`, calls are observed too: guards of an entry are measured at its first calls, and the steps of every plan
are timed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler import _native, config
from pycompiler._native import CompiledFunction
from pycompiler.debug import describe
from pycompiler.debug.call_watchers import notify, watching
from pycompiler.debug.describe import Data
from pycompiler.debug.device_times import DeviceRecorder
from pycompiler.debug.eager_operators import ENDS, OPERATORS, CallEnd, OperatorTimes, end_overhead, may_watch
from pycompiler.debug.entry_memory import memory_of_entry
from pycompiler.debug.step_times import Root, StepTimes, ThreadSteps
from pycompiler.ir import compile_names, phases
from pycompiler.ir.guards import Guard
from pycompiler.ir.plan import Plan
from pycompiler.pipeline.records import GraphRecord

# Every event has `event`, `at` (seconds since the epoch), `thread`, and the `id` and `title` of a compile
# (`ir/compile_names.py`).
EVENTS: dict[str, str] = {
    "start": "once: versions, the program, its process",
    "phase": "a phase of a compile is over: name, start, seconds, model, graph",
    "frame": "`describe.frame`, with its number, and the numbers of the models that its graph became",
    "graph": "`describe.graph`, with its number, model, kind and phases",
    "hint": "`describe.hint`: an operator that is left to ATen, with the number of its graph",
    "recompile": "`describe.recompile`",
    "eager": "`describe.eager`: calls of a frame run eagerly",
    "entry": "guards of a frame: nanoseconds of a check, of all guards, of each; what the entry holds",
    "calls": "of a graph: calls, and the nanoseconds of each step, least and in sum; again as calls grow in number",
    "steps": "of a root: `step_times.Root.totals`; again as steps grow in number",
    "end": "of a program in a child: its exit status, the signal that ended it",
}
MEASURED = 3  # calls of an entry at which its guards are measured
FIRST, WAITING = 16, 128  # reports of a thread that are handled at once, and most reports that wait later


def start() -> Data:
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
    return {"pycompiler": _native.__version__, "torch": torch.__version__, "python": sys.version.split()[0],
            "machine": machine, "program": " ".join(sys.argv), "pid": os.getpid()}  # fmt: skip


def event_of(event: str, /, **data: Any) -> Data:
    return {"event": event, "at": time.time(), "thread": threading.get_native_id(), **data}


@dataclass
class CompilingGraph:
    """An ATen graph that is being compiled."""

    number: int
    kind: str
    made: dict[str, Any] = field(default_factory=dict)
    unfused: list[tuple[str, ...]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)


@dataclass
class Times:
    """Times of the plan of a graph.  The plan is kept alive, so that its address stays unique."""

    plan: Plan
    graph: int
    parts: list[int]
    calls: int = 0
    least: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    rest: float = 0.0

    def add(self, steps: Sequence[float], rest: float) -> None:
        """Nanoseconds of each step of the schedule in a call, and of the rest."""
        self.calls += 1
        self.rest += rest
        self.least = [min(p) for p in zip(self.least, steps, strict=False)] or list(steps)
        self.total = [sum(p) for p in zip(self.total, steps, strict=False)] or list(steps)


class _Reports:
    """Reports of the engine in one thread that wait: begin, kind, values and end of each.  At most half of all wait."""

    def __init__(self, steps: ThreadSteps) -> None:
        self.thread = threading.current_thread()
        self.steps = steps
        self.rows: list[tuple[float, str, tuple[Any, ...], float]] = []
        self.handled = 0
        self.is_calibration = False
        self.operators: OperatorTimes | None = None  # of the current call, if they are timed

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= min(self.handled - FIRST, WAITING)


class _EventState(threading.local):
    """The models and graphs that a thread compiles, the innermost last."""

    def __init__(self) -> None:
        self.reports: _Reports | None = None
        self.recent: list[int] = []  # models since the last frame: models of the next frame
        self.models: list[int] = []
        self.graphs: list[CompilingGraph] = []
        self.begun: list[float] = []  # start times of the open phases


class Recorder(phases.Observer):
    """See the module.  device: with `costs`, the GPU's work in one step of each root is recorded."""

    wanted = phases.COSTLY

    def __init__(self, take: Callable[[Data], None], *, costs: bool = False, device: bool = True) -> None:
        self.take = take
        self.costs = costs
        self.state = _EventState()
        self.frame_numbers, self.graph_numbers = itertools.count(), itertools.count()
        self.guards: dict[int, tuple[int, int, Guard]] = {}  # id → frame, position, the guard itself
        # id of an entry's guards → number of measurements, the guards themselves
        self.measured: dict[int, tuple[int, Any]] = {}
        self.costs_of: dict[int, float] = {}  # id of an entry's guards → least nanoseconds of a check
        self.called: set[int] = set()  # frames that resume, or that a graph break calls: not roots
        self.broken: set[int] = set()  # roots with a graph break
        self.calls_of: dict[int, int] = {}  # id of the guards of such a root -> calls
        self.steps = StepTimes(DeviceRecorder() if costs and device else None)
        self.known: set[int] = set()  # models
        self.times: dict[int, Times] = {}  # by id of a plan
        self.kinds: dict[int, str] = {}  # of graphs
        self.reports: list[_Reports] = []  # of all threads
        self.open = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        self.event("start", **start())
        phases.observers.append(self)
        if self.costs:
            self.open.enter_context(watching(self.call))
            self.steps.calibrate(self.empty_report)
            if may_watch():
                self.steps.end_overhead = end_overhead()
        return self

    def __exit__(self, *exc: object) -> None:
        self.open.close()
        self.steps.stop()
        phases.observers.remove(self)
        self.tell_calls()

    def tell_calls(self) -> None:
        self.handle_all()
        for found in self.times.values():
            self.tell_times(found)
        for totals in self.steps.totals():
            self.event("steps", **totals)

    def tell_times(self, found: Times) -> None:
        if found.calls:
            least, total = ([round(ns, 1) for ns in times] for times in (found.least, found.total))
            self.event("calls", graph=found.graph, calls=found.calls, least=least, total=total, rest=found.rest)

    def event(self, event: str, /, **data: Any) -> None:
        title = compile_names.current()
        self.take(event_of(event, id=title.id if title else None, title=title.name if title else None, **data))

    @contextlib.contextmanager
    def safely(self, what: str) -> Iterator[None]:
        """Context manager: an error of the report does not affect the program."""
        try:
            yield
        except Exception as error:
            config.say_once(f"report: {what} is not recorded: {type(error).__name__}: {error}")

    # compiles -----------------------------------------------------------------------------------------------------
    def begin(self, phase: str) -> None:
        self.state.begun.append(time.time())
        if self.state.reports is not None:
            self.handle(self.state.reports)
        self.steps.compiling()
        if phase == "compile":
            self.state.recent.clear()

    def end(self, phase: str, seconds: float) -> None:
        state = self.state
        start = state.begun.pop() if state.begun else time.time() - seconds
        if state.graphs:
            phases = state.graphs[-1].phases
            phases[phase] = phases.get(phase, 0.0) + seconds
        self.event("phase", name=phase, start=start, seconds=seconds,
                   model=state.models[-1] if state.models else None,
                   graph=state.graphs[-1].number if state.graphs else None)  # fmt: skip

    @contextlib.contextmanager
    def model(self, number: int) -> Iterator[None]:
        if number not in self.known:  # a known model: its backward is compiled
            self.known.add(number)
            self.state.recent.append(number)
        self.state.models.append(number)
        try:
            yield
        finally:
            self.state.models.pop()

    @contextlib.contextmanager
    def graph(self, kind: str) -> Iterator[None]:
        made = CompilingGraph(next(self.graph_numbers), kind)
        self.state.graphs.append(made)
        try:
            yield
        finally:
            self.state.graphs.pop()
            if "fx_graph" in made.made:
                self.graph_made(made)

    def graph_made(self, made: CompilingGraph) -> None:
        with self.safely("a graph"):
            self.event("graph", number=made.number, model=self.state.models[-1] if self.state.models else None,
                       kind=made.kind, phases=made.phases, **describe.graph(made.made, made.unfused))  # fmt: skip

    def artefact(self, name: str, value: Any) -> None:
        with self.safely(name):
            self.made(name, value)

    def made(self, name: str, value: Any) -> None:
        graph = self.state.graphs[-1] if self.state.graphs else None
        if name == "frame":
            self.frame(value)
        elif name == "recompile":
            self.event("recompile", **describe.recompile(value))
        elif name == "eager":
            self.event("eager", **describe.eager(value))
        elif name == "hint":
            self.event("hint", graph=graph.number if graph else None, **describe.hint(*value))
        elif graph is not None and name == "unfused":
            graph.unfused.append(value)
        elif graph is not None:
            graph.made[name] = value
            if name == "program":
                graph.unfused.clear()  # the graph is scheduled anew
            if name == "plan" and self.costs:
                plan = value[0]
                self.kinds[graph.number] = graph.kind
                self.times[id(plan)] = Times(plan, graph.number, describe.parts(graph.made["schedule"]))

    def frame(self, record: GraphRecord) -> None:
        number = next(self.frame_numbers)
        models, self.state.recent = self.state.recent, []
        if self.costs:
            self.guards.update((id(g), (number, i, g)) for i, g in enumerate(record.guards))
            if record.hooked or compile_names.RESUMED.search(record.code.co_qualname):
                self.called.add(number)
            elif record.broke is not None:
                self.broken.add(number)
        self.event("frame", number=number, models=models, **describe.frame(record))

    # calls --------------------------------------------------------------------------------------------------------
    def call(self, kind: str, *told: Any) -> Any:
        """The engine's watcher (`_native.set_watcher`).

        A report waits.  Handling it between two parts of a step would slow down the next part, whose code and data
        would leave the processor's caches.  Reports of the first calls of an entry are handled at once.
        """
        at = self.steps.begin()
        reports = self.state.reports or self.reports_of_thread()
        calls = self.count_call(told[1]) if kind == "call" else 0
        waits = kind == "plan" or (kind == "call" and self.is_measured(told[1]) and calls not in OPERATORS)
        waits = waits and (reports.is_calibration or not self.records_device())
        try:
            if waits and reports.operators is None and not reports.is_full:
                reports.rows.append((at, kind, told, time.perf_counter()))
                return None
            return self.take_report(reports, at, kind, told)
        finally:
            if calls and may_watch():
                self.watch_call(reports, calls, *told)

    def records_device(self) -> bool:
        """Whether steps of a GPU are recorded.  A recording begins at its call, so that no report waits."""
        return self.steps.device is not None and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]

    def take_report(self, reports: _Reports, at: float, kind: str, told: tuple[Any, ...]) -> Any:
        operators = reports.operators
        if kind == "call" and self.runs_eagerly(told[1]):
            operators = None  # the stretch goes on
        elif kind == "call" and id(told[1]) in self.calls_of:  # the next step begins
            self.end_operators(reports)
            operators = None
        try:
            self.handle(reports)
            reports.handled += 1
            if operators is not None and kind == "call":
                operators.stretch(self.frame_of(told[1]), at)
            return self.report(at, kind, told)
        finally:
            self.steps.end()
            if operators is not None:
                operators.since = time.perf_counter()

    def end_operators(self, reports: _Reports) -> None:
        if reports.operators is not None:
            operators, reports.operators = reports.operators, None
            self.steps.operators(operators.end())

    def count_call(self, guards: tuple[Guard, ...]) -> int:
        """The number of this call of a root with a graph break, if it is watched (`eager_operators.py`); otherwise 0."""
        calls = self.calls_of.get(id(guards))
        if calls is None:
            return 0
        self.calls_of[id(guards)] = calls + 1
        return calls + 1 if calls + 1 in OPERATORS or calls + 1 in ENDS else 0

    def watch_call(self, reports: _Reports, calls: int, function: CompiledFunction, guards: tuple[Guard, ...]) -> None:
        frame, root = self.frame_of(guards), self.steps.roots.get(id(function))

        def over(at: float) -> None:
            if reports.operators is not None:
                reports.operators.stretch(frame, at)
            reports.rows.append((at, "end", (frame,), time.perf_counter()))

        with self.safely("the end of a call"):
            if calls in OPERATORS:
                reports.operators = OperatorTimes()
            # A frame that a resume function continues may return before that function runs.
            if root is not None and not any(row.part == "before" for row in root.last):
                CallEnd(function.fn.__code__, over)

    @staticmethod
    def runs_eagerly(guards: tuple[Guard, ...]) -> bool:
        """Whether an entry has no guards, and calls the original function, such as a function under `disable`."""
        return not guards

    def is_measured(self, guards: tuple[Guard, ...]) -> bool:
        return self.measured.get(id(guards), (0, None))[0] >= MEASURED

    def report(self, at: float, kind: str, told: tuple[Any, ...]) -> Any:
        with self.safely("the cost of a call"):
            return getattr(self, CALLS[kind])(at, *told)

    def handle(self, reports: _Reports) -> None:
        """Handle the reports of this thread that wait."""
        rows, reports.rows = reports.rows, []
        for at, kind, told, end in rows:
            self.report(at, kind, told)
            self.steps.over(self.steps.state, end)
        reports.handled += len(rows)

    def handle_all(self) -> None:
        """Handle the reports of all threads that wait."""
        if self.state.reports is not None:
            self.end_operators(self.state.reports)
        own = self.steps.state
        for reports in list(self.reports):
            self.steps.threads.state = reports.steps
            self.handle(reports)
        self.steps.threads.state = own

    def reports_of_thread(self) -> _Reports:
        if any(not reports.thread.is_alive() for reports in self.reports):
            self.handle_all()
            self.reports = [reports for reports in self.reports if reports.thread.is_alive()]
        made = self.state.reports = _Reports(self.steps.state)
        self.reports.append(made)
        return made

    def empty_report(self) -> tuple[float, float]:
        """Begin and end of a report that waits, and records nothing."""
        reports = self.state.reports or self.reports_of_thread()
        reports.handled, reports.is_calibration = FIRST + WAITING, True
        notify("plan", None, ())
        at, _, _, end = reports.rows.pop()
        reports.handled, reports.is_calibration = 0, False
        return at, end

    def plan_ran(self, at: float, plan: Plan, each: Sequence[float]) -> None:
        found = self.times.get(id(plan))
        if found is None:
            self.steps.plan(at, -1, False, sum(each))
        else:
            steps, rest = describe.step_times(plan, each, found.parts)
            self.steps.plan(at, found.graph, self.kinds.get(found.graph) == "backward", sum(each), steps)
            found.add(steps, rest)
            # at powers of two, since the program may be killed before its end
            if found.calls & (found.calls - 1) == 0:
                self.tell_times(found)

    def entry_fits(self, at: float, function: CompiledFunction, guards: tuple[Guard, ...]) -> bool:
        """Returns whether the entry's guards are measured in this call."""
        key = id(guards)
        count, _ = self.measured.get(key, (0, None))
        self.measured[key] = count + 1, guards
        frame = self.frame_of(guards)
        if self.runs_eagerly(guards):
            self.steps.eager_call(at)
            return False
        if frame in self.broken and count < MEASURED:  # later calls are counted by `count_call`
            self.calls_of[key] = count + 1
        is_root = frame not in self.called if frame >= 0 else not compile_names.RESUMED.search(function.name)
        ended = self.steps.call(at, function, function.name, frame, is_root, self.costs_of.get(key, 0.0))
        if ended is not None:
            self.tell_steps(ended)
        return count < MEASURED

    def call_ended(self, at: float, frame: int) -> None:
        self.steps.returned(at, frame)

    def tell_steps(self, root: Root) -> None:
        self.event("steps", **root.totals())

    def frame_of(self, guards: tuple[Guard, ...]) -> int:
        """The number of the frame that has these guards; -1 if it was compiled before this recorder began."""
        found = next((known for guard in guards if (known := self.guards.get(id(guard)))), None)
        return found[0] if found else -1

    def entry_measured(
        self,
        at: float,
        function: CompiledFunction,
        position: int,
        guards: tuple[Guard, ...],
        call: float,
        all: float,
        each: list[float],
    ) -> None:
        key = id(guards)
        self.costs_of[key] = min(call, self.costs_of.get(key, call))
        known = [(self.guards.get(id(guard)), spent) for guard, spent in zip(guards, each, strict=True)]
        frame = next((found[0] for found, _ in known if found), None)
        self.event("entry", frame=frame, function=function.name, tried=position, call=call, all=all,
                   each={found[1]: round(spent, 1) for found, spent in known if found},
                   holds=memory_of_entry(function, guards))  # fmt: skip


# What the engine reports -> the method that takes it.
CALLS = {"plan": "plan_ran", "call": "entry_fits", "entry": "entry_measured", "end": "call_ended"}
