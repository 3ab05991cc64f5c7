"""The line at a program's end: under the knob with costs, at a recompile limit without, else none."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pycompiler.ir import phases
from tests import children

PROGRAM = """
import sys, torch, pycompiler
from pycompiler import config

def step(x, text):
    y = x * 2
    print("loss")
    return y + len(text)

compiled = pycompiler.compile(step, backend="eager", recompile_limit=2)
for k in range(6):
    compiled(torch.ones(4), "a" * (k % int(sys.argv[1])))
"""


def run(tmp_path: Path, *arguments: str, **environ: str) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environ}
    command = [children.python(), "program.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=120)
    assert done.returncode == 0, done.stderr
    return "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("pycompiler: "))


def test_under_the_knob_the_line_has_costs(tmp_path: Path) -> None:
    told = run(tmp_path, "1", PYCOMPILER_SUMMARY_AT_EXIT="1")
    pattern = r"pycompiler: 1 break costs about \S+ \S+ of \S+ \S+ a step: python -m pycompiler report program\.py 1\n"
    assert re.fullmatch(pattern, told), told


@pytest.mark.parametrize(("lengths", "told"), [("1", ""), ("6", "pycompiler: 1 function at the recompile limit (step")])
def test_without_the_knob_only_a_limit_has_a_line(lengths: str, told: str, tmp_path: Path) -> None:
    found = run(tmp_path, lengths)
    assert found.startswith(told) and bool(found) == bool(told)


def test_the_knob_is_switched_off_again() -> None:
    from pycompiler import config

    before = list(phases.observers)
    with config.patch(summary_at_exit=True):
        assert len(phases.observers) == len(before) + 1
    assert phases.observers == before
