"""Steps: their parts in order, roots, compiles and backward graphs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug.events import Recorder
from pycompiler.debug.step_shares import shares_of, spent
from pycompiler.debug.step_times import StepTimes


class Clock:
    """Reports with given times, in microseconds."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self.now = 0.0

    def after(self, microseconds: float) -> float:
        self.now += microseconds / 1e6
        return self.now

    def over(self) -> None:
        self.times.state.since = self.now

    def call(self, after: float, name: str, frame: int, is_root: bool, guards: float = 0.0) -> bool:
        ended = self.times.call(self.after(after), NAMES[name], name, frame, is_root, guards * 1e3)
        self.over()
        return ended is not None

    def plan(self, after: float, graph: int, spent: float, is_backward: bool = False) -> None:
        self.times.plan(self.after(after), graph, is_backward, spent * 1e3)
        self.over()


NAMES = {name: object() for name in ("step", "resume", "other")}


def one_step(clock: Clock) -> bool:
    ended = clock.call(5, "step", 0, True, guards=1)
    clock.plan(10, 0, 8)
    clock.call(30, "resume", 1, False, guards=2)
    clock.plan(20, 1, 15)
    return ended


def test_parts_of_a_step() -> None:
    clock = Clock()
    assert [one_step(clock) for _ in range(5)] == [False, True, True, False, True]  # powers of two
    (found,) = clock.times.totals()
    assert (found["root"], found["function"], found["calls"], found["steps"]) == (0, "step", 5, 4)
    expected = {"graph": 23.0, "before": 28.0, "guards": 3.0, "dispatch": 7.0, "outside": 4.0}
    found["step"] = 65_000.0
    assert {part: ns / 1e3 for part, ns in spent(found).items()} == pytest.approx(expected)
    assert [row["percent"] for row in shares_of(found)] == ["35%", "43%", "5%", "11%", "6%"]
    assert [row[0] for row in found["last"]] == [
        "guards",
        "graph",
        "dispatch",
        "before",
        "guards",
        "graph",
        "dispatch",
        "outside",
    ]


def test_steps_with_compiles_do_not_count() -> None:
    clock = Clock()
    for k in range(4):
        one_step(clock)
        if k == 1:
            clock.times.compiling()
    (found,) = clock.times.totals()
    assert (found["calls"], found["steps"]) == (4, 2)


def test_the_time_around_a_backward_graph_belongs_to_what_follows() -> None:
    clock = Clock()
    for _ in range(2):
        clock.call(5, "step", 0, True)
        clock.plan(10, 0, 10)
        clock.plan(50, 1, 20, is_backward=True)
        clock.call(7, "resume", 1, False)
    (found,) = clock.times.totals()
    assert found["before"] == pytest.approx({1: 37_000.0})
    assert found["graph"] == pytest.approx({0: 10_000.0, 1: 20_000.0})


def test_each_root_has_its_steps() -> None:
    clock = Clock()
    for _ in range(3):
        clock.call(5, "step", 0, True)
        clock.call(5, "other", 2, True)
    assert [(row["function"], row["steps"]) for row in clock.times.totals()] == [("step", 2), ("other", 2)]


def test_the_end_of_a_call_splits_the_time_outside() -> None:
    """The end is seen in some steps only.  These take longer, so that all other parts are taken from the other steps."""
    clock = Clock()
    for k in range(6):
        clock.call(50, "step", 0, True)
        if k in (2, 4):
            clock.times.returned(clock.after(90), 0)
            clock.over()
            clock.after(-30)
    (found,) = clock.times.totals()
    assert spent(found | {"step": 1.0})["outside"] == pytest.approx(20_000.0)
    assert found["before"] == pytest.approx({0: 5 * 30_000.0})


def test_operators_are_a_share_of_their_stretch() -> None:
    clock = Clock()
    for timed in (False, True, False, False):
        clock.call(5, "step", 0, True)
        clock.call(80 if timed else 40, "resume", 1, False)  # timed operators take longer
        if timed:
            clock.times.operators({1: 60_000.0})
    (found,) = clock.times.totals()
    assert (found["before"], found["operators"]) == (pytest.approx({1: 120_000.0}), pytest.approx({1: 90_000.0}))


def test_an_eager_function_is_part_of_the_stretch_around_it() -> None:
    clock = Clock()
    for _ in range(3):
        clock.call(5, "step", 0, True)
        clock.times.eager_call(clock.after(10))
        clock.over()
        clock.call(30, "resume", 1, False)
    (found,) = clock.times.totals()
    assert (found["before"], found["functions"]) == (pytest.approx({1: 80_000.0}), pytest.approx({1: 60_000.0}))


def test_reports_of_all_threads_are_handled_at_the_end() -> None:
    """Reports wait, and a thread may end before."""
    events: list[Any] = []
    compiled = pycompiler.compile(lambda x: x + 1, backend="native")

    def calls() -> None:
        for _ in range(100):
            compiled(torch.ones(2))

    with Recorder(events.append, costs=True):
        calls()
        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
    last = {event["event"]: event for event in events}
    assert (last["steps"]["calls"], last["steps"]["steps"]) == (200, 198)  # two threads, no step with a compile
    assert last["calls"]["calls"] == 200
