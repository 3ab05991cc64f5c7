"""The time of ATen's operators in eager stretches of a call, and the end of the call.

In: `OperatorTimes()` and `CallEnd(code, over)` at the begin of a call.  Out: nanoseconds of operators by stretch; `over(at)`
at the end of the call.

Operators are timed by autograd's simple profiler, which has no start-up time.  The end is seen by a trace function.  Both
slow a call down, so they watch only a few calls, and none while the program itself profiles or traces.
"""

from __future__ import annotations

import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

OPERATORS = range(8, 16)  # calls of an entry of which operators are timed
ENDS = range(16, 24)  # calls of an entry of which the end is seen
SAMPLES = 25  # calls of a calibration
OTHERS = 8  # calls of other functions, such as the recorder's, before the frame begins

_profiler: Any = torch._C._autograd


class OperatorTimes:
    """Times operators of this thread from now on to `end()`.

    The profiler is switched at two calls of a root only.  Within a call, autograd saves and restores its state.
    """

    def __init__(self) -> None:
        self.stretches: list[tuple[int, float, float]] = []  # frame after the stretch; begin and end in seconds
        state = torch.autograd.ProfilerState.CPU
        experimental = torch._C._profiler._ExperimentalConfig()
        _profiler._enable_profiler_legacy(
            torch.autograd.ProfilerConfig(state, False, False, False, False, False, experimental)
        )
        self.begun = self.since = time.perf_counter()

    def stretch(self, frame: int, at: float) -> None:
        """The stretch since the last report is over."""
        self.stretches.append((frame, self.since - self.begun, at - self.begun))

    def end(self) -> dict[int, float]:
        """Nanoseconds of operators by the frame after their stretch."""
        rows = _profiler._disable_profiler_legacy()
        start = next((row for thread in rows for row in thread), None)
        found = {frame: 0.0 for frame, _, _ in self.stretches}
        for row, spent in (timed for thread in rows for timed in _timed(thread)):
            at = start.cpu_elapsed_us(row) / 1e6 if start is not None else 0.0
            for frame, begin, end in self.stretches:
                if begin <= at < end:
                    found[frame] += spent
        return found


def _timed(rows: Iterable[Any]) -> Iterable[tuple[Any, float]]:
    """The begin and the nanoseconds of each operator that no other operator calls; rows: begins and ends in order."""
    open_rows: list[Any] = []
    for row in rows:
        if row.kind() == "push":
            open_rows.append(row)
        elif row.kind() == "pop" and open_rows:
            begun = open_rows.pop()
            if not open_rows:
                yield begun, 1e3 * begun.cpu_elapsed_us(row)


def may_watch() -> bool:
    return (
        hasattr(_profiler, "_enable_profiler_legacy")
        and not torch.cuda.is_available()
        and not torch.autograd._profiler_enabled()
        and sys.gettrace() is None
    )


def end_overhead() -> float:
    """Seconds of a trace function after it has called `over`."""
    spent, ended = [], [0.0]

    def over(at: float) -> None:
        ended[0] = time.perf_counter()

    def empty() -> None:
        pass

    for _ in range(SAMPLES):
        CallEnd(empty.__code__, over)
        empty()
        spent.append(time.perf_counter() - ended[0])
    return statistics.median(spent)


class CallEnd:
    """Calls `over(at)` when the frame of `code`, which begins next in this thread, returns."""

    def __init__(self, code: types.CodeType, over: Callable[[float], None]) -> None:
        self.name, self.over = (code.co_filename, code.co_name), over
        self.left = OTHERS
        sys.settrace(self.trace)

    def trace(self, frame: types.FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if event == "call" and (frame.f_code.co_filename, frame.f_code.co_name) == self.name:
            frame.f_trace_lines = False
            self.left = sys.maxsize
            return self.returned
        self.left -= 1
        if self.left == 0:  # the frame does not begin
            sys.settrace(None)
        return None

    def returned(self, frame: types.FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "return":
            at = time.perf_counter()
            sys.settrace(None)
            self.over(at)
        return self.returned
