"""The device's work during one step of a root: kernels and copies with their times, by stream.

In: a step, and torch's profiler (kineto).  Out: rows `[name, start, nanoseconds, stream]` in order of their start, in
nanoseconds of the step's own clock (`StepClock`).  Example: `["triton_poi_0", 5200.0, 1900.0, 7]`.

The profiler runs during one step of each root, after `MEASURED` steps without it, and only if CUDA is initialised and no
other profiler is on.  A profiler that the program starts in that step ends ours first.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler import config

Row = list[Any]  # name, start, nanoseconds, stream
MEASURED = 3  # steps of a root that are measured before one is recorded
ROWS = 5_000  # most rows of a step
LONGEST = 200  # most characters of a name
PROFILER_STEP = "ProfilerStep"  # `torch.profiler.profile` counts its steps under this name from its start to its stop
STARTS = ("_prepare_profiler", "_enable_profiler")  # functions with which `torch.autograd.profiler` starts


@dataclass
class StepClock:
    """Moments of a step: `time.perf_counter()`, and nanoseconds of the step, in which observers take no time."""

    real: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)

    def add(self, real: float, shown: float) -> None:
        self.real.append(real)
        self.shown.append(shown)

    def at(self, moment: float) -> float:
        """Nanoseconds of the step at a moment; a moment of an observer is the next report's."""
        position = bisect.bisect_right(self.real, moment) - 1
        if position < 0:
            return self.shown[0] if self.shown else 0.0
        passed = self.shown[position] + (moment - self.real[position]) * 1e9
        return min(passed, self.shown[position + 1]) if position + 1 < len(self.shown) else passed


def rows_of(events: Iterable[Any], offset: int, clock: StepClock) -> list[Row]:
    """The rows of the profiler's events.  offset: nanoseconds of the profiler's clock minus those of `perf_counter`."""
    found = [
        [event.name()[:LONGEST], round(clock.at((event.start_ns() - offset) / 1e9), 1), float(event.duration_ns()),
         int(event.device_resource_id())]
        for event in events
        if event.device_type().name == "CUDA" and not event.is_user_annotation()
    ]  # fmt: skip
    return sorted(found, key=lambda row: row[1])[:ROWS]


def busy(rows: Sequence[Sequence[Any]], whole: float) -> float:
    """The share of a step during which the device does anything, on any stream."""
    total, end = 0.0, 0.0
    for _, start, nanoseconds, _ in sorted(rows, key=lambda row: row[1]):
        last = min(start + nanoseconds, whole)
        total += max(0.0, last - max(start, end))
        end = max(end, last)
    return total / whole if whole else 0.0


def profiler_is_active() -> bool:
    """Whether a profiler is on in this thread, or the program has one that waits for its schedule."""
    profiler = torch.autograd.profiler
    if torch._C._autograd._profiler_enabled() or getattr(profiler, "_is_profiler_enabled", False):
        return True
    tracker = getattr(profiler, "KinetoStepTracker", None)
    return PROFILER_STEP in getattr(tracker, "_step_dict", ())


def device_can_be_recorded() -> bool:
    if not torch.cuda.is_initialized() or profiler_is_active():  # type: ignore[no-untyped-call]
        return False
    return not torch.cuda.is_current_stream_capturing()


class DeviceRecorder:
    """Records one step at a time.  An error is logged, and the step has no rows."""

    def __init__(self) -> None:
        self.thread: int | None = None  # the thread whose step is recorded
        self.offset = 0
        self.originals: dict[str, Callable[..., Any]] = {}
        self.failed = False

    def begin(self) -> bool:
        """Whether the step that begins is recorded."""
        if self.failed or self.thread is not None:
            return False
        try:
            if not device_can_be_recorded():
                return False
            torch.cuda.synchronize()
            self.start({torch._C._profiler.ProfilerActivity.CUDA})
        except Exception as error:
            self.fail(error)
            return False
        return True

    def start(self, activities: set[Any]) -> None:
        settings = torch.autograd.profiler.profile().config(create_trace_id=True)  # type: ignore[no-untyped-call]
        torch._C._autograd._prepare_profiler(settings, activities)
        torch._C._autograd._enable_profiler(settings, activities)
        self.offset = time.time_ns() - time.perf_counter_ns()
        self.thread = threading.get_ident()
        for name in STARTS:
            original = getattr(torch.autograd.profiler, name)
            self.originals[name] = original
            setattr(torch.autograd.profiler, name, self.ending_before(original))

    def ending_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The function, but our recording ends first."""

        def started(*args: Any, **kwargs: Any) -> Any:
            self.cancel()
            return original(*args, **kwargs)

        return started

    def end(self, clock: StepClock) -> list[Row] | None:
        """The rows of the recorded step; None if it was not recorded to its end."""
        if self.thread != threading.get_ident():
            return None
        try:
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
            return rows_of(self.stop().events(), self.offset, clock)
        except Exception as error:
            self.fail(error)
            return None

    def stop(self) -> Any:
        self.thread = None
        for name, original in self.originals.items():
            setattr(torch.autograd.profiler, name, original)
        self.originals.clear()
        return torch._C._autograd._disable_profiler()

    def cancel(self) -> None:
        """End a recording without a result.  The profiler belongs to its thread, and another thread leaves it alone."""
        if self.thread == threading.get_ident():
            try:
                self.stop()
            except Exception as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        self.failed = True
        config.say_once(f"report: the device's work is not recorded: {type(error).__name__}: {error}")
