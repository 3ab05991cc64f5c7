"""Entries saved in one process run in another without a C++ compiler: bit-equal, guards checked, and nothing compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.artefacts.programs import CASES

ROOT = Path(__file__).resolve().parents[2]
Reports = tuple[dict[str, Any], dict[str, Any]]


def process(what: str, folder: Path, **environment: str) -> dict[str, Any]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-m", "tests.artefacts.processes", what, str(folder)], cwd=ROOT, env=variables,
                          capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / f"{what}.json").read_text())
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("artefacts")
    saved = process("save", folder, PYTHONHASHSEED="1")
    cache = folder / "cache"
    cache.mkdir(mode=0o700)
    return saved, process("load", folder, PYTHONHASHSEED="2", PATH="", CXX="", PYCOMPILER_CACHE_DIR=str(cache))


NATIVE = [name for name, case in CASES.items() if not case.left_out]
LEFT_OUT = [name for name, case in CASES.items() if case.left_out]


@pytest.mark.parametrize("name", NATIVE)
def test_runs_natively_in_another_process(reports: Reports, name: str) -> None:
    saved, loaded = (report[name] for report in reports)
    assert "error" not in saved, saved["error"]
    assert saved.get("refused") is None and saved["saved"]["left_out"] == []
    assert "error" not in loaded, loaded["error"]
    assert loaded["results"] == saved["results"]
    assert saved["saved"]["entries"] >= CASES[name].entries
    counters, before = loaded["counters"], saved["counters"]
    assert (counters["compiles"], counters["fresh_failures"]) == (0, 0)
    assert counters["eager_calls"] == before["eager_calls"]  # frames that some versions of torch never compile
    assert counters["misses"] == 0 or before["eager_calls"]
    assert counters["hits"] >= len(CASES[name].calls)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_says_what_is_left_out(reports: Reports, name: str) -> None:
    saved, loaded = (report.get(name) for report in reports)
    assert saved is not None and "error" not in saved
    said = saved.get("refused") or "\n".join(saved["saved"]["left_out"])
    assert CASES[name].left_out in said
    if loaded is not None:  # the other entries are saved, and run
        assert "error" not in loaded and loaded["results"] == saved["results"]


def script(text: str) -> Callable[..., str]:
    def run(*arguments: object) -> str:
        done = subprocess.run([sys.executable, "-c", text, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


IMPORTS = script(
    "import sys, torch, pycompiler\n"
    "assert not any(n.startswith('pycompiler.artefacts') for n in sys.modules)\n"
    "print(hasattr(pycompiler, 'load'))\n"
)


def test_a_program_without_artefacts_does_not_import_them() -> None:
    assert IMPORTS().strip() == "True"
