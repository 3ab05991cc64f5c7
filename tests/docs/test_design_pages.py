"""Pages about the design name things that exist: files, and identifiers in backticks."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
# Names of CPython's own tests, and of generated functions.
ELSEWHERE = {"testing.md": r"test_|Test", "graph_breaks.md": r"f\.<locals>"}


@cache
def words() -> frozenset[str]:
    """All identifiers of the sources."""
    sources = [p for top, kinds in (("pycompiler", ("py", "pyi", "h")), ("guards-rs/src", ("rs",)), ("tests", ("py",)), ("bench", ("py",)))
               for kind in kinds for p in (ROOT / top).rglob(f"*.{kind}")]  # fmt: skip
    found: set[str] = set()
    for path in sources:
        found.update(re.findall(r"\w+", path.read_text()))
    return frozenset(found)


def quoted(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_identifiers_exist(page: Path) -> None:
    unknown = [
        name
        for name in quoted(page)
        if re.fullmatch(r"[A-Za-z_][\w.]*", name) and not re.match(ELSEWHERE.get(page.name, r"$."), name)
        for word in re.findall(r"\w+", name)
        if word not in words()
    ]
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_name_with_its_file_is_defined_there(page: Path) -> None:
    """`file.py: name`, and `name` in `file.py`."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    pairs = re.findall(r"`([\w/]+\.(?:py|rs)): ?(\w+)`", text)
    pairs += [
        (file, name.rpartition(".")[2]) for name, file in re.findall(r"`([\w.]+)` in `([\w/]+\.(?:py|rs))`", text)
    ]
    for file, name in pairs:
        paths = [p for base in ("", "pycompiler", "guards-rs/src") if (p := ROOT / base / file).is_file()]
        assert paths, f"{file} is no file"
        assert any(re.search(rf"\b{name}\b", p.read_text()) for p in paths), f"{file} has no {name}"


def test_every_page_is_listed() -> None:
    listed = (ROOT / "docs" / "design" / "README.md").read_text()
    site = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES[1:]:
        assert page.name == "README.md" or f"({page.name})" in listed, page.name
        assert f"design/{page.name}" in site, page.name
