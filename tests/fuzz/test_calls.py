"""A part of the calls of `python -m tests.fuzz.calls`; the comparison detects planted differences."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest
import torch

import pycompiler
from fuzz import calls


@pytest.mark.parametrize("seed", range(0, 1000, 100))
def test_calls_end_as_in_eager(seed: int) -> None:
    assert [*calls.differences(seed, 60)] == []


def test_names_are_left_out_as_a_whole() -> None:
    """Names are matched as a whole: `isinstance` ends like `set_stance`, `setdefault` begins like `set`; both are
    called."""
    names = {calls.name_of(f) for f in calls.handled()}
    assert names >= {"builtins..isinstance", ".dict.dict.setdefault", "collections..deque", ".str.str.isprintable"}
    assert not names & calls.LEFT_OUT
    assert not any(name.startswith("pycompiler.") for name in names)
    assert calls.call_of(0, calls.handled())  # seeds draw from all functions that are not left out


@pytest.mark.parametrize("fn", [
    torch._C._is_tracing, torch._C._get_tracing_state, torch._C._are_functorch_transforms_active, torch._C._get_torch_function_state,
    torch._C._autograd._saved_tensors_hooks_is_enabled, torch.overrides.get_default_nowrap_functions,
    collections.defaultdict.copy, torch.ops.profiler._record_function_exit._RecordFunction,
], ids=lambda fn: fn.__name__)  # fmt: skip
def test_more_arguments_than_are_taken(fn: Any) -> None:
    kinds = ["defaultdict", "int"]
    assert calls.outcome(calls.program(fn, False), kinds)[0][1][1] == "'raised'"
    assert calls.difference(fn, [kinds, kinds], False) is None


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrongly(fn: Any, **options: Any) -> Any:
        return lambda args, x: fn((*args, None), x)

    monkeypatch.setattr(pycompiler, "compile", wrongly)
    assert calls.difference(len, [["list"]], False) is not None
    assert calls.difference(int, [["int"]], False) is not None


def test_calls_that_eager_does_not_repeat_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setitem(calls.MAKERS, "fresh", lambda: next(numbers))
    ended_by = set[str]()
    assert calls.difference("r = a", [["fresh", "int", "int"]], False, ended_by=ended_by) is None
    assert ended_by == {calls.UNSETTLED}
    monkeypatch.setattr(calls, "call_of", lambda seed, functions: ("r = a", [["fresh", "int", "int"]], False))
    (line,) = calls.differences(0, 3)
    assert line == f"3 of 3 programs ended early, at most 0.5% may: {calls.UNSETTLED}"


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
