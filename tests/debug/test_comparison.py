"""`report --diff`: causes that are new and gone, and times that changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.__main__ import main
from pycompiler.debug import comparison
from pycompiler.debug.comparison import Comparison
from pycompiler.debug.document import Document
from pycompiler.debug.document_queries import DocumentQueries
from pycompiler.debug.events import Recorder
from pycompiler.debug.page import page


def old(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print("half way")
    return y + 1


def new(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y - 1
    return y + 1


def document_of(fn: Any) -> Document:
    events: list[Any] = []
    with Recorder(events.append, costs=True):
        compiled = pycompiler.compile(fn)
        for _ in range(6):
            compiled(torch.ones(4))
    return Document.of(events)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The old report as JSON, the new one as a page."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "old.json").write_text(json.dumps(document_of(old).data))
    (folder / "new.html").write_text(page(document_of(new)))
    return folder / "old.json", folder / "new.html"


def test_new_and_gone_causes(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--diff", *map(str, files)]) == 0
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert any(line.startswith("new: line ") and "[data-dependent-jump]" in line for line in lines), told
    assert any(line.startswith("gone: line ") and "[builtin-call]" in line for line in lines), told


def test_a_report_equals_itself(files: tuple[Path, Path]) -> None:
    for file in files:
        document = comparison.read(file)
        assert str(Comparison.of(document, document)).startswith("no difference")


def test_a_moved_line_is_the_same_cause(files: tuple[Path, Path]) -> None:
    first, moved = comparison.read(files[0]), comparison.read(files[0])
    text = json.dumps(moved.data)
    line = moved.data["causes"][0]["where"].rpartition(":")[2]
    moved = DocumentQueries(json.loads(text.replace(f'{line}, "    print', f'{int(line) + 100}, "    print')))
    moved.data["causes"][0]["where"] = moved.data["causes"][0]["where"].replace(f":{line}", f":{int(line) + 100}")
    assert comparison.causes(first).keys() == comparison.causes(moved).keys()


def test_times_that_changed_are_sorted(files: tuple[Path, Path]) -> None:
    before, after = (comparison.read(files[0]) for _ in range(2))
    steps = after.main_steps
    assert steps is not None
    for part in ("guards", "before"):
        steps[part] = {k: v * 10 for k, v in steps[part].items()}
    told = Comparison.of(before, after)
    assert [change for change, _ in told.times] == sorted((c for c, _ in told.times), key=abs, reverse=True)
    assert any(text.startswith("guards of a step: ") for _, text in told.times)
    assert "slower: guards of a step: " in str(told)


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.html").write_text("<p>")
    for name in ("a.json", "b.html", "none.json"):
        assert main(["report", "--diff", str(tmp_path / name), str(tmp_path / name)]) == 2
        assert "is no report (--json, or a page)" in capsys.readouterr().err
