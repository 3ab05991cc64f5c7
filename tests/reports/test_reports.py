"""Reports of silent wrong results: pycompiler equals eager in each, and captures it. `python -m tests.reports` prints
the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pycompiler
from tests.reports.core import Raised, difference
from tests.reports.run import load, loud, run_here

ROOT = Path(__file__).parents[2]
ROWS = load()
# Rows where pycompiler differs today -> the reason.
DIFFERENT: dict[str, str] = {}
# Rows without a graph: they compute no tensor, eager refuses them, or capture leaves the whole frame to eager.
NO_GRAPH = {
    "100970", "116221", "116433", "147261", "150110", "150993", "169253", "195675", "196467", "198056 any", "198056 cumsum",
    "198056 median", "198056 sum", "198190", "141865", *(key for key in ROWS if key.startswith("198155")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    yield
    pycompiler.reset()


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(k, marks=pytest.mark.xfail(reason=DIFFERENT[k], strict=True) if k in DIFFERENT else ())
        for k in ROWS
    ],
)
def test_ours_is_eagers(key: str) -> None:
    verdict = run_here(ROWS[key], "ours")
    assert verdict.word == "right", verdict.text
    assert (verdict.graphs == 0) == (key in NO_GRAPH), verdict


def test_the_page_has_each_row() -> None:
    """The page has verdicts of both compilers, and pycompiler's equal the results above."""
    written = json.loads((ROOT / "docs" / "reports.json").read_text())
    assert written.keys() == ROWS.keys()
    for key, entry in written.items():
        assert entry["subject"] == ROWS[key].subject
        assert entry["peer"]["word"] in ("right", "wrong", "error", "crash", "timeout"), key
        assert (entry["ours"]["word"] == "right") == (key not in DIFFERENT), key


def test_there_are_enough() -> None:
    assert len({row.number for row in ROWS.values()}) >= 150


@pytest.mark.parametrize(
    "got, wanted, exact, same",
    [
        (torch.tensor([-0.0]), torch.tensor([0.0]), True, False),
        (torch.tensor([-0.0]), torch.tensor([0.0]), False, True),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True, True),
        (torch.tensor([float("nan")]), torch.tensor([0.0]), False, False),
        (torch.tensor([1]), torch.tensor([1.0]), False, False),
        (torch.ones(1, requires_grad=True), torch.ones(1), False, False),
        (Raised("ValueError"), torch.ones(1), False, False),
        (Raised("ValueError"), Raised("RuntimeError"), False, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False, False),
        ([1, (2,)], [1, (2,)], False, True),
        ([1], (1,), False, False),
    ],
)
def test_differences(got: object, wanted: object, exact: bool, same: bool) -> None:
    assert (difference(got, wanted, exact) is None) == same


def test_a_loud_error_is_told_from_a_wrong_value() -> None:
    assert loud([1, Raised("ValueError")], [1, 2])
    assert not loud([1, 3], [1, 2])
    assert not loud([torch.ones(1)], [Raised("ValueError")])  # eager refuses, the compiled call returns a value: silent


def test_a_compiler_that_returns_its_argument_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pycompiler, "compile", lambda fn, **options: fn)
    assert {run_here(ROWS[key], "ours").word for key in ("105264", "174174", "138112")} == {"error"}
