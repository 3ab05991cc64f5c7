"""Calls in which the memory of Python or of the engine is short end with an exception or with the right value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from native import shortage


def sweep(memory: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows of all scenes, as a child process prints them."""
    tests = Path(shortage.__file__).resolve().parent.parent
    found = os.pathsep.join([str(tests), str(tests.parent), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": found, "PYCOMPILER_CACHE_DIR": str(folder)}
    command = [sys.executable, str(Path(shortage.__file__)), "--memory", memory, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.unsanitized("allocations of the sanitizer's Python are others, and slower")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="what CPython itself does without memory is known of 3.11")
def test_the_nth_allocation_fails(tmp_path: Path) -> None:
    """Each of the first allocations of a call fails in turn, and every seventh later one; `python shortage.py` tries
    all."""
    rows = sweep("python", tmp_path, "--step", "7")
    assert [row["scene"] for row in rows] == list(shortage.SCENES)
    assert sum(row["short"] for row in rows) > 300
    quiet = {"hit_that_asks", "inference", "many_inputs"}  # the first allocates nothing; a failed graph runs eagerly
    assert all(row["short"] for row in rows if row["scene"] not in quiet), rows


def test_the_nth_allocation_of_the_engine_fails(tmp_path: Path) -> None:
    """Each allocation of the engine fails in turn, alone and with all later ones."""
    rows = sweep("engine", tmp_path)
    assert [row["scene"] for row in rows] == list(shortage.SCENES)
    allocating = {"miss_and_insertion", "statistics", "training"}
    assert all(row["short"] for row in rows if row["scene"] in allocating), rows
