"""Set-up of all benches: one thread unless a bench says otherwise, a known state before and after each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

from peers import MAKERS, Peer  # noqa: E402

CALLS = 100  # calls per round of `Measure.calls`: the loop of the benchmark fixture would distort a call of 0.4 µs


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """The implementation under test (indirect parameter: its name), reset before and after."""
    made = MAKERS[request.param]()
    made.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield made
    torch.set_num_threads(threads)
    made.reset()


class Measure:
    """Runs one bench and records, for the ratio table, the implementation and the required ratio."""

    def __init__(self, benchmark: Any, peer: Peer) -> None:
        self.benchmark = benchmark
        self.peer = peer

    def note(self, group: str, calls: int, limits: dict[str, float] | None) -> None:
        self.benchmark.group = group
        self.benchmark.extra_info.update(impl=self.peer.name, calls=calls, limits=limits or {})

    def calls(
        self, group: str, fn: Callable[..., Any], *args: Any, limits: dict[str, float] | None = None, warm: int = 20
    ) -> None:
        """Time of a call `fn(*args)` that takes microseconds."""
        for _ in range(warm):
            fn(*args)

        def hundred() -> None:
            for _ in range(CALLS):
                fn(*args)

        self.note(group, CALLS, limits)
        self.benchmark(hundred)

    def work(
        self,
        group: str,
        fn: Callable[[], Any],
        limits: dict[str, float] | None = None,
        warm: int = 5,
        moved: int | None = None,
    ) -> None:
        """Time of `fn()` that takes a millisecond or more. `moved`: the least bytes that it must read and write."""
        for _ in range(warm):
            fn()
        self.note(group, 1, limits)
        self.benchmark.extra_info.update(moved=moved, threads=torch.get_num_threads())
        self.benchmark(fn)

    def once(
        self,
        group: str,
        setup: Callable[[], tuple[Any, ...]],
        fn: Callable[..., Any],
        limits: dict[str, float] | None = None,
        rounds: int = 3,
    ) -> None:
        """Time of `fn(*setup())`, set up anew each round."""
        self.note(group, 1, limits)
        self.benchmark.pedantic(fn, setup=lambda: (setup(), {}), rounds=rounds)


@pytest.fixture
def measure(benchmark: Any, peer: Peer) -> Measure:
    return Measure(benchmark, peer)
