"""Symbolic beside static: `python bench/symbols.py [--count 5] [capture] [kernels]`; one thread, the least CPU time of several.

capture: a model's capture (backend "eager") with symbolic arguments, compared with constant arguments.
kernels: calls of programs compiled for symbolic sizes, compared with constant sizes.  Ratios above their limits fail.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

import programs  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from models import NAMES, build  # noqa: E402

import pycompiler  # noqa: E402

LIMITS = {"capture": 1.5, "kernels": 1.15}
Pair = tuple[float, float]


def least(count: int, timed: Callable[[bool], float]) -> Pair:
    """The least time with numbers and with symbols, measured in turns; the first turn warms up."""
    turns = [(timed(False), timed(True)) for _ in range(count + 1)][1:]
    return min(a for a, _ in turns), min(b for _, b in turns)


def cpu_time(fn: Callable[[], Any]) -> float:
    start = time.process_time()
    fn()
    return time.process_time() - start


def capture(name: str) -> Callable[[bool], float]:
    def timed(dynamic: bool) -> float:
        case = build(name, training=False)
        model = pycompiler.compile(case.model, backend="eager", dynamic=dynamic)
        with torch.no_grad():
            return cpu_time(lambda: model(*case.args, **case.kwargs))

    return timed


KERNELS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "softmax": lambda: (programs.softmax, (torch.randn(512, 1024),)),
    "gelu, layer norm": lambda: (
        programs.gelu_layer_norm, (torch.randn(512, 1024), torch.ones(1024), torch.zeros(1024))),
    "cross entropy": lambda: (programs.cross_entropy, (torch.randn(512, 1000), torch.randint(0, 1000, (512,)))),
    "pointwise": lambda: (lambda x, y: (x * y).sigmoid() + y, (torch.randn(512, 1024), torch.randn(512, 1024))),
    "column sum": lambda: (lambda x: x.sum(0), (torch.randn(2048, 512),)),
    "row maximum": lambda: (lambda x: x.amax(1), (torch.randn(512, 1024),)),
    "rms norm": lambda: (lambda x, w: F.rms_norm(x, (1024,), w), (torch.randn(512, 1024), torch.ones(1024))),
    "transposed copy": lambda: (lambda x: x.t().contiguous() + 1, (torch.randn(512, 1024),)),
}  # fmt: skip


def kernels(name: str) -> Callable[[bool], float]:
    compiled = {}
    for dynamic in (False, True):
        fn, args = KERNELS[name]()
        compiled[dynamic] = pycompiler.compile(fn, dynamic=dynamic), args

    def timed(dynamic: bool) -> float:
        fn, args = compiled[dynamic]
        fn(*args)
        return min(cpu_time(lambda: fn(*args)) for _ in range(20))

    return timed


ROOMS = {"capture": (capture, NAMES), "kernels": (kernels, tuple(KERNELS))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS))
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    worst = 0.0
    for room in options.rooms:
        make, names = ROOMS[room]
        for name in names:
            static, symbolic = least(options.count, make(name))
            worst = max(worst, symbolic / static / LIMITS[room])
            print(
                f"{room}: {name:20} {static * 1e3:8.3f} ms, symbolic {symbolic * 1e3:8.3f} ms: {symbolic / static:.2f}",
                flush=True,
            )
    return worst > 1


if __name__ == "__main__":
    sys.exit(main())
