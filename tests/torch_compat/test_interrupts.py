"""Signals that arrive during a compile: the handler waits for a safe point."""

from __future__ import annotations

import signal
import types
from collections.abc import Iterator
from typing import Any

import pytest

from pycompiler.torch_compat import interrupts
from pycompiler.torch_compat.interrupts import HandlerRaised, allowed, check, deferred


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signal numbers that the user's SIGTERM handler received. SIGINT is ignored, as in a background job of a shell."""
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
            with deferred():  # stands for a compile inside the user's backend
                signal.raise_signal(signal.SIGTERM)
                assert len(heard) == 1
            assert len(heard) == 2
            signal.raise_signal(signal.SIGTERM)
            assert len(heard) == 3
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 3
    assert len(heard) == 4


class Refused(Exception):
    pass


def compiles() -> None:
    with deferred():
        check()
        with allowed(), deferred():
            check()


@pytest.mark.parametrize("error", [Refused, KeyboardInterrupt])
def test_a_handler_may_raise_wherever_the_compile_changes_handlers(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(number: int, frame: Any) -> None:
        raise error

    def nth(function: Any) -> Any:
        """`function`, which raises a signal when its n-th call returns; calls of both functions count."""

        def called(*args: Any) -> Any:
            nonlocal left
            result = function(*args)
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGTERM)
            return result

        return called

    patched = types.SimpleNamespace(signal=nth(signal.signal), getsignal=nth(signal.getsignal))
    heard = 0
    before = signal.signal(signal.SIGTERM, handler)
    try:
        for n in range(1, 100):
            left = n
            with monkeypatch.context() as m:
                m.setattr(interrupts, "signal", patched)
                try:
                    compiles()
                except error:
                    heard += 1
            assert signal.getsignal(signal.SIGTERM) is handler, n
            assert (interrupts.pending, interrupts._blocks, interrupts._waiting) == ([], 0, False), n
            if left > 0:
                break
            late = False
            with pytest.raises(error), deferred():
                signal.raise_signal(signal.SIGTERM)
                late = True
            assert late
        assert left > 0  # every call was covered
        assert heard == n - 1 > 10
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_signal_does_not_wait() -> None:
    def handler(number: int, frame: Any) -> None:
        raise Refused

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Refused), deferred():
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(HandlerRaised):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_that_was_read_during_a_compile_may_be_set_again(heard: list[int]) -> None:
    with deferred(), allowed():
        read = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, read)
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    with deferred():
        pass
