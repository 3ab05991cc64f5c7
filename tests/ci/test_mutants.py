"""`tests/mutants.py`: its changes, each in one place of one file, and their choice by seed."""

from __future__ import annotations

import ast
import difflib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests import covering, mutants

PYTHON = '''"""Docs: 1 < 2."""
LIMIT = 3


def f(a: int = 5, b: bool = True) -> int:
    """Adds 1."""
    if not a < b and a is not None:
        log.info("%d", 7)
        note(a, b)
        raise ValueError(a + 1)
    a += 2
    return max(a, b) if a else -a - 1


def describe(a):
    return a + 1
'''
RUST = """use std::x; // a == b
#[inline]
fn f(a: i64, b: i64) -> bool {
    let text = "a == b"; // true
    if !held && a <= b { return false; }
    rows.iter().any(|r| r.len() == 0 || r.x + a > 1.0)
}
#[cfg(test)]
mod tests { fn g() -> bool { 1 == 1 } }
"""


def changed(text: str, made: str) -> tuple[str, ...]:
    """The new lines."""
    return tuple(
        line[2:].strip() for line in difflib.ndiff(text.splitlines(), made.splitlines()) if line.startswith("+ ")
    )


def test_changes_of_python() -> None:
    found = mutants.python_mutants("f.py", PYTHON)
    lines = [changed(PYTHON, make()) for _, _, make in found]
    for _, _, make in found:
        ast.parse(make())
    assert all(len(made) == 1 for made in lines), lines
    assert {made[0] for made in lines} == {
        "if (not a < b or a is not None):", "if (not a < b):", "if (a < b) and a is not None:", "if not (a <= b) and a is not None:",
        "if not a < b and (a is None):", "pass", "a += (3)", "a += (1)", "return None",
        "return (-a - 1 if a else max(a, b))", "return max(a, b) if a else (-a + 1)", "return max(a, b) if a else (a) - 1",
        "return max(a, b) if a else -a - (2)", "return max(a, b) if a else -a - (0)", "(note(b, a))",
    }  # fmt: skip
    assert [number for number, _, _ in found if not 7 <= number <= 12] == []  # no defaults, strings, docs or raises


@pytest.mark.parametrize("returns", ["bool", "TypeGuard[int]", "bool | None"])
def test_equivalent_changes_are_left_out(returns: str) -> None:
    text = f"def f(a, b) -> {returns}:\n    g(zip(a, b, strict=True))\n    g(zip(a, b, strict=False))\n    a.graph.lint()\n    return False\n"
    made = {changed(text, make())[0] for _, _, make in mutants.python_mutants("f.py", text)}
    seen = {"pass", "g(zip(a, b, strict=(True)))", "return (True)"}
    assert made == (seen if returns != "bool | None" else {*seen, "return None"})


def test_changes_of_rust() -> None:
    found = mutants.rust_mutants("f.rs", RUST)
    assert {changed(RUST, make())[0] for _, _, make in found} == {
        "if held && a <= b { return false; }", "if !held || a <= b { return false; }", "if !held && a < b { return false; }",
        "if !held && a <= b { return true; }", "rows.iter().all(|r| r.len() == 0 || r.x + a > 1.0)",
        "rows.iter().any(|r| r.len() != 0 || r.x + a > 1.0)", "rows.iter().any(|r| r.len() == 1 || r.x + a > 1.0)",
        "rows.iter().any(|r| r.len() == 0 && r.x + a > 1.0)", "rows.iter().any(|r| r.len() == 0 || r.x - a > 1.0)",
    }  # fmt: skip


@pytest.mark.parametrize("name", mutants.ROOMS)
def test_a_seed_is_one_choice(name: str) -> None:
    room = mutants.ROOMS[name]
    first = mutants.chosen(room, 5, 1)
    assert first == mutants.chosen(room, 5, 1) != mutants.chosen(room, 5, 2)
    assert len(first) == 5
    for mutant in first:
        assert 0 < len(changed((mutants.ROOT / mutant.path).read_text(), mutant.text)) <= 40
    for test in room.tests:
        assert (mutants.ROOT / test).exists(), test


TRIAL = """
import sys
from pathlib import Path
from tests import mutants
mutants.ROOT, mutants.STARTS_S = Path.cwd(), 5.0
mutants.ROOMS = {"room": mutants.Room(("product/f.py",), ("checks",))}
sys.exit(mutants.main())
"""
PRODUCT = """def one():
    return 1 + 0

def unread(n):
    if n:
        return one()
    return None

def loop(n):
    while n > 0:
        n -= 1

def last():
    return ("last",)[0]
LAST = last()
"""
CHECKS = """
from product.f import loop, one, unread
def test_one(): assert one() == 1
def test_loop(): loop(2)
def test_unread(): unread(0)
def test_that_fails(): assert one() == 2
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a trial of all mutants of a small product."""
    folder = tmp_path_factory.mktemp("product")
    files = {
        "product/f.py": PRODUCT,
        "checks/conftest.py": "import product.f",
        "checks/test_f.py": CHECKS,
        "checks/test_slow.py": "import time\ndef test_s(): time.sleep(60)\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-c", TRIAL, "--count", "99", "--jobs", "3", "--out", "rows", "--clean-seconds", "8"]
    environment = {**os.environ, "PYTHONPATH": str(mutants.ROOT)}
    made = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 1, made  # below 90 %
    assert (folder / "product/f.py").read_text() == PRODUCT
    return [json.loads(line) for line in (folder / "rows").read_text().splitlines()]


@pytest.mark.slow
def test_the_clean_run_names_what_it_leaves_out(judged: list[dict[str, Any]]) -> None:
    clean = {row["clean"]: row for row in judged if "clean" in row}
    assert list(clean["checks/test_f.py"]["dropped"]) == ["checks/test_f.py::test_that_fails"]
    assert clean["checks/test_slow.py"]["status"] is None
    assert clean["checks/test_slow.py"]["tests"] == 0


@pytest.mark.slow
def test_verdicts(judged: list[dict[str, Any]]) -> None:
    """A change that a test detects is killed, by that test, and so is one that the tests' conftest cannot import; a
    change in a line that no test executes survives without a test."""
    found = {(row["line"], row["what"]): row for row in judged if "room" in row}
    assert found[2, "plus one"]["verdict"] == "killed"
    assert found[2, "plus one"]["by"] == "checks/test_f.py::test_one"
    assert found[2, "operator"]["verdict"] == "survived"
    assert found[11, "minus one"]["verdict"] == "killed by time"
    assert found[14, "plus one"]["verdict"] == "killed"
    assert "IndexError" in found[14, "plus one"]["why"]
    assert found[6, "result is None"]["verdict"] == "survived"
    assert found[6, "result is None"]["tests"] == (0 if covering.LINES_ARE_KNOWN else 3)


def test_lines_of_a_statement() -> None:
    text = "if (a and\n    b):\n    f(1,\n      2)\nelif c: g()\nmatch a:\n    case 1:\n        h()\n"
    found = {line: mutants.lines_of_statement(text, line) for line in range(1, 9)}
    assert found == {1: (1, 2), 2: (1, 2), 3: (3, 4), 4: (3, 4), 5: (5,), 6: (6,), 7: (7,), 8: (8,)}
