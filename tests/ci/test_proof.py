"""`tests/proof.py`: a test that compiles nothing fails, under the stub as well; a wrong mark fails, too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import proof

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import subprocess, sys
import pytest, torch, pycompiler
from tests.harness.compare import assert_same_calls

X = torch.ones(3)

def test_captures():
    assert torch.equal(pycompiler.compile(lambda x: x + 1, backend="eager")(X), X + 1)

@pycompiler.compile
def decorated(x):
    return x + 1

def test_is_never_called():
    pycompiler.compile(torch.sin)

def test_runs_eagerly():
    def values():
        yield X + 1
    assert torch.equal(next(pycompiler.compile(values)()), X + 1)

def test_is_refused():
    with pytest.raises(pycompiler.errors.Unsupported):
        pycompiler.compile(lambda x: pycompiler.graph_break(), fullgraph=True)(X)

@pytest.mark.captures_nothing("is not called")
def test_is_marked():
    pycompiler.compile(torch.sin)

@pytest.mark.captures_nothing("is not called, it says")
def test_is_marked_wrongly():
    pycompiler.compile(lambda x: x + 1, backend="eager")(X)

@pytest.mark.parametrize("called", [True, False])
@pytest.mark.captures_nothing("is not called", "False")
def test_one_case_is_marked(called):
    compiled = pycompiler.compile(lambda x: x + 1, backend="eager")
    if called:
        compiled(X)

@pytest.mark.parametrize("calls, reason", [(1, None), (1, "one call"), (2, None), (2, "two calls")])
def test_compares(calls, reason):
    program = lambda x: x + 1
    assert_same_calls(pycompiler.compile(program, backend="eager"), program, lambda: (X,), calls=calls, hits=reason)

def test_asks_for_nothing():
    assert X.sum() == 3

def test_in_a_process():
    program = "import pycompiler, torch; f = pycompiler.compile(lambda x: x + 1, backend='eager'); f(torch.ones(1)); print(pycompiler.counters(f))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "'compiles': 1" in done.stdout, done.stderr
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By option and test: the outcome; the reports must agree."""
    found = {}
    folder = tmp_path_factory.mktemp("proof")
    for name, options in {"plain": [], "stub": ["--stub-compile"]}.items():
        report = folder / name
        path = ROOT / "tests" / "ci" / f"made_{os.getpid()}.py"
        path.write_text(TESTS)
        try:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--tb=short",
                path,
                *options,
                "--proof-report",
                report,
            ]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        finally:
            path.unlink()
        assert report.exists(), done.stdout + done.stderr
        rows = map(json.loads, report.read_text().splitlines())
        found[name] = {row["test"].partition("::")[2].removeprefix("test_"): row["outcome"] for row in rows}
    assert list(proof.table([folder / "stub"]))[-1] == "| **all** | 12 | 9 | 1 | 75.0% |"
    return found


def test_the_page_names_the_folders_that_need_a_proof() -> None:
    page = (ROOT / "docs" / "design" / "testing.md").read_text()
    (folders,) = re.findall(r"--proof-report stub\.jsonl tests/\{(.*?)\}", page)
    assert set(folders.split(",")) == proof.END_TO_END
    assert all((ROOT / "tests" / name).is_dir() for name in proof.END_TO_END)


def test_what_captures_nothing_fails(outcomes: dict[str, dict[str, str]]) -> None:
    failed = {name for name, outcome in outcomes["plain"].items() if outcome == "failed"}
    unproved = {"compares[1-None]", "compares[2-two calls]"}  # no call hit; one did, in spite of the reason
    assert failed == {"is_never_called", "runs_eagerly", "is_marked_wrongly", *unproved}
    assert len(outcomes["plain"]) == 14


def test_the_stub_fails_all_that_ask(outcomes: dict[str, dict[str, str]]) -> None:
    passed = {name for name, outcome in outcomes["stub"].items() if outcome == "passed"}
    assert passed == {"is_marked", "one_case_is_marked[False]", "is_marked_wrongly", "asks_for_nothing"}
