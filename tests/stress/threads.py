"""Threads that call, compile, reset (one, and everything), freeze and train, on one callable and on several."""

from __future__ import annotations

import faulthandler
import functools
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import pycompiler
from tests.stress.programs import broken, check_broken, check_net, check_training, loss_of, new_net

Work = Callable[[random.Random], None]


def hammer(workers: dict[str, Work], seconds: float) -> Counter[str]:
    """Run each worker repeatedly in a thread of its own; the number of runs of each.

    Fails with the first error, or if a thread has not returned a minute after the end (stacks are printed).
    """
    errors: list[BaseException] = []
    done: Counter[str] = Counter()
    stop = time.monotonic() + seconds

    def loop(index: int, name: str, work: Work) -> None:
        rng = random.Random(index)
        try:
            while not errors and (not done[name] or time.monotonic() < stop):  # once, however late a thread starts
                work(rng)
                done[name] += 1
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=loop, args=(i, *pair), daemon=True) for i, pair in enumerate(workers.items())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, stop - time.monotonic()) + 60)
    if any(t.is_alive() for t in threads):
        faulthandler.dump_traceback(all_threads=True)
        raise AssertionError(f"hang: {[n for n, t in zip(workers, threads, strict=True) if t.is_alive()]}")
    if errors:
        raise errors[0]
    return done


def workers(backend: str, several: bool) -> tuple[dict[str, Work], list[Any]]:
    """Eight threads, over one callable of each kind or over three."""
    n = 3 if several else 1
    calls = [pycompiler.compile(broken, backend=backend) for _ in range(n)]
    nets = [new_net(i).eval() for i in range(n)]
    served = [pycompiler.compile(net, backend=backend) for net in nets]
    train = [pycompiler.compile(loss_of, backend=backend) for _ in range(n)]
    shared: list[Any] = [*calls, *served, *train]

    def call(rng: random.Random) -> None:
        check_broken(rng.choice(calls), rng)

    def serve(rng: random.Random) -> None:
        i = rng.randrange(n)
        check_net(served[i], nets[i], rng)

    def training(rng: random.Random) -> None:
        check_training(rng.choice(train), rng)

    def compile_new(rng: random.Random) -> None:
        check_broken(pycompiler.compile(broken, backend=backend), rng)
        if rng.random() < 0.2:
            net = new_net(rng.randrange(3)).eval()
            check_net(pycompiler.compile(net, backend=backend), net, rng)

    def reset(rng: random.Random) -> None:
        time.sleep(rng.uniform(0, 0.05))
        pycompiler.reset(rng.choice(shared))

    def reset_all(rng: random.Random) -> None:
        time.sleep(rng.uniform(0, 0.5))
        pycompiler.reset()
        pycompiler.counters()

    def freeze(rng: random.Random) -> None:
        made = rng.choice(shared)
        pycompiler.set_policy(made, "run")
        time.sleep(rng.uniform(0, 0.02))
        pycompiler.set_policy(made, rng.choice(("eager", "run")))
        time.sleep(rng.uniform(0, 0.02))
        pycompiler.set_policy(made, "compile")
        pycompiler.explain_miss(calls[0], torch.ones(2), 1)

    table = {"call": call, "call 2": call, "serve": serve, "train": training, "compile": compile_new,
             "reset one": reset, "reset all": reset_all, "freeze": freeze}  # fmt: skip
    return table, [functools.partial(check_broken, m) for m in calls]


def run(seconds: float, backends: tuple[str, ...] = ("eager", "aot_eager", "native")) -> dict[str, dict[str, int]]:
    """Each backend over one and over several callables, `seconds` in all; counts of the threads' actions."""
    warnings.simplefilter("ignore", pycompiler.errors.RecompileLimitWarning)
    report: dict[str, dict[str, int]] = {}
    rounds = [(backend, several) for backend in backends for several in (False, True)]
    for backend, several in rounds:
        table, checks = workers(backend, several)
        done = hammer(table, seconds / len(rounds))
        for check in checks:
            check(random.Random(0))
        report[f"{backend}, {'several callables' if several else 'one callable'}"] = dict(done)
    return report
