"""Costs of calls: guard_profile, ranges in torch's profile, and their complete removal."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import pycompiler
from pycompiler.debug.call_watchers import watching


def two_frames(x: Any, n: int) -> Any:
    y = (x * n).relu()
    pycompiler.graph_break()
    return y.softmax(-1)


RESUMED = f"resume_in_two_frames_at_{two_frames.__code__.co_firstlineno + 2}"


@pytest.fixture
def compiled() -> Any:
    made = pycompiler.compile(two_frames)
    for _ in range(3):
        made(torch.ones(4, 4), 2)
    return made


ID = re.compile(r"\[\d+/\d+(/\w+)?\] ")  # of a compile: its numbers depend on earlier tests


def ranges(work: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return [ID.sub("", e.name) for e in found.events() if e.name.startswith("pycompiler")]


def test_every_guard_has_a_cost(compiled: Any) -> None:
    found = pycompiler.guard_profile(compiled, torch.ones(4, 4), 2)
    assert torch.equal(found.result, two_frames(torch.ones(4, 4), 2))
    first, second = found.entries
    assert (first.function, second.function) == ("two_frames", RESUMED)
    for entry in found.entries:
        assert entry.call > 0 and entry.all > 0
        assert [ns for ns, _ in entry.guards] == sorted((ns for ns, _ in entry.guards), reverse=True)
        assert 0 < sum(ns for ns, _ in entry.guards) < 20 * entry.all
        assert entry.holds["library"] > 0
    assert {str(g) for _, _, g in found.guards} >= {"global torch state is unchanged"}
    assert found.guards[0][0] == max(ns for ns, _, _ in found.guards)
    assert "one by one" in str(found) and "holds: scratch" in str(found)


def test_what_an_entry_with_gradients_holds() -> None:
    """The memory of an entry includes the plans behind autograd's Function: the forward's, and the backward's once it
    exists."""
    weight = torch.ones(4, 4, requires_grad=True)
    made = pycompiler.compile(lambda x: (x @ weight).exp().sum())

    def library() -> int:
        [entry] = pycompiler.guard_profile(made, torch.ones(4, 4)).entries
        return int(entry.holds["library"])

    loss = made(torch.ones(4, 4))
    before = library()
    loss.backward()
    assert 0 < before < library()


def test_entries_that_were_tried_before(compiled: Any) -> None:
    compiled(torch.ones(4, 4, dtype=torch.float64), 2)
    found = pycompiler.guard_profile(compiled, torch.ones(4, 4), 2)
    assert found.entries[0].tried == 1
    assert "1 entries before it" in str(found.entries[0])


def test_a_costly_guard_stands_out() -> None:
    class Slow:
        def __init__(self) -> None:
            self.names = {f"name {i}": i for i in range(300)}

    thing = Slow()
    made = pycompiler.compile(lambda x: x + len([k for k in thing.names if k]))
    made(torch.ones(2))
    found = pycompiler.guard_profile(made, torch.ones(2))
    ns, _, guard = found.guards[0]
    assert "names" in str(guard)
    assert max(map(len, str(found).splitlines())) < 200 < len(str(guard))
    assert ns > 5 * sorted(n for n, _, _ in found.guards)[len(found.guards) // 2]


def test_eager_functions_have_no_entries() -> None:
    assert str(pycompiler.guard_profile(lambda x: x, 3)) == "the call went through no compiled entry"


def test_an_exception_ends_the_watch(compiled: Any) -> None:
    with pytest.raises(TypeError):
        pycompiler.guard_profile(compiled, 1, 2, 3)
    seen: list[Any] = []
    pycompiler.guard_profile(lambda: None)
    compiled(torch.ones(4, 4), 2)
    assert seen == []


def test_ranges_of_calls(compiled: Any) -> None:
    x = torch.ones(4, 4)
    names = ranges(lambda: compiled(x, 2))
    for name in (
        "cache lookup of two_frames",
        "guards of two_frames#0, entry 0",
        "run of two_frames#0",
        "graph two_frames#0.inference",
        f"cache lookup of {RESUMED}",
    ):
        assert f"pycompiler: {name}" in names
    assert sum("kernel" in name for name in names) == 2
    assert ranges(lambda: x + 1) == []


def test_ranges_nest_and_time_is_inside(compiled: Any) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        compiled(torch.ones(4, 4), 2)
    by_name = {ID.sub("", e.name): e for e in reversed(found.events())}  # the first of each
    outer, inner = by_name["pycompiler: run of two_frames#0"], by_name["pycompiler: graph two_frames#0.inference"]
    assert outer.time_range.start <= inner.time_range.start <= inner.time_range.end <= outer.time_range.end


def test_ranges_of_compiles() -> None:
    made = pycompiler.compile(lambda x: x.cos() + 1)
    names = ranges(lambda: made(torch.ones(3)))
    own, graph = "<lambda>#0", "<lambda>#0.inference"
    phases = {"compile": own, "capture": own, "lowering": graph, "build": graph}
    assert {f"pycompiler: {phase} of {title}" for phase, title in phases.items()} <= set(names)


def test_errors_pass_through_ranges() -> None:
    @pycompiler.compile
    def fails(x: Any, i: Any) -> Any:
        return x[i] + 1

    x, good, bad = torch.arange(3.0), torch.tensor([0]), torch.tensor([9])
    fails(x, good)
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(IndexError):
        fails(x, bad)
    assert fails(x, good).tolist() == [1]


def test_profilers_of_other_threads(compiled: Any) -> None:
    x, found = torch.ones(4, 4), []
    with profile(activities=[ProfilerActivity.CPU]):
        thread = threading.Thread(target=lambda: found.append(compiled(x, 2)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], two_frames(x, 2))


def test_a_watcher_that_raises_changes_no_call(compiled: Any, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def fails(kind: str, *of: Any) -> bool:
        told.append(kind)
        raise ValueError("watcher")

    logging.getLogger("pycompiler").propagate = True
    with watching(fails), watching(lambda kind, *of: told.append(kind)):
        found = pycompiler.guard_profile(compiled, torch.ones(4, 4), 2)  # it watches, too, and ends
        assert compiled(torch.ones(4, 4), 2).shape == (4, 4)
    assert [entry.function for entry in found.entries] == ["two_frames", RESUMED]
    assert told[:2] == ["call", "call"] and told[-2:] == ["plan", "plan"]  # both watchers are called
    assert [r.getMessage().endswith("fails raised ValueError: watcher") for r in caplog.records] == [True]
    count = len(told)
    compiled(torch.ones(4, 4), 2)
    assert len(told) == count


def test_calls_of_other_threads_are_not_profiled(compiled: Any) -> None:
    other = pycompiler.compile(lambda x: x + 1)

    def program() -> Any:
        thread = threading.Thread(target=other, args=(torch.ones(2),))
        thread.start()
        thread.join()
        return compiled(torch.ones(4, 4), 2)

    assert [entry.function for entry in pycompiler.guard_profile(program).entries] == [
        "two_frames",
        RESUMED,
    ]


def test_emit_nvtx_and_autograd_profiler(compiled: Any) -> None:
    with torch.autograd.profiler.profile() as found:
        compiled(torch.ones(4, 4), 2)
    assert any(ID.sub("", e.name) == "pycompiler: run of two_frames#0" for e in found.function_events)


# An injected tool that replaces NVTX's functions, as NVIDIA's do (NVTX_INJECTION64_PATH); no GPU or driver is needed.
TOOL = """
#include <stdio.h>
typedef void (*Function)(void);
typedef struct { unsigned long size; int (*table)(int module, Function ***out, unsigned *size); } Callbacks;
static int push(const char *name) { fprintf(stderr, "push %s\\n", name); return 0; }
static int pop(void) { fprintf(stderr, "pop\\n"); return 0; }
int InitializeInjectionNvtx2(const void *(*exported)(unsigned id)) {
    const Callbacks *callbacks = exported(1);
    Function **table;
    unsigned size;
    if (!callbacks || !callbacks->table(1, &table, &size)) return 0;
    *table[9] = (Function)push;
    *table[11] = (Function)pop;
    return 1;
}
"""
UNDER_NVTX = """
from unittest.mock import patch
import torch, pycompiler
compiled = pycompiler.compile(lambda x: (x * 2).relu())
compiled(torch.ones(3))
with patch.object(torch.cuda, "synchronize"), torch.autograd.profiler.emit_nvtx():
    compiled(torch.ones(3))
    compiled(torch.ones(3, dtype=torch.float64))
compiled(torch.ones(3))
"""


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without NVTX")
def test_ranges_on_nvtx(tmp_path: Path) -> None:
    (tmp_path / "tool.c").write_text(TOOL)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "tool.so", "tool.c"], cwd=tmp_path, check=True)
    environ = {**os.environ, "NVTX_INJECTION64_PATH": str(tmp_path / "tool.so"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", UNDER_NVTX], env=environ, stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    path: list[str] = []
    seen = set()
    for line in done.stderr.splitlines():
        if line == "pop":
            path.pop()
        elif line.startswith("push "):
            path.append(line[5:].partition(",")[0])
            seen.add(" / ".join(p.removeprefix("pycompiler: ") for p in path if p.startswith("pycompiler: ")))
    assert path == []
    graph, own = (
        "graph [0/0/inference] <lambda>#0.inference",
        "[0/1] <lambda>#1",
    )  # runs the first entry, compiles the second
    run = f"run of [0/0] <lambda>#0 / {graph} / kernel graph_0"
    assert {"cache lookup of <lambda>", run, f"compile of {own} / capture of {own}"} <= seen, seen
    assert any(s.startswith(f"compile of {own} / backend of {own} / ") for s in seen)
