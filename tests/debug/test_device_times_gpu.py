"""The device's track of a report on a real GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug.device_times import profiler_is_active
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from pycompiler.debug.page import page
from pycompiler.debug.step_shares import timeline_of
from tests.debug.structure import checked

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def steps_of(n: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    w = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    compiled = pycompiler.compile(lambda x: (x @ w).softmax(-1).sum())
    with Recorder(events.append, costs=True):
        for _ in range(n):
            compiled(torch.ones(4096, 4096, device="cuda")).backward()
    return events


def test_kernels_of_a_step_are_on_the_devices_track() -> None:
    document = Document.of(steps_of(9))
    assert document.main_steps is not None and document.main_steps["device"]
    assert not profiler_is_active()
    line = timeline_of(document)
    assert line is not None
    lanes = {lane["name"]: lane["bars"] for lane in line["lanes"]}
    tracks = [bars for name, bars in lanes.items() if name.startswith("device, stream ")]
    assert sum(map(len, tracks)) >= 3  # a matrix product, a kernel, and those of the backward
    assert "forward" in lanes and "backward" in lanes
    first = min(bar["x"] for bar in lanes["forward"])
    assert all(first <= bar["x"] <= line["whole"] for bars in tracks for bar in bars)  # no kernel before its launch
    assert 0 < int(line["busy"].rstrip("%")) <= 100
    checked(page(document))


def test_a_profiler_of_the_program_stays_its_own() -> None:
    """The program profiles from the step on that ours would record."""
    compiled = pycompiler.compile(lambda x: x.sin() * 2)
    x = torch.ones(1 << 20, device="cuda")
    with Recorder(lambda _: None, costs=True):
        for _ in range(5):
            compiled(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(5):
                compiled(x)
            torch.cuda.synchronize()
    assert sum(event.device_type == torch.autograd.DeviceType.CUDA for event in found.events()) >= 5
