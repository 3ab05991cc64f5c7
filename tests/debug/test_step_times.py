"""Steps: their parts in order, roots, compiles and backward graphs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from pycompiler.debug.step_shares import launched_keys, shares_of, spent, timeline_of
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

    def plan(self, after: float, graph: int, spent: float, is_backward: bool = False, inner: Any = ()) -> None:
        self.times.plan(self.after(after), graph, is_backward, spent * 1e3, inner)
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


def test_the_stretch_before_a_backward_graph_is_before_it() -> None:
    clock = Clock()
    for _ in range(2):
        clock.call(5, "step", 0, True)
        clock.plan(10, 0, 10)
        clock.plan(50, 1, 20, is_backward=True)
    (found,) = clock.times.totals()
    assert [row[:2] for row in found["last"]] == [
        ["guards", 0], ["graph", 0], ["dispatch", 0], ["outside", -1], ["graph", 1], ["outside", -1]
    ]  # fmt: skip
    assert [row[2] for row in found["last"]] == pytest.approx([0, 10_000, 0, 30_000, 20_000, 5_000], abs=1)


def test_a_backward_graph_in_autograds_thread_belongs_to_the_waiting_step() -> None:
    """Graphs of a GPU run there.  The time of the waiting thread starts again when the graph has run."""
    clock = Clock()
    for _ in range(2):
        clock.call(5, "step", 0, True)
        clock.plan(10, 0, 10)
        thread = threading.Thread(target=clock.times.plan, args=(clock.after(50), 1, True, 20e3))
        thread.start()
        thread.join()
        clock.over()
    (found,) = clock.times.totals()
    assert found["graph"] == pytest.approx({0: 10_000.0, 1: 20_000.0})
    assert found["outside"] == pytest.approx(35_000.0)


def test_the_times_of_kernels_of_the_last_step() -> None:
    clock = Clock()
    for k in range(3):
        clock.call(5, "step", 0, True)
        clock.plan(10, 0, 9, inner=[k * 1e3, 2e3])
        clock.plan(10, 1, 9)
    (found,) = clock.times.totals()
    assert found["inner"] == [[1_000, 2_000], []] and found["device"] is None


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


# the timeline --------------------------------------------------------------------------------------------------
def frame(number: int, **fields: Any) -> dict[str, Any]:
    plain = {
        "event": "frame", "number": number, "function": f"f{number}", "file": "x.py", "line": 1, "models": [],
        "source": [[1, "def f(x):"], [2, "    print(x)"]], "inlined": [], "seconds": 0.0, "operators": 0, "graph": None,
        "guards": [], "break": None,
    }  # fmt: skip
    return plain | fields


def graph(number: int, kind: str, *steps: str) -> dict[str, Any]:
    rows = []
    for name in steps:
        where, _, what = name.partition(" ")
        row = {"name": name, "kind": "aten" if where == "ATen" else "kernel", "operators": [], "reads": 0, "writes": 0}
        rows.append(row | ({} if where == "ATen" else {"device": [f"pyc_{what}"]}))
    return {"event": "graph", "number": number, "model": 0, "kind": kind, "phases": {}, "nodes": [], "steps": rows,
            "memory": {}, "unfused": [], "code": ""}  # fmt: skip


def document(**fields: Any) -> Document:
    broke = {"kind": "builtin-call", "reason": "print", "hint": "",
             "stack": [{"file": "x.py", "line": 2, "function": "f0", "text": "print(x)"}]}  # fmt: skip
    last = [
        ["guards", 0, 10.0], ["graph", 0, 100.0], ["dispatch", 0, 5.0], ["before", 1, 40.0], ["guards", 1, 2.0],
        ["outside", -1, 3.0], ["graph", 1, 60.0], ["outside", -1, 20.0],
    ]  # fmt: skip
    steps = {"event": "steps", "root": 0, "function": "f0", "calls": 5, "steps": 4, "outside": 1.0, "before": {},
             "guards": {}, "graph": {}, "dispatch": {}, "last": last, **fields}  # fmt: skip
    graphs = [graph(0, "forward", "kernel a", "ATen mm"), graph(1, "backward", "kernel b")]
    return Document.of([{"event": "start"}, frame(0, **{"break": broke}), frame(1), *graphs, steps])


def bars(line: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {lane["name"]: [(b["kind"], b["x"], b["width"], b["label"], b["key"]) for b in lane["bars"]]
            for lane in line["lanes"]}  # fmt: skip


def test_the_bar_of_a_graph_is_divided_into_its_kernels() -> None:
    line = timeline_of(document(inner=[[60, 30], [60]]))
    assert line is not None and line["whole"] == 240 and line["busy"] == ""
    found = bars(line)
    assert found["forward"] == [
        ("kernel", 10, 60, "kernel a", "s0-0"), ("aten", 70, 30, "ATen mm", "s0-1"),
        ("rest", 100, 10, "allocations and views", "G1-0"),
    ]  # fmt: skip
    assert found["backward"] == [("kernel", 160, 60, "kernel b", "s1-0")]
    assert found["program"] == [
        ("eager", 115, 40, "eager code at breaks", "L0-2"), ("outside", 157, 3, "the program around", ""),
        ("outside", 220, 20, "the program around", ""),
    ]  # fmt: skip
    assert [bar[4] for bar in found["guards and dispatch"]] == ["f0", "", "f1"]
    assert line["breaks"] == [{"x": 115, "text": "graph break [builtin-call]: print", "where": "x.py:2", "key": "L0-2"}]


def test_reports_without_times_of_kernels_have_a_bar_for_each_graph() -> None:
    """Reports of 0.2 and earlier; also a graph whose steps could not be matched."""
    line = timeline_of(document())
    assert line is not None
    assert bars(line)["forward"] == [("kernel", 10, 100, "graph", "G1-0")]
    assert timeline_of(document(last=[])) is None


def test_the_device_has_a_lane_for_each_stream() -> None:
    """Its work may end after the step."""
    rows = [["k", 20.0, 48.0, 7], ["c", 30.0, 10.0, 13], ["late", 230.0, 90.0, 7]]
    line = timeline_of(document(device=rows))
    assert line is not None
    found = bars(line)
    assert found["device, stream 7"] == [("device", 20, 48, "k", ""), ("device", 230, 90, "late", "")]
    assert found["device, stream 13"] == [("device", 30, 10, "c", "")]
    assert (line["whole"], line["busy"]) == (320, "43%")  # 48 and 90


def test_rows_of_the_device_belong_to_kernels_in_the_order_of_launches() -> None:
    """Equal kernels have one name; one kernel is two launches; a library's kernel belongs to none."""
    launched = [("sum", "s0-0"), ("finish", "s0-0"), ("cast", "s0-2"), ("sum", "s1-0"), ("sum", "s1-1")]
    names = ["sum", "finish", "sm90_gemm", "cast", "sum", "sum", "sum", "cast"]
    assert launched_keys(names, launched) == ["s0-0", "s0-0", "", "s0-2", "s1-0", "s1-1", "", ""]
    line = timeline_of(document(inner=[[60, 30], [60]], device=[["pyc_a", 20.0, 48.0, 7], ["pyc_b", 170.0, 20.0, 7]]))
    assert line is not None
    assert [bar[4] for bar in bars(line)["device, stream 7"]] == ["s0-0", "s1-0"]
    last = [["graph", 0, 100.0], ["graph", -1, 50.0]]
    line = timeline_of(document(last=last, device=[["pyc_a", 20.0, 48.0, 7]]))
    assert line is not None
    assert [bar[4] for bar in bars(line)["device, stream 7"]] == [""]  # a graph of another recorder
