"""Short forms of the long runs (CONTRIBUTING.md, "Long runs"). Runs that fork have a process of their own."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stress import disk, memory, threads

ROOT = Path(__file__).resolve().parent.parent.parent


def command(folder: Path, *arguments: str) -> Any:
    """The report of `python -m tests.stress ...`."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYCOMPILER_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-m", "tests.stress", *arguments], cwd=ROOT, env=env, capture_output=True,
                          text=True, errors="replace")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)[arguments[0]]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.filterwarnings("ignore")
def test_threads(backend: str) -> None:
    """Calls, compiles, resets, freezing and training in eight threads, on one callable and on several."""
    report = threads.run(2.0, (backend,))
    assert len(report) == 2
    assert all(done["call"] and done["reset one"] for done in report.values())


def test_memory_of_calls(tmp_path: Path) -> None:
    command(tmp_path, "calls", "--count", "20000")


def test_memory_of_cycles(tmp_path: Path) -> None:
    """Models are freed, memory and objects do not grow, with forward and backward in native code."""
    command(tmp_path, "cycles", "--count", "15")


def test_kills(tmp_path: Path) -> None:
    assert command(tmp_path, "kills", "--count", "5")["kills"] == 5


def test_processes(tmp_path: Path) -> None:
    command(tmp_path, "processes", "--count", "8")


def test_damage(tmp_path: Path) -> None:
    assert command(tmp_path, "damage", "--count", "8")["libraries built again"] > 0


def test_interrupts(tmp_path: Path) -> None:
    assert command(tmp_path, "interrupts", "--count", "8")["interrupts"] > 0


GROUPS = ["^path: ", "^compiler: ", "^full disk: |^files", "^(?!path: |compiler: |full disk: |files)"]


@pytest.mark.parametrize("only", GROUPS)
def test_places(tmp_path: Path, only: str) -> None:
    """Odd or broken cache folders and compilers: right values, in time, and a line with the reason."""
    report = command(tmp_path, "places", "--only", only)
    assert report["rows"] + len(report["skipped (not root)"]) >= 5


def test_the_table_of_places_is_long() -> None:
    assert len(disk.ROWS) >= 75


def test_a_leak_is_noticed() -> None:
    """The leak maps new pages: an allocation could reuse memory freed by earlier tests, and nothing would grow."""
    kept: list[mmap.mmap] = []

    def leak(i: int) -> None:
        kept.append(mmap.mmap(-1, 1 << 17))
        kept[-1].write(b"x" * (1 << 17))  # untouched pages are not resident

    report = {"leak": memory.growth(leak, 200, 1)}
    with pytest.raises(AssertionError):
        memory.assert_flat(report, 1.0)
