"""Programs of the page about graph breaks: the first one of each section breaks with its id, the second one does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.capture.breaks import BREAK_KINDS

PAGE = Path(__file__).parents[2] / "docs" / "breaks.md"
SECTIONS: dict[str, list[str]] = {
    section.partition("\n")[0].strip(): re.findall(r"```python\n(.*?)```", section, re.S)
    for section in PAGE.read_text().split("\n## ")[1:]
}


def breaks(program: str, tmp_path: Path) -> list[str]:
    """The kinds of breaks of `fn(*args)`; its values must equal eager's."""
    path = tmp_path / "program.py"
    path.write_text(program)
    space: dict[str, Any] = {"torch": torch, "pycompiler": pycompiler, "logging": __import__("logging")}
    exec(compile(program, str(path), "exec"), space)
    args = space.get("args", (torch.arange(4.0),))
    explained = pycompiler.explain(space["fn"])
    try:
        found = explained(*args)
    except ValueError:  # raised by the program itself
        return ["uncaught-exception"]
    return [record.kind for record in found.break_reasons]


def test_every_kind_has_a_section() -> None:
    assert SECTIONS.keys() == BREAK_KINDS.keys()
    assert all(len(programs) == 2 for programs in SECTIONS.values())


@pytest.mark.parametrize("kind", [k for k in BREAK_KINDS if k != "trace-budget"])
def test_programs(kind: str, tmp_path: Path) -> None:
    bad, good = SECTIONS[kind]
    assert breaks(bad, tmp_path)[0] == kind
    assert breaks(good, tmp_path) == []
