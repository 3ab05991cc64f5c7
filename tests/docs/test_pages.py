"""The documentation: programs of the pages run, links have targets, generated parts have a row for each row of their
table."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config, logs
from pycompiler.capture.breaks import BREAK_KINDS
from tests.faults.table import TABLE
from tests.reports.run import load

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
DESIGN = {f"design/{path.name}" for path in (ROOT / "docs" / "design").glob("*.md")}
spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert spec is not None and spec.loader is not None
generate: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)


def headings(page: str) -> set[str]:
    text = re.sub(r"```.*?```", "", generate.on_page_markdown(PAGES[page]), flags=re.S)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            if file.endswith(".png"):
                assert (ROOT / "docs" / file).is_file() and anchor in ("only-light", "only-dark"), target
                continue
            assert not file or file in PAGES or file in DESIGN, target
            assert not anchor or anchor in headings(file or page), target


@pytest.mark.parametrize("page", ["index.md", "tutorial.md", "questions.md"])
def test_programs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"torch": torch, "pycompiler": pycompiler}
    for k, program in enumerate(re.findall(r"```python\n(.*?)```", PAGES[page], re.S)):
        path = tmp_path / f"program_{k}.py"
        path.write_text(program)
        exec(compile(program, str(path), "exec"), space)


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    assert all(f": {page}" in nav for page in PAGES)


def test_tables_wrap() -> None:
    """The theme's tables do not wrap long code: a column of the faults page lay beyond the edge."""
    assert "extra_css: [site.css]" in (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"td code \{ .*overflow-wrap: anywhere", (ROOT / "docs" / "site.css").read_text())


@pytest.mark.parametrize(
    ("page", "loads"),
    {
        '<script src="assets/a.js"></script><a href="https://pytorch.org">a link</a>': [],
        '<script src="https://cdn.example/a.js"></script>': ["https://cdn.example/a.js"],
        '<link rel="stylesheet" href="//fonts.example/css">': ["//fonts.example/css"],
        '<img alt="" src="http://example.org/a.png">': ["http://example.org/a.png"],
        "<style>@import 'https://example.org/a.css'; a { b: url(https://example.org/c) }</style>":
            ["https://example.org/a.css", "https://example.org/c"],
    }.items(),
)  # fmt: skip
def test_loads_of_other_hosts_are_found(page: str, loads: list[str]) -> None:
    assert generate.foreign(page) == loads


@pytest.mark.parametrize(
    "part, rows",
    [("breaks", BREAK_KINDS), ("knobs", [k.name for k in config.KNOBS]), ("artefacts", logs.ARTIFACTS),
     ("faults", [row.what for row in TABLE]), ("reports", [row.subject for row in load().values()])],
    ids=["breaks", "knobs", "artefacts", "faults", "reports"],
)  # fmt: skip
def test_generated_parts(part: str, rows: Any) -> None:
    text = generate.render(part)
    missing = [row for row in rows if row not in text]
    assert missing == []
    assert str(Path.home()) not in text


def test_marks_are_known() -> None:
    used = {name for page in PAGES.values() for name in generate.MARK.findall(page)}
    assert used == generate.PARTS.keys()
