"""`tests/mutants.py`: which changes it makes, that each is one place of one file, and that a seed is one choice."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest

from tests import mutants

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
    assert [number for number, _, _ in found if not 7 <= number <= 12] == []  # no defaults, words, docs or raises


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


def test_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that the test sees is killed, one that it does not see survives; the file is as before afterwards."""
    tree = object.__new__(mutants.Tree)
    tree.folder, tree.jobs = tmp_path, 1
    (tmp_path / "f.py").write_text("def f():\n    return 1, 2\n")
    (tmp_path / "test_f.py").write_text("from f import f\n\ndef test_f():\n    assert f()[0] == 1\n")
    room = mutants.Room(("f.py",), ("test_f.py",))
    for text, verdict in (("def f():\n    return 2, 2\n", "killed"), ("def f():\n    return 1, 3\n", "survived")):
        assert tree.verdict(mutants.Mutant("f.py", 2, "plus one", text), room, 60.0) == verdict
        assert (tmp_path / "f.py").read_text() == "def f():\n    return 1, 2\n"
    (tmp_path / "test_f.py").write_text("import time\n\ndef test_f():\n    time.sleep(60)\n")
    hangs = mutants.Mutant("f.py", 2, "hangs", "def f(): ...\n")
    assert tree.verdict(hangs, room, 5.0) == "killed by time"
