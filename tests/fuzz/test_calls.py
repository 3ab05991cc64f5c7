"""A part of the calls of `python -m tests.fuzz.calls`, and that the comparison sees what it is there for."""

from __future__ import annotations

from typing import Any

import pytest

import pycompiler
from fuzz import calls


@pytest.mark.parametrize("seed", range(0, 1000, 100))
def test_calls_end_as_in_eager(seed: int) -> None:
    assert [*calls.differences(seed, 60)] == []


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrongly(fn: Any, **options: Any) -> Any:
        return lambda args, x: fn((*args, None), x)

    monkeypatch.setattr(pycompiler, "compile", wrongly)
    assert calls.difference(len, [["list"]], False) is not None
    assert calls.difference(int, [["int"]], False) is not None


def test_a_stale_hit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(fn: Any, **options: Any) -> Any:
        first: list[Any] = []

        def call(args: Any, x: Any) -> Any:
            first.append(fn(args, x))
            return first[0]

        return call

    monkeypatch.setattr(pycompiler, "compile", kept)
    assert calls.difference(len, [["list"], ["list"]], False) is None
    assert calls.difference(len, [["list"], ["four"]], False) is not None
