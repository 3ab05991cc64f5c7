"""The README's first screen: its figures are those of `docs/measured.md`, and its pictures are small."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = (ROOT / "docs" / "measured.md").read_text()
README = (ROOT / "README.md").read_text()
PICTURES = sorted((ROOT / "docs" / "images").glob("*.png"))
spec = importlib.util.spec_from_file_location("plot", ROOT / "bench" / "plot.py")
assert spec is not None and spec.loader is not None
plot: Any = importlib.util.module_from_spec(spec)
sys.modules["plot"] = plot  # dataclasses look it up
spec.loader.exec_module(plot)


def test_the_figures_are_measured() -> None:
    """`python bench/plot.py` writes them."""
    assert f"{plot.BEGIN}\n{plot.table(MEASURED)}\n{plot.END}" in README


def test_rows_are_read() -> None:
    first = plot.rows(MEASURED)[0]
    assert first.name == "call: x + 1, 4 floats"
    assert all(re.fullmatch(r"[\d.]+ (ns|µs|ms|s)", text) for text in first.times)
    assert plot.Row("", ("250 ms", "–", "13 s")).seconds == (0.25, None, 13.0)


@pytest.mark.parametrize("name", ["figures.png", "figures-dark.png"])
def test_a_plot_has_the_figures_as_text(name: str) -> None:
    picture = (ROOT / "docs" / "images" / name).read_bytes()
    assert (
        plot.said(MEASURED) in picture.decode("utf-8", "replace")
        or plot.said(MEASURED).encode("latin-1", "replace") in picture
    )


def test_the_readme_is_short_and_begins_with_pictures() -> None:
    assert len(README.splitlines()) <= 120
    first = README.split("\n## ")[0]
    shown = re.findall(r"(?:src|srcset)=\"([^\"]+)\"", first)
    assert {"docs/images/report.png", "docs/images/figures.png"} <= set(shown)
    assert all((ROOT / path).is_file() for path in shown)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_small(path: Path) -> None:
    assert path.stat().st_size <= 150_000
