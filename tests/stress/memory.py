"""Calls, and compile/reset cycles: resident memory and the collector's objects before and after."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pycompiler
from tests.stress.programs import broken, check_training, inputs, loss_of, new_net


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def libraries() -> int:
    """Kernel libraries that are mapped."""
    return len(set(re.findall(r"\S*/kernels\.so", Path("/proc/self/maps").read_text())))


def measure() -> dict[str, int]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory returns to the system: growth is memory still in use
    return {"resident": resident(), "objects": len(gc.get_objects()), "libraries": libraries()}


def growth(work: Callable[[int], None], n: int, warm: int) -> dict[str, float]:
    """Run `work(i)` for i < n, after `warm` uncounted calls: the growth, and the growth per call."""
    for i in range(warm):
        work(i)
    before = measure()
    for i in range(n):
        work(i)
    after = measure()
    grown = {k: after[k] - before[k] for k in before}
    return {"n": n, "resident_mb": round(after["resident"] / 2**20, 1), **grown,
            "bytes_each": round(grown["resident"] / n, 2)}  # fmt: skip


def calls(n: int) -> dict[str, dict[str, float]]:
    """`n` calls in all: of a plan, of a frame with a graph break, of a module, of forward and backward, and eager
    ones."""
    x, small = torch.ones(4), inputs(2)
    add = pycompiler.compile(lambda x: x + 1)
    frame = pycompiler.compile(broken)
    net = pycompiler.compile(new_net().eval())
    train = pycompiler.compile(loss_of)
    model = new_net()
    frozen = pycompiler.run(pycompiler.compile(broken))

    def step(i: int) -> None:
        train(model, small).backward()

    def serve(i: int) -> None:
        with torch.no_grad():
            net(small)

    works = {
        "plan": (lambda i: add(x), 0.4),
        "graph break": (lambda i: frame(x, 2), 0.3),
        "module": (serve, 0.2),
        "forward and backward": (step, 0.05),
        "frozen, eager": (lambda i: frozen(x, 2), 0.05),
    }
    return {name: growth(work, max(1, int(n * share)), 1000) for name, (work, share) in works.items()}


def cycles(n: int, backend: str = "native") -> dict[str, dict[str, float]]:
    """`n` cycles each: reset and compile again; a new callable each time; a new model each time, with backward."""
    rng = random.Random(0)
    again = pycompiler.compile(loss_of, backend=backend)
    gone: list[weakref.ref[nn.Module]] = []

    def reset(i: int) -> None:
        pycompiler.reset(again)
        check_training(again, rng)

    def new(i: int) -> None:
        pycompiler.compile(broken, backend=backend)(torch.ones(3), 2)

    def model(i: int) -> None:
        net = new_net(1)
        made = pycompiler.compile(net, backend=backend)
        made(inputs(3)).sum().backward()
        gone.append(weakref.ref(net))

    # as many warm-up calls: garbage and holes in the heap grow until the collector has scanned all objects a few
    # times
    report = {name: growth(work, n, n) for name, work in
              {"reset": reset, "new callable": new, "new model": model}.items()}  # fmt: skip
    gc.collect()
    report["new model"]["alive"] = sum(r() is not None for r in gone)
    return report


def new_kernels(n: int) -> dict[str, float]:
    """`n` compiles of different programs; each builds and loads a library of its own."""

    def work(i: int) -> None:
        work.count += 1  # type: ignore[attr-defined]
        factor = 1.0 + work.count / 64  # type: ignore[attr-defined]
        made: Any = pycompiler.compile(lambda x: (x * factor).sin())
        x = torch.ones(3)
        assert torch.allclose(made(x), (x * factor).sin())

    work.count = 0  # type: ignore[attr-defined]
    return growth(work, n, 3)


def assert_flat(report: dict[str, dict[str, float]], bytes_each: float, objects: int = 1000) -> None:
    """Fails if memory or objects grow with the number of rounds."""
    for name, row in report.items():
        assert row["objects"] <= objects, (name, row)
        assert row["resident"] <= 2**23 + bytes_each * row["n"], (name, row)
        assert not row.get("alive"), (name, row)
