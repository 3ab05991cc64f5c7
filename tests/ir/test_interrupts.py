"""Signals that come during a compile wait for a safe point."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pycompiler.ir.interrupts import allowed, check, deferred


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signal numbers that the user's handler of SIGTERM got; SIGINT is ignored, as in a shell's background job."""
    got: list[int] = []
    before = (
        signal.signal(signal.SIGTERM, lambda number, frame: got.append(number)),
        signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    handler: Any = signal.getsignal(signal.SIGTERM)
    yield got
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])


def test_a_compile_inside_of_a_compile_ends_no_waiting(heard: list[int]) -> None:
    with deferred():
        with deferred():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert heard == []
        check()
        assert heard == [signal.SIGTERM]
    assert heard == [signal.SIGTERM]


def test_what_waits_runs_where_signals_are_allowed(heard: list[int]) -> None:
    with deferred():
        signal.raise_signal(signal.SIGTERM)
        with allowed():
            assert heard == [signal.SIGTERM]
            with deferred():  # a compile in the user's backend
                signal.raise_signal(signal.SIGTERM)
                assert len(heard) == 1
            assert len(heard) == 2
            signal.raise_signal(signal.SIGTERM)
            assert len(heard) == 3
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 3
    assert len(heard) == 4
