"""Concurrent use through the public API: right values, no deadlock, and no growth."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler

SECONDS = 2.0
SIZES = (2, 3, 4, 5)


def hammer(workers: list[Callable[[random.Random], None]], seconds: float = SECONDS) -> None:
    """Run each worker repeatedly in a thread of its own; fail with the first error, or when a thread hangs."""
    errors: list[BaseException] = []
    stop = time.monotonic() + seconds

    def loop(index: int, work: Callable[[random.Random], None]) -> None:
        rng = random.Random(index)
        torch.set_grad_enabled(True)
        try:
            while time.monotonic() < stop and not errors:
                work(rng)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=loop, args=pair, daemon=True) for pair in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]


def program(x: Any, n: int) -> Any:
    y = x * n
    pycompiler.graph_break()
    return (y + 1).sum()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.filterwarnings("ignore")
def test_calls_compiles_resets_and_freezes(backend: str) -> None:
    """Several callables; threads call, compile new ones, reset one or all, freeze and thaw."""
    shared = [pycompiler.compile(program, backend=backend) for _ in range(2)]

    def call(rng: random.Random) -> None:
        size, n = rng.choice(SIZES), rng.randrange(3)
        assert rng.choice(shared)(torch.ones(size), n).item() == size * (n + 1)

    def compile_new(rng: random.Random) -> None:
        n = rng.randrange(3)
        assert pycompiler.compile(program, backend=backend)(torch.ones(2), n).item() == 2 * (n + 1)

    def reset(rng: random.Random) -> None:
        pycompiler.reset(rng.choice([*shared, None]))
        pycompiler.counters()
        time.sleep(0.02)

    def freeze(rng: random.Random) -> None:
        made = rng.choice(shared)
        pycompiler.set_policy(made, "run")
        time.sleep(0.01)
        pycompiler.set_policy(made, "compile")

    hammer([call, call, call, compile_new, reset, freeze])
    for made in shared:
        pycompiler.set_policy(made, "compile")
        assert made(torch.ones(3), 2).item() == 9


def test_one_model_served_by_many_threads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).eval()
    made = pycompiler.compile(model)
    inputs = {n: torch.randn(n, 8) for n in SIZES}
    with torch.no_grad():
        want = {n: model(x) for n, x in inputs.items()}

    def serve(rng: random.Random) -> None:
        n = rng.choice(SIZES)
        with torch.no_grad():
            torch.testing.assert_close(made(inputs[n]), want[n])

    hammer([serve] * 4)
    assert pycompiler.counters(made)["compiles"] <= len(SIZES)  # concurrent misses compile once


def test_training_in_threads() -> None:
    """Each thread trains a model of its own through one compiled function."""

    @pycompiler.compile(backend="aot_eager")
    def loss(model: Any, x: Any) -> Any:
        return model(x).square().mean()

    def train(rng: random.Random) -> None:
        torch.manual_seed(0)
        weight = nn.Linear(4, 2)
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        loss(weight, x).backward()
        have = weight.weight.grad.clone()
        weight.zero_grad()
        weight(x).square().mean().backward()
        assert have.shape == weight.weight.grad.shape

    hammer([train] * 3, 1.0)


def test_grad_mode_belongs_to_the_thread() -> None:
    made = pycompiler.compile(lambda x: x * 2, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)

    def with_grad(rng: random.Random) -> None:
        assert made(x).requires_grad

    def without(rng: random.Random) -> None:
        with torch.no_grad():
            assert not made(x).requires_grad

    hammer([with_grad, without, with_grad, without], 1.0)
    assert pycompiler.counters(made)["compiles"] == 2


def test_a_compile_blocks_no_other_callable() -> None:
    """While one thread is in a slow backend, others call compiled functions and compile further callables."""
    entered, leave = threading.Event(), threading.Event()

    def slow(gm: Any, inputs: Any) -> Any:
        entered.set()
        assert leave.wait(300)
        return gm.forward

    busy = pycompiler.compile(lambda x: x + 1, backend=slow)
    other = pycompiler.compile(lambda x: x + 2, backend="eager")
    other(torch.ones(2))
    thread = threading.Thread(target=lambda: busy(torch.ones(2)))
    thread.start()
    try:
        assert entered.wait(300)
        assert other(torch.ones(2)).tolist() == [3, 3]
        assert pycompiler.compile(lambda x: x + 3, backend="eager")(torch.ones(2)).tolist() == [4, 4]
        pycompiler.reset(other)
        pycompiler.reset(busy)
        assert other(torch.ones(2)).tolist() == [3, 3]
    finally:
        leave.set()
        thread.join(300)
    assert not thread.is_alive()
    assert busy(torch.ones(2)).tolist() == [2, 2]


def test_compiles_in_threads_leave_the_process_as_it_was() -> None:
    """The recursion limit, which a capture raises, and the knobs in a callable's options are shared by all threads."""
    before = sys.getrecursionlimit(), pycompiler.config.snapshot()
    seen: set[int] = set()

    def compile_new(rng: random.Random) -> None:
        own = rng.choice((3, 5, 7))
        made = pycompiler.compile(lambda x: (x * own).relu(), backend="aot_eager", options={"threads": own})
        assert made(torch.ones(2)).tolist() == [own, own]
        seen.add(own)

    hammer([compile_new] * 4, 1.0)
    assert len(seen) > 1
    assert (sys.getrecursionlimit(), pycompiler.config.snapshot()) == before


def test_endless_recursion_while_others_compile() -> None:
    """Captures raise the recursion limit for all threads; a recursion deeper than the C stack ends cleanly."""

    def endless(x: Any) -> Any:
        pycompiler.graph_break()
        return endless(x + 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        with pytest.raises(RecursionError):
            pycompiler.compile(endless, backend="eager")(torch.ones(2))
        direct = pycompiler.compile(lambda x: direct(x.add_(1)), backend="eager")
        # CPython 3.12 bounds calls from C itself, before the stack is used up
        told = "maximum recursion depth" if sys.version_info[:2] == (3, 12) else "ulimit -s"
        with pytest.raises(RecursionError, match=told):
            direct(torch.ones(2))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.captures_nothing("the capture has no stack left")
def test_a_compile_without_stack_runs_eagerly_and_quietly(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    def refuses(*args: Any, **kwargs: Any) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("pycompiler.pipeline.compiler.capture_frame", refuses)
    made = pycompiler.compile(lambda x: x + 1, backend="eager")
    with caplog.at_level("INFO", "pycompiler"):
        assert made(torch.ones(2)).tolist() == [2.0, 2.0]
    assert [r.levelname for r in caplog.records if "runs eagerly" in r.message] == ["INFO"]


def test_interrupts_at_random_moments() -> None:
    """KeyboardInterrupt raised in the middle of a compile by another thread's signal leaves everything usable."""
    import signal

    made = pycompiler.compile(program, backend="eager")
    interrupted = 0
    rng = random.Random(0)
    for _ in range(25):
        pycompiler.reset(made)
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.01))
            for _ in range(50):
                assert made(torch.ones(2), 1).item() == 4
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert made(torch.ones(2), 1).item() == 4
    assert interrupted > 0
