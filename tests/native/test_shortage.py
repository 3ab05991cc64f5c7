"""Calls in which Python's memory is short end with an exception or with the right value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from native import shortage


@pytest.mark.unsanitized("allocations of the sanitizer's Python are others, and slower")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="what CPython itself does without memory is known of 3.11")
def test_the_nth_allocation_fails(tmp_path: Path) -> None:
    """Each of the first allocations of a call fails in turn, and every seventh later one; `python shortage.py` tries
    all."""
    tests = Path(shortage.__file__).resolve().parent.parent
    found = os.pathsep.join([str(tests), str(tests.parent), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": found, "PYCOMPILER_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(Path(shortage.__file__)), "--step", "7"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["scene"] for row in rows] == list(shortage.SCENES)
    assert sum(row["short"] for row in rows) > 300
    quiet = {"hit_that_asks", "inference"}  # the first allocates nothing; a failed graph runs eagerly
    assert all(row["short"] for row in rows if row["scene"] not in quiet), rows
