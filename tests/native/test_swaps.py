"""Threads that replace the memory of a model's tensors, scan all objects of the collector, and reset, while others
call the model.

Values are only a part of the test: the sanitizers run it (`.ci/tools asan`, `tsan`, `checked`).
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

N = 60_000  # enough work for the GIL to be released
SECONDS = 2.0


def full(value: int) -> torch.Tensor:
    return torch.full((N,), float(value))


def beside(calls: list[Callable[[], None]], others: list[Callable[[], None]], seconds: float) -> list[int]:
    """The number of runs of each function, repeated in a thread of its own."""
    counts, errors = [0] * (len(calls) + len(others)), []
    stop = time.monotonic() + seconds

    def loop(i: int, work: Callable[[], None]) -> None:
        try:
            while (
                time.monotonic() < stop or not counts[i]
            ) and not errors:  # a long collection may delay the thread's start
                work()
                counts[i] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=pair, daemon=True) for pair in enumerate([*calls, *others])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
        assert not thread.is_alive(), "hang"
    if errors:
        raise errors[0]
    return counts


def scan() -> None:
    """Scan all objects, as a debugger does. (Python's own `tuple(generator)` fails meanwhile: its result is visible
    unfinished.)"""
    for o in gc.get_objects():
        sys.getrefcount(o)
        kind = type(o)
        if kind is tuple or kind is dict or kind is list:  # no `==`, which a metaclass may define
            len(o)
    gc.collect(0)


@pytest.mark.parametrize("training", [False, True])
def test_memory_that_others_swap(training: bool) -> None:
    w = torch.nn.Parameter(full(1), requires_grad=training)
    b = full(2)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * w + b
        y = torch.relu(y.sort().values) + b  # a torch operator between kernels
        return (y * w).sum() / N

    compiled = pycompiler.compile(model)
    x = full(3)
    # w and b are 1 and 2, or 2 and 4, at each read: x * w + b + b, times w
    least, most = 3 * 1 + 2 + 2, (3 * 2 + 4 + 4) * 2

    def call() -> None:
        made = compiled(x)
        if training:
            [grad] = torch.autograd.grad(made, w)
            assert bool((grad > 0).all() and (grad < 1).all())
        assert least <= made.item() <= most

    def swap_data() -> None:
        for value in (2, 1):
            w.data = full(value)
            time.sleep(0)

    def set_() -> None:
        for value in (4, 2):
            other = full(value)
            b.set_(other.untyped_storage(), 0, (N,), (1,))
            time.sleep(0)

    def collect() -> None:
        gc.collect()
        sys.getrefcount(gc.get_referrers(w)), sys.getallocatedblocks()

    def reset() -> None:
        time.sleep(0.4)
        pycompiler.reset(compiled)

    call()
    done = beside([call, call], [swap_data, set_, collect, reset], SECONDS)
    assert all(done), done
    w.data, b.data = full(1), full(2)
    assert compiled(x).item() == model(x).item() == 7


def test_lists_of_inputs_while_everything_is_scanned() -> None:
    """A plan that takes its inputs out of a list, and tuples of results, which the collector exposes to every thread."""
    from pycompiler import _native
    from pycompiler.ir.plan import Aten, Plan, SlotRef

    add = torch.ops.aten.add.Tensor
    steps = [Aten(add, (SlotRef(k), SlotRef(k + 1)), {}, (9 + k,)) for k in range(8)]
    plan: Any = _native.Plan(Plan(9, 17, [*steps], list(range(9, 17)), name="scanned"))
    held = [full(k) for k in range(9)]

    def call() -> None:
        given = [t.clone() for t in held]
        results = plan(given)
        assert given == [] and [int(r[0]) for r in results] == [2 * k + 1 for k in range(8)]

    done = beside([call, call], [scan], SECONDS / 2)
    assert all(done), done
