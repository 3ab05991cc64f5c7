"""The device's rows of a step: events of the profiler, clocks, and the rules by which the profiler is started.

No GPU is needed: the profiler is a fake.  `test_device_times_gpu.py` runs the real one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug import device_times
from pycompiler.debug.device_times import MEASURED, DeviceRecorder, StepClock, busy, rows_of
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from pycompiler.debug.step_shares import timeline_of


def event(name: str, start: int, ns: int, stream: int = 7, device: str = "CUDA", annotation: bool = False) -> Any:
    return SimpleNamespace(
        name=lambda: name, start_ns=lambda: start, duration_ns=lambda: ns, device_resource_id=lambda: stream,
        device_type=lambda: SimpleNamespace(name=device), is_user_annotation=lambda: annotation,
    )  # fmt: skip


def clock(*moments: tuple[float, float]) -> StepClock:
    made = StepClock()
    for real, shown in moments:
        made.add(real, shown)
    return made


def test_a_clock_stands_still_during_reports() -> None:
    """A report from 1.000002 s to 1.000009 s takes none of the step's time."""
    found = clock((1.0, 0.0), (1.000009, 2_000.0))
    moments = (0.5, 1.000001, 1.000002, 1.000005, 1.000009, 1.000010)
    assert [found.at(moment) for moment in moments] == pytest.approx([0, 1_000, 2_000, 2_000, 2_000, 3_000], abs=0.1)
    assert StepClock().at(3.0) == 0.0


def test_rows_are_the_devices_events_in_order() -> None:
    events = [
        event("second", 3_000_004_000, 500),
        event("first", 3_000_001_000, 2_000, stream=13),
        event("cudaLaunchKernel", 3_000_000_500, 300, device="CPU"),
        event("a range", 3_000_000_000, 9_000, annotation=True),
        event("x" * 500, 3_000_009_000, 100),
    ]
    rows = rows_of(events, 2_000_000_000, clock((1.0, 0.0)))
    assert [row[0] for row in rows] == ["first", "second", "x" * 200]
    assert [row[3] for row in rows] == [13, 7, 7]
    assert rows[0][1:3] == pytest.approx([1_000, 2_000], abs=1)
    assert rows[1][1:3] == pytest.approx([4_000, 500], abs=1)


def test_the_busy_share_counts_overlaps_once() -> None:
    rows = [["a", 0.0, 40.0, 1], ["b", 20.0, 40.0, 2], ["c", 90.0, 40.0, 1]]
    assert busy(rows, 100.0) == pytest.approx(0.7)  # 0 to 60, and 90 to the end of the step
    assert busy([], 100.0) == busy(rows, 0.0) == 0.0


class FakeProfiler:
    """The profiler's functions, and a CUDA device that has run two kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.active = False
        self.capturing = False
        autograd = torch._C._autograd
        monkeypatch.setattr(autograd, "_prepare_profiler", lambda *_: self.calls.append("prepare"))
        monkeypatch.setattr(autograd, "_enable_profiler", lambda *_: self.calls.append("enable"))
        monkeypatch.setattr(autograd, "_disable_profiler", self.disable)
        monkeypatch.setattr(autograd, "_profiler_enabled", lambda: self.active)
        monkeypatch.setattr(
            torch.autograd.profiler, "profile", lambda **_: SimpleNamespace(config=lambda **_: "settings")
        )
        monkeypatch.setattr(torch.autograd.profiler, "_enable_profiler", lambda *_: self.calls.append("the program's"))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.calls.append("synchronize"))

    def disable(self) -> Any:
        self.calls.append("disable")
        now = time.time_ns()
        return SimpleNamespace(
            events=lambda: [event("mul", now - 2_000, 900), event("copy", now - 1_000, 500, stream=9)]
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProfiler]:
    before = {name: getattr(torch.autograd.profiler, name) for name in device_times.STARTS}
    made = FakeProfiler(monkeypatch)
    yield made
    monkeypatch.undo()
    assert {name: getattr(torch.autograd.profiler, name) for name in device_times.STARTS} == before


def test_a_step_is_recorded(fake: FakeProfiler) -> None:
    recorder = DeviceRecorder()
    assert recorder.begin() and not recorder.begin()
    rows = recorder.end(clock((time.perf_counter() - 1.0, 0.0)))
    assert rows is not None and [row[0] for row in rows] == ["mul", "copy"]
    assert fake.calls == ["synchronize", "prepare", "enable", "synchronize", "disable"]
    assert recorder.end(StepClock()) is None
    assert recorder.begin()
    recorder.cancel()


def test_the_profilers_clock_is_that_of_the_step() -> None:
    """The real profiler, with operators of the CPU."""
    recorder = DeviceRecorder()
    recorder.start({torch._C._profiler.ProfilerActivity.CPU})
    begin = time.perf_counter_ns()
    torch.ones(3).sin()
    end = time.perf_counter_ns()
    (found,) = [event for event in recorder.stop().events() if event.name() == "aten::sin"]
    slack = 1_000_000  # ns, for a clock that is being set
    assert begin - slack <= found.start_ns() - recorder.offset <= end + slack
    assert not device_times.profiler_is_active()


def test_no_step_is_recorded_without_cuda_or_beside_a_profiler(
    fake: FakeProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = DeviceRecorder()
    fake.active = True
    assert not recorder.begin()
    fake.active, fake.capturing = False, True
    assert not recorder.begin()
    fake.capturing = False
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", True)
    assert not recorder.begin()
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not recorder.begin()
    assert fake.calls == []


def test_a_profiler_that_waits_for_its_schedule_is_active() -> None:
    """It may have prepared its trace, which a second profiler would discard."""
    assert not device_times.profiler_is_active()
    schedule = torch.profiler.schedule(wait=9, warmup=1, active=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule):
        assert device_times.profiler_is_active()
    assert not device_times.profiler_is_active()


def test_the_programs_profiler_ends_the_recording_first(fake: FakeProfiler) -> None:
    recorder = DeviceRecorder()
    assert recorder.begin()
    torch.autograd.profiler._enable_profiler("config", set())
    assert fake.calls[-2:] == ["disable", "the program's"]
    assert recorder.end(StepClock()) is None


def test_another_thread_leaves_a_recording_alone(fake: FakeProfiler) -> None:
    recorder = DeviceRecorder()
    assert recorder.begin()
    ends: list[Any] = []
    thread = threading.Thread(target=lambda: (ends.append(recorder.end(StepClock())), recorder.cancel()))
    thread.start()
    thread.join()
    assert ends == [None] and "disable" not in fake.calls
    recorder.cancel()
    assert fake.calls[-1] == "disable"


def test_an_error_ends_all_recordings(fake: FakeProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("CUPTI is in use")

    monkeypatch.setattr(torch._C._autograd, "_prepare_profiler", refuse)
    recorder = DeviceRecorder()
    assert not recorder.begin() and not recorder.begin()
    assert recorder.failed and fake.calls == ["synchronize"]


def test_the_report_has_the_devices_lanes(fake: FakeProfiler) -> None:
    """One step has rows of the device; it stays the last one, and the medians do not include it."""
    events: list[Any] = []
    compiled = pycompiler.compile(lambda x: x.sin() * 2)
    x = torch.ones(4)
    with Recorder(events.append, costs=True):
        for _ in range(MEASURED + 6):
            compiled(x)
    assert fake.calls == ["synchronize", "prepare", "enable", "synchronize", "disable"]
    steps = [e for e in events if e["event"] == "steps"][-1]
    assert steps["steps"] == steps["calls"] - 2  # one is recorded, and the last has not ended
    assert [row[0] for row in steps["device"]] == ["mul", "copy"]
    line = timeline_of(Document.of(events))
    assert line is not None
    assert [lane["name"] for lane in line["lanes"]][-2:] == ["device, stream 7", "device, stream 9"]
    assert line["busy"].endswith("%")
    assert all(0 <= bar["x"] <= line["whole"] for lane in line["lanes"] for bar in lane["bars"])


def test_the_line_at_exit_records_no_device(fake: FakeProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    from pycompiler.debug.exit_summary import ExitSummary

    compiled, summary = pycompiler.compile(lambda x: x.cos() * 2), ExitSummary()
    monkeypatch.setattr(summary, "register", lambda: None)
    with pycompiler.config.patch(summary_at_exit=True):
        summary.changed()
        for _ in range(MEASURED + 3):
            compiled(torch.ones(4))
    summary.changed()
    assert fake.calls == []


def test_a_recording_ends_with_the_recorder(fake: FakeProfiler) -> None:
    compiled = pycompiler.compile(lambda x: x.cos() * 2)
    with Recorder(lambda _: None, costs=True):
        for _ in range(MEASURED + 1):
            compiled(torch.ones(4))
        assert fake.calls[-1] == "enable"
    assert fake.calls[-1] == "disable"
