"""Triton kernels without a GPU: values under Triton's interpreter, and registers of the binaries for an H100/H200.

Triton decides at its import whether it interprets, so each table of `triton_cases.py` runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(mode: str, tmp_path: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path), **extra}
    command = [sys.executable, str(HERE / "triton_cases.py"), mode]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


@pytest.mark.parametrize(("mode", "interpret", "cases"), [("check", "1", 46), ("compile", "0", 44)])
def test_cases(mode: str, interpret: str, cases: int, tmp_path: Path) -> None:
    done = run(mode, tmp_path, TRITON_INTERPRET=interpret)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("ok ") == cases, done.stdout
