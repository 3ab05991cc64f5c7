"""Concurrent calls of compiled callables: the speed-up of two threads over sequential calls.

A kernel-bound graph runs without the GIL, so two threads on two idle cores need the time of one. The ratio compares
wall-clock times of the same work, by one thread and by two, in turns; 2.0 is the best on two cores. A busy machine
lowers the ratio, so `ready` is printed beside it: the mean number of threads that run or could run (from the
scheduler's accounts). A thread that waits for the GIL sleeps and does not count: 1.0 means sequential.

    python bench/bench_threads.py [--threads 2] [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pycompiler


def pointwise(x: Any) -> Any:
    """Only generated kernels."""
    return torch.tanh(x * 2).sin().exp().cos() + torch.erf(x)


def network() -> Any:
    """Matrix products through ATen, and generated kernels between them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512)).eval()


def cases() -> dict[str, tuple[Callable[[], Any], int]]:
    x, rows = torch.randn(1 << 20), torch.randn(128, 512)
    made, net = pycompiler.compile(pointwise), pycompiler.compile(network())
    return {"pointwise, 1M elements": (lambda: made(x), 20), "MLP 512-1024-512, 128 rows": (lambda: net(rows), 20)}


def ready_seconds() -> float:
    """Seconds for which this thread ran or waited for a processor."""
    run, wait, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(run) + int(wait)) / 1e9


def seconds(call: Callable[[], Any], calls: int, threads: int) -> tuple[float, float]:
    """(wall-clock seconds, ready seconds of all threads) of `calls` calls in each of so many threads."""
    ready: list[float] = []

    def work() -> None:
        before = ready_seconds()
        with torch.no_grad():
            for _ in range(calls):
                call()
        ready.append(ready_seconds() - before)

    started = [threading.Thread(target=work) for _ in range(threads)]
    begin = time.perf_counter()
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return time.perf_counter() - begin, sum(ready)


def measure(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    report = {}
    for name, (call, calls) in cases().items():
        seconds(call, 2, threads)
        pairs = [(seconds(call, calls * threads, 1), seconds(call, calls, threads)) for _ in range(rounds)]
        alone, beside = min(a for (a, _), _ in pairs), min(b for _, (b, _) in pairs)
        ready = statistics.median(ready / wall for _, (wall, ready) in pairs)
        report[name] = {"one_ms": alone / calls / threads * 1e3, "speedup": alone / beside, "ready": ready}
    return report


def test_two_threads(benchmark: Any) -> None:
    """In `make bench`: the wall-clock time of two threads; the speed-up is in the extra information."""
    call, calls = cases()["pointwise, 1M elements"]
    alone = min(seconds(call, 2 * calls, 1)[0] for _ in range(5))
    benchmark.pedantic(lambda: seconds(call, calls, 2), rounds=5, warmup_rounds=1)
    benchmark.extra_info["speedup"] = alone / benchmark.stats.stats.min


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.threads, arguments.rounds)
    print(json.dumps({k: {n: round(v, 3) for n, v in row.items()} for k, row in rows.items()}, indent=1))


if __name__ == "__main__":
    main()
