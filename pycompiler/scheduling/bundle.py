"""Bundles: several nests in one function, for fewer calls and one team of threads.

In: kernels and Externs in order.  Out: the same, with runs of kernels combined if this costs no memory: independent
nests (a step of Adam over 100 parameters), small ones (the division that ends a mean), and the parts of one buffer
(cat).
"""

from __future__ import annotations

import torch

from pycompiler.ir.kernel import Nest, hinted_points
from pycompiler.ir.loops import Extern
from pycompiler.ir.target import Target


def bundle(
    steps: list[Nest | Extern], touched: dict[int, tuple[set[str], set[str]]], target: Target
) -> list[list[Nest] | Extern]:
    """`touched`: id(nest) -> (buffers in memory that it reads, that it writes)."""
    out: list[list[Nest] | Extern] = []
    last: Bundle | None = None
    for step in steps:
        if not isinstance(step, Nest):
            out.append(step)
            last = None
            continue
        here, touches = points(step, target.bundle), touched[id(step)]
        if last is None or not last.takes(step, here, touches, target):
            last = Bundle(device_of(step))
            out.append(last.nests)
        last.add(step, here, touches[1])
    return out


class Bundle:
    """The nests of one function, their number of points, and the buffers that they write."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.nests: list[Nest] = []
        self.points = 0
        self.made = set[str]()
        self.made_last = set[str]()

    def add(self, nest: Nest, points: int, writes: set[str]) -> None:
        self.nests.append(nest)
        self.points += points
        self.made |= writes
        self.made_last = writes

    def takes(self, new: Nest, points: int, touches: tuple[set[str], set[str]], target: Target) -> bool:
        """Whether another nest can join without using more memory."""
        if self.device != device_of(new):
            return False
        if min(points, self.points) <= target.small_nest:
            return True
        reads, writes = touches
        parts = bool(writes & self.made_last)
        return reads.isdisjoint(self.made) and (parts or points + self.points <= target.bundle)


def points(nest: Nest, unknown: int) -> int:
    known = hinted_points(nest.dims)
    return unknown if known is None else known


def device_of(nest: Nest) -> torch.device:
    return nest.stages[0].loop.out[0].device
