"""Runs the recipes of CONTRIBUTING.md unchanged, each in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pycompiler

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^## Recipe: ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```", re.M | re.S)
PRELOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pycompiler._native", {library!r})
module = importlib.util.module_from_spec(spec)
sys.modules["pycompiler._native"] = module
spec.loader.exec_module(module)
"""


def blocks(recipe: str, language: str) -> list[tuple[str, str]]:
    """(note, code) of the recipe's blocks in a language."""
    found = BLOCK.finditer(RECIPES[recipe])
    return [(m["note"] or "", m["code"]) for m in found if m["language"] == language]


def run(recipe: str, tmp_path: Path, preamble: str = "") -> None:
    """The recipe's Python blocks as one program."""
    program = tmp_path / "recipe.py"
    program.write_text(preamble + "\n".join(code for _, code in blocks(recipe, "python")))
    env = dict(os.environ)
    if "site-packages" not in str(pycompiler.__file__):  # the sources are under test, not a wheel
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    out = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=env, check=False)
    assert out.returncode == 0, out.stderr


def test_files_that_the_pages_name_are_there() -> None:
    elsewhere = {
        "Python/bytecodes.c",
        "fx_graph_runnable.py",
        "minifier_launcher.py",
    }  # constants of CPython; names that the debugging tools write
    files = [f"/{p.relative_to(ROOT)}" for top in ("pycompiler", "guards-rs", "tests", "bench", "docs", ".ci")
             for p in (ROOT / top).rglob("*")]  # fmt: skip
    files += [f"/{p.name}" for p in ROOT.iterdir()]
    for page in ("CONTRIBUTING.md", "ARCHITECTURE.md", "README.md"):
        named = set(re.findall(r"`([\w./-]+\.(?:py|rs|md|txt|h|toml|c))(?::\s?\w+)?`", (ROOT / page).read_text()))
        assert named
        for name in named - elsewhere:
            pattern = re.compile(re.escape(f"/{name.removeprefix('../')}").replace(r"3\.1x", r"3\.1\d") + "$")
            assert any(map(pattern.search, files)), f"{page} names {name}"


def test_the_four_are_there() -> None:
    assert list(RECIPES) == ["add an opcode", "add an operator lowering", "add a guard kind", "add a backend"]
    assert all(blocks(recipe, "python") for recipe in RECIPES)


@pytest.mark.parametrize("recipe", ["add an opcode", "add an operator lowering", "add a backend"])
def test_recipe(recipe: str, tmp_path: Path) -> None:
    run(recipe, tmp_path)


def apply(note: str, code: str, tree: Path) -> None:
    """`file: PATH` writes the block there; `insert: PATH, before: LINE` puts it before the only such line."""
    if note.startswith("file: "):
        (tree / note.removeprefix("file: ")).write_text(code)
        return
    path, _, line = note.removeprefix("insert: ").partition(", before: ")
    lines = (tree / path).read_text().splitlines(True)
    at = [i for i, text in enumerate(lines) if text.strip() == line]
    assert len(at) == 1, f"{path} has {len(at)} lines {line!r}"
    (tree / path).write_text("".join([*lines[: at[0]], code, *lines[at[0] :]]))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cargo") is None, reason="no Rust on this machine")
def test_guard_kind(tmp_path: Path) -> None:
    """Builds the engine with the recipe's Rust in a copy of the crate, and runs the recipe's Python on it."""
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "guards-rs", tmp_path / "guards-rs")
    for note, code in blocks("add a guard kind", "rust"):
        apply(note, code, tmp_path)
    target = ROOT / "target" / "recipes"
    env = {**os.environ, "CARGO_TARGET_DIR": str(target), "PYO3_PYTHON": sys.executable}
    command = ["cargo", "build", "--quiet", "--features", "extension-module"]
    out = subprocess.run(command, cwd=tmp_path / "guards-rs", env=env, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    library = shutil.copy(target / "debug" / "lib_native.so", tmp_path / "_native.so")
    run("add a guard kind", tmp_path, PRELOAD.format(library=str(library)))
