"""Faults put into the compiler, and the one command that finds each: the part it names, and the line.

The table is `tests/faults/table.py`; `python -m tests.faults` runs each command as a user does. The quick rows run
here, with the bisector in this process. Its children have the fault too, and cannot compute gradients, since this
process did.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pycompiler
from pycompiler import config, pipeline
from pycompiler.debug import bisect
from pycompiler.ir import choices
from tests import children
from tests.faults import ours, programs, table
from tests.faults.__main__ import ROOT
from tests.faults.table import TABLE, Row

Patch = pytest.MonkeyPatch

QUICK = (
    "wrong_lowering", "wrong_index_rule", "missing_mutation", "wrong_decomposition", "stale_global", "wrong_fusion", "cpp_error",
    "wrong_dtype_of_a_fake", "crash_in_a_kernel", "memory_reused_too_early", "wrong_cache_entry", "wrong_region_sharing",
)  # fmt: skip
ROWS = {row.name: row for row in TABLE}


def put_in(row: Row, patch: Patch) -> None:
    fault: Callable[[Patch], None] = getattr(ours, row.name)
    fault(patch)


@pytest.mark.parametrize("name", QUICK)
def test_the_bisector_names_it(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    row, path = ROWS[name], tmp_path / "program.py"
    path.write_text(row.text.lstrip())
    put_in(row, monkeypatch)
    with config.patch(cache_dir=str(tmp_path / "cache")):
        text = str(bisect.Bisector(str(path), []).search())
    for said in row.says:
        assert said in text, text


def test_the_table_is_whole() -> None:
    """Each row has a program and, in the page's figures, a run of its command that found the fault."""
    assert len(ROWS) == len(TABLE) >= 30
    figures = json.loads((ROOT / "docs" / "faults.json").read_text())
    for row in TABLE:
        compile(row.text, row.name, "exec")
        assert bool(row.peer) != bool(row.no_peer), row.name
        assert row.what
        peer = figures[row.name]["peer"]
        assert peer.get("reason", "") == row.no_peer and peer.get("command", "") == row.peer, row.name
        assert figures[row.name]["ours"]["missing"] == [], row.name
        assert figures[row.name]["ours"]["command"] == row.command, f"run `python -m tests.faults {row.name} --write`"
    assert table.BISECT in {row.command for row in TABLE}


def test_programs_that_are_right_or_wrong_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(programs.OPERATORS)
    with pytest.raises(bisect.NothingFound, match="the program does not fail"):
        bisect.Bisector(str(path), []).search()
    path.write_text("import sys\nsys.exit(len(sys.argv))")
    with pytest.raises(bisect.NothingFound, match="fails without the compiler: SystemExit: 3"):
        bisect.Bisector(str(path), ["a", "b"]).search()


def test_the_programs_own_backend_is_named(tmp_path: Path) -> None:
    """The program's own backend changes its graph: it gets a copy, so that capture is not blamed."""
    path = tmp_path / "program.py"
    path.write_text(programs.OWN_BACKEND.lstrip())
    report = bisect.Bisector(str(path), []).search()
    assert report.layer == "backend" and "compiled by backend 'no_relu', differs" in str(report), report
    assert [(f.level, f.number, f.count) for f in report.found] == [("backend", 1, 1), ("captured graph", 2, 2)]
    assert report.found[0].what == "backend 'no_relu'" and "in program" in report.found[1].what


@pytest.mark.slow
def test_a_hang_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    """As above; it waits for each run that hangs."""
    path = tmp_path / "program.py"
    path.write_text(programs.ONE.lstrip())
    ours.hang_in_a_kernel(monkeypatch)
    report = bisect.Bisector(str(path), [], limit=10).search()
    assert (str(report.symptom), report.layer) == ("it hangs", "native"), report
    assert "operator: 1 of 1: sin: aten.sin.default (" in str(report) and ": return x.sin())" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bad_partition", "wrong_gradient_rule"])
def test_faults_of_gradients_are_named(name: str) -> None:
    """These rows run in processes without gradients: children of a process that computed a gradient cannot compute
    one."""
    command = [children.python(), "-m", "tests.faults", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# parts that may be left out -----------------------------------------------------------------------------------------
def test_each_level_leaves_out_what_it_counts(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x.exp() + 1).sin()

    x = torch.linspace(-1, 1, 5)
    log = tmp_path / "log"
    with config.patch(bisect_log=str(log), share_regions=False):
        pycompiler.compile(program)(x)
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    others = {"background", "memory", "region", "backend"}  # levels of stored or shared state, and of a backend
    assert {level for level, *_ in lines} == set(choices.LEVELS) - others
    for level in choices.LEVELS:
        with config.patch(bisect=f"{level}<0", share_regions=False):
            torch.testing.assert_close(pycompiler.compile(program)(x), program(x))
    assert not choices.active


def test_limits_that_are_none() -> None:
    with pytest.raises(pycompiler.errors.ConfigError, match="expected `level<number`, levels frame, "):
        with config.patch(bisect="kernel<3"):
            pass
    config.bisect = None


# faults of programs -----------------------------------------------------------------------------------------------------
def test_a_branch_on_data_is_named_with_its_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    report = pycompiler.explain(program)(torch.ones(3))
    [reason] = report.break_reasons
    assert reason.stack[-1].line == "if x.sum() > 0:"


def test_a_recompile_storm_is_named_with_guard_and_way_out(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pycompiler").propagate = True
    compiled = pycompiler.compile(lambda x, mode: x + len(mode))
    with (
        config.patch(recompile_limit=3),
        pytest.warns(pipeline.reports.RecompileLimitWarning, match="L\\['mode'\\] == "),
    ):
        for k in range(5):
            compiled(torch.ones(3), "m" * k)
    assert "Way out: keep the text constant between calls, or compile a callable for each; or raise" in caplog.text


def test_a_slow_guard_is_named() -> None:
    def program(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
        return x + list(table.values())[0] + x.shape[0]

    table = {str(k): 1 for k in range(500)}
    compiled = pycompiler.compile(program)
    compiled(torch.ones(3), table)
    profile = pycompiler.guard_profile(compiled, torch.ones(3), table)
    _, _, guard = profile.guards[0]
    assert (guard.kind, str(guard.source)) == ("dict_keys", "L['table']")


# programs of every kind ---------------------------------------------------------------------------------------------------
COMPUTED = """
import sys, torch, pycompiler

def program(x):
    return (x * 2).exp() + x.sin()

def differs(numbers):
    x = torch.tensor(numbers)
    return not torch.allclose(pycompiler.compile(program)(x), program(x))
"""
ENDS = {
    "argv": "sys.exit(differs([float(a) for a in sys.argv[2:]]) and sys.argv[1] == '--flag')",
    "stdin": "numbers = [float(sys.stdin.readline()), float(input())]\nassert sys.stdin.read() == 'rest' and not differs(numbers)",
    "_exit": "import os\nos._exit(differs([1.0]))",
    "fork": "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(1) as pool:\n    assert pool.map(differs, [[1.0]]) == [False]",
    "third call": "compiled = pycompiler.compile(lambda x: torch.where(x > 2, x.sin(), x * 2))\nfor k in range(4):\n    compiled(torch.full((3,), k))",
}  # fmt: skip


@pytest.mark.parametrize("way", ENDS)
def test_however_the_program_is_written(way: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """Programs with arguments, standard input, other processes, and a fault in a later call."""
    path = tmp_path / "program.py"
    path.write_text(COMPUTED.lstrip() + ENDS[way])
    ours.wrong_lowering(monkeypatch)
    given = tmp_path / "given"
    given.write_text("1\n2.5\nrest")
    before = os.dup(0)
    with config.patch(cache_dir=str(tmp_path / "cache")), given.open() as file:
        os.dup2(file.fileno(), 0)
        try:
            report = bisect.Bisector(str(path), ["--flag", "1", "2"]).search()
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert report.layer == "native"
    assert "aten.sin.default" in str(report)


def test_choices_of_several_processes() -> None:
    log = "graph\t1\tone of a\noperator\t1\tx\ngraph\t1\tone of b\ngraph\t2\tof a\noperator\t2"
    assert bisect.read_choices(log) == {
        "graph": {1: "one of a; in another process: one of b", 2: "of a"},
        "operator": {1: "x"},
    }


INNER = """
import subprocess, sys
from pycompiler import config
from pycompiler.ir import choices

if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "inner"], check=True)
else:
    ours = [choices.step_enabled("operator", lambda n=n: n) for n in "abc"]
    sys.exit(ours[1] and not config.disable and "backend" not in choices.settings)
"""


@pytest.mark.slow
def test_processes_that_the_program_starts(tmp_path: Path, monkeypatch: Patch) -> None:
    """The environment passes the left-out parts to child processes; the second choice of this child is wrong."""
    monkeypatch.setattr(sys, "executable", children.python())
    path = tmp_path / "program.py"
    path.write_text(INNER)
    report = bisect.Bisector(str(path), []).search()
    assert [(f.level, f.number, f.count, f.what) for f in report.found] == [("operator", 2, 3, "b")]
