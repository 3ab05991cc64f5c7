"""Operators by stretch, and the end of a call."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch

from pycompiler.debug.eager_operators import OTHERS, CallEnd, OperatorTimes, end_overhead, may_watch

X = torch.ones(64)


def program() -> torch.Tensor:
    return other(X)


def other(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_operators_belong_to_their_stretch() -> None:
    times = OperatorTimes()
    X.neg()
    times.stretch(1, time.perf_counter())
    times.since = time.perf_counter()
    times.stretch(2, time.perf_counter())
    X.abs()  # after the last stretch
    found = times.end()
    assert found[1] > 0 and found[2] == 0 and not torch.autograd._profiler_enabled()


def test_an_operator_that_another_one_calls_counts_once() -> None:
    times = OperatorTimes()
    start = time.perf_counter()
    torch.nn.functional.layer_norm(X, (64,))
    whole = time.perf_counter() - start
    times.stretch(1, time.perf_counter())
    assert 0 < times.end()[1] <= 1e9 * whole + 1e3  # the profiler counts microseconds


def test_the_end_of_a_call_is_seen_once() -> None:
    ends: list[float] = []
    CallEnd(program.__code__, ends.append)
    program()
    ended = time.perf_counter()
    program()
    assert len(ends) == 1 and ends[0] <= ended and sys.gettrace() is None


def test_a_call_that_does_not_begin_is_given_up() -> None:
    ends: list[float] = []
    CallEnd(program.__code__, ends.append)
    for _ in range(OTHERS):
        other(X)
    assert sys.gettrace() is None
    program()
    assert not ends


def test_nothing_is_watched_while_the_program_traces() -> None:
    assert may_watch() == (not torch.cuda.is_available())
    sys.settrace(lambda *_: None)
    try:
        assert not may_watch()
    finally:
        sys.settrace(None)
    with torch.autograd.profiler.profile():
        assert not may_watch()


def test_the_time_of_an_end_is_measured() -> None:
    assert end_overhead() >= 0


@pytest.fixture(autouse=True)
def _no_trace() -> Any:
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)
