"""Queries that libraries make in functions: torch's version, and loggers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler

X = torch.ones(2)
LOG = logging.getLogger("pycompiler.tests.versions")
VERSION = torch.__version__


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.__version__ >= "2.0",
        lambda: torch.__version__ >= (2, 1) and "2.0" < VERSION,
        lambda: tuple(int(v) for v in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 0),
        lambda: (VERSION, str(VERSION), f"{VERSION}", VERSION + "a", type(VERSION).__name__, isinstance(VERSION, str)),
        lambda: (
            VERSION == "1.0",
            VERSION != "1.0",
            VERSION in ("1.0",),
            {VERSION: 1}[VERSION],
            VERSION.startswith("2"),
        ),
    ],
)
def test_the_version_of_torch_is_a_constant(ask: Callable[[], Any]) -> None:
    def program(x: Any) -> Any:
        return x + 1, ask()

    compiled = pycompiler.compile(program, fullgraph=True, backend="eager")
    assert compiled(X)[1] == program(X)[1]
    assert type(compiled(X)[1]) is type(program(X)[1])


def test_a_version_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Any) -> Any:
        return x + 1 if torch.__version__ >= "2.0" else x

    compiled = pycompiler.compile(program, fullgraph=True)
    compiled(X)
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("1.9.0"))
    assert torch.equal(compiled(X), X)


def test_loggers_are_asked_what_they_are() -> None:
    def program(x: Any) -> Any:
        log = logging.getLogger("pycompiler.tests.versions")
        if log.isEnabledFor(logging.DEBUG):
            x = x * 2
        return x + log.getEffectiveLevel(), log is LOG, logging.getLogger() is logging.root

    compiled = pycompiler.compile(program, fullgraph=True)
    before, parent = LOG.level, LOG.parent
    assert parent is not None
    above = parent.level
    try:
        for change in (
            lambda: None,
            lambda: LOG.setLevel(logging.DEBUG),
            lambda: LOG.setLevel(logging.ERROR),
            lambda: logging.disable(logging.CRITICAL),
            lambda: logging.disable(logging.NOTSET),
            lambda: LOG.setLevel(logging.NOTSET),
            lambda: parent.setLevel(logging.DEBUG),
            lambda: LOG._cache.update({logging.DEBUG: False}),  # type: ignore[attr-defined]
        ):
            change()
            seen, expected = compiled(X), program(X)
            assert torch.equal(seen[0], expected[0]) and seen[1:] == expected[1:]
    finally:
        logging.disable(logging.NOTSET)
        LOG.setLevel(before)
        parent.setLevel(above)


def test_a_logger_that_is_made_is_loggings() -> None:
    def program(x: Any) -> Any:
        return x + 1, logging.getLogger("pycompiler.tests.versions.made").name

    explained = pycompiler.explain(program)(X)
    assert explained.graph_break_count == 1
    assert pycompiler.compile(program, fullgraph=True)(X)[1] == "pycompiler.tests.versions.made"  # exists now


def later_than_two(x: Any) -> Any:
    return x + 1 if torch.__version__ >= "2.0" else x


def test_what_asks_for_the_version_is_saved(tmp_path: Path) -> None:
    compiled = pycompiler.compile(later_than_two, backend="eager", fullgraph=True)
    compiled(X)
    pycompiler.save(compiled, tmp_path / "saved")
    loaded = pycompiler.load(tmp_path / "saved", later_than_two)
    assert torch.equal(loaded(X), X + 1)
    assert loaded.counters()["compiles"] == 0
