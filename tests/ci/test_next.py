"""`.ci/next`, which runs the suite under CPython 3.14: it fails on a machine without a working 3.14."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

NEXT = Path(__file__).resolve().parents[2] / ".ci" / "next"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that precede the machine's own on PATH; `python3.14` does not start."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "python3.14", "exit 127")
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(programs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    home = programs.parent
    path = f"{programs}:{os.environ['PATH']}"
    changed = {**os.environ, "PATH": path, "HOME": str(home), "NEXT_TREE": str(home / "tree"), **environment}
    return subprocess.run([NEXT, "-q", "tests/native"], env=changed, capture_output=True, text=True, timeout=400)


def test_a_machine_without_rights_fails(programs: Path) -> None:
    """As on GitHub's runners, whose user is not root."""
    program(programs / "id", "echo 1001")
    done = run(programs)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "3.14 was not tested: root is needed to install a tree of Debian unstable\n"


def test_a_tree_that_cannot_be_made_fails(programs: Path) -> None:
    program(programs / "id", "echo 0")
    program(programs / "debootstrap", "echo 'E: no network'; exit 1")
    program(programs / "awk", "echo http://nowhere.invalid")
    done = run(programs)
    assert (done.returncode, done.stderr) == (1, "3.14 was not tested: debootstrap: E: no network\n")


def test_a_python_of_the_machine_is_taken(programs: Path, tmp_path: Path) -> None:
    """The script builds its environment from it, runs the suite there, and returns the suite's status."""
    log = tmp_path / "log"
    inside = tmp_path / "venv" / "bin" / "python"
    inside.parent.mkdir(parents=True)
    program(programs / "python3.14", "exit 0")
    program(inside, f'echo "$*" >>{log}\ncase "$*" in *pytest*) exit 3 ;; esac')
    done = run(programs, NEXT_VENV=str(inside.parent.parent))
    assert done.returncode == 3, done.stderr
    assert log.read_text().splitlines()[-1] == "-m pytest -n 2 --dist loadfile -q tests/native"
