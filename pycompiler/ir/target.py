"""The machine that kernels are made for: all that scheduling and codegen assume of it, as data.

In: a program.  Out: `Target`, facts of the machine and the limits of kernels that follow from them.  No result depends on it
for more than speed; what decides how exact a sum is belongs to no machine, and stands in codegen.

    schedule(program, of_program(program))
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pycompiler.ir.loops import Program


@dataclass(frozen=True, kw_only=True)
class Target:
    """`processors`: threads that kernels of a CPU get, multiprocessors of a GPU; `line`, `vector`: bytes; `registers`: of 32
    bits, of a multiprocessor (of a CPU's the C++ compiler takes care); `threads`: of each call of a CPU's kernel, 0: as many as
    the caller says."""

    kind: str
    processors: int
    threads: int = 0
    line: int = 64
    vector: int = 64
    registers: int = 0

    # scheduling: how large a kernel may be for its compiler, and when it is too small for the machine
    body: int = 160  # operations of a loop after inlining
    stages: int = 48
    pointers: int = 48
    operations: int = 800
    much_work: int = 1 << 18  # points that want all processors
    few_columns: int = 8  # of a column fold's array: fewer are no vector ...
    many_columns: int = 1 << 14  # ... and more no array on a thread's stack
    scratch: int = 192 << 10  # bytes of one row's temporaries, there too
    small_nest: int = 4096  # points of a nest that may join whatever it depends on
    bundle: int = 1 << 22  # points of all nests of one function

    # C++
    parallel_work: int = 1 << 16  # element operations below which threads do not pay
    edge: int = 64  # of a square tile where reads and writes run along different dimensions
    tiles: int = 4  # that are read together: each line of a tile may lie in a page of its own

    @property
    def rows(self) -> int:
        """With fewer, a fused nest could not use the machine's processors."""
        return min(max(self.processors, 8), 64) if self.kind == "cpu" else 8

    @property
    def block(self) -> int:
        """Floats of eight vectors."""
        return 8 * self.vector // 4

    # Triton: elements of a program's tiles, by the registers that hold them
    @property
    def held(self) -> int:
        """Of an inner space that a program holds at once."""
        return self.registers // 4

    @property
    def chunk(self) -> int:
        """Of a walked row."""
        return self.registers // 16

    @property
    def tile(self) -> int:
        return self.registers // 32

    @property
    def flat(self) -> int:
        """Of a nest without folds."""
        return self.registers // 64

    @property
    def programs(self) -> int:
        """That share the rows of a fold over outer dimensions: about four for each multiprocessor."""
        return 1 << round(math.log2(4 * self.processors))


HOST = torch.device("cpu")
VECTORS = {"AVX512": 64, "AVX2": 32}  # torch's word for what the CPU has → bytes


def cpu(device: torch.device = HOST, threads: int = 0) -> Target:
    """This machine's, for kernels of so many threads."""
    return _cpu(threads or torch.get_num_threads(), threads)


@functools.cache
def _cpu(processors: int, threads: int) -> Target:
    try:
        line = os.sysconf("SC_LEVEL1_DCACHE_LINESIZE")
    except (ValueError, OSError):
        line = 0
    vector = VECTORS.get(torch.backends.cpu.get_cpu_capability(), 16)
    return Target(kind="cpu", processors=processors, threads=threads, line=line if line > 0 else 64, vector=vector)


H200 = Target(kind="cuda", processors=132, registers=65536, line=128)  # stands for a GPU that is not here


def cuda(device: torch.device, threads: int = 0) -> Target:
    """That GPU's."""
    there = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    return _cuda(torch.cuda.current_device() if device.index is None else device.index) if there else H200


@functools.cache
def _cuda(index: int) -> Target:
    has = torch.cuda.get_device_properties(index)
    return Target(kind="cuda", processors=has.multi_processor_count, registers=has.regs_per_multiprocessor, line=128)


MAKERS: dict[str, Callable[[torch.device, int], Target]] = {"cpu": cpu, "cuda": cuda}


def of_program(program: Program, threads: int = 0) -> Target:
    """Of the devices of a program's kernels and calls one that is not the host, where there is one; `threads`: of a CPU's
    kernels, 0: torch's."""
    devices = [b.device for node in program.nodes for b in node.out if b is not None]
    device = max(devices, key=lambda d: d.type != "cpu", default=HOST)
    return MAKERS[device.type](device, threads)
