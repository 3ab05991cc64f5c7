"""Several nests in one function: fewer calls, and one team of threads for all.

In: kernels and Externs in order.  Out: the same, with runs of kernels put together where that costs no memory: nests that
do not depend on each other (a step of Adam over 100 parameters), small ones (the division that ends a mean), and
the parts of one buffer (cat).
"""

from __future__ import annotations

import torch

from pycompiler.ir.kernel import Nest, likely_points
from pycompiler.ir.loops import Extern
from pycompiler.ir.target import Target


def bundle(
    steps: list[Nest | Extern], touched: dict[int, tuple[set[str], set[str]]], target: Target
) -> list[list[Nest] | Extern]:
    """`touched`: id(nest) -> (buffers in memory that it reads, that it writes)."""
    out: list[list[Nest] | Extern] = []
    for step in steps:
        last = out[-1] if out else None
        if isinstance(step, Nest) and isinstance(last, list) and _joins(last, step, touched, target):
            last.append(step)
        else:
            out.append([step] if isinstance(step, Nest) else step)
    return out


def points(nest: Nest, unknown: int) -> int:
    known = likely_points(nest.dims)
    return unknown if known is None else known


def device_of(nest: Nest) -> torch.device:
    return nest.stages[0].loop.out[0].device


def _joins(nests: list[Nest], new: Nest, touched: dict[int, tuple[set[str], set[str]]], target: Target) -> bool:
    if device_of(nests[0]) != device_of(new):
        return False
    here, there = points(new, target.bundle), sum(points(n, target.bundle) for n in nests)
    if min(here, there) <= target.small_nest:
        return True
    reads, writes = touched[id(new)]
    made = set().union(*(touched[id(n)][1] for n in nests))
    parts = bool(writes & touched[id(nests[-1])][1])
    return not reads & made and (parts or here + there <= target.bundle)
