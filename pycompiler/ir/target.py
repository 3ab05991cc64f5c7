"""The target machine: all that scheduling and codegen assume about it, as data.

In: a program.  Out: `Target`, properties of the machine and the limits of kernels that follow from them.
The target affects speed, not results.  The rules for exact sums depend on no machine; they are in codegen.

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
    """Units: `line`, `vector`: bytes; `registers`: 32 bits each, per multiprocessor (0 for a CPU: the C++ compiler decides).

    `processors`: threads of CPU kernels, or multiprocessors of a GPU.
    `threads`: of each call of a CPU kernel; 0: the caller decides.
    """

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
    much_work: int = 1 << 18  # points that need all processors
    few_columns: int = 8  # minimum for a column fold's array: fewer columns fill no vector
    many_columns: int = 1 << 14  # maximum for the same array, which lies on a thread's stack
    scratch: int = 192 << 10  # bytes of one row's temporaries, on the same stack
    small_nest: int = 4096  # points of a nest that may join any nest it depends on
    bundle: int = 1 << 22  # points of all nests of one function

    # C++
    parallel_work: int = 1 << 16  # element operations below which threads do not pay
    edge: int = 64  # of a square tile where reads and writes run along different dimensions
    tiles: int = 4  # tiles read together: each line of a tile may lie in a page of its own

    @property
    def rows(self) -> int:
        """Minimum number of rows of a fused nest: with fewer, it could not use the machine's processors."""
        return min(max(self.processors, 8), 64) if self.kind == "cpu" else 8

    @property
    def block(self) -> int:
        """Number of floats in eight vectors."""
        return 8 * self.vector // 4

    # Triton: elements of a program's tiles, by the registers that hold them
    @property
    def held(self) -> int:
        """Maximum elements of an inner space that a program holds at once."""
        return self.registers // 4

    @property
    def chunk(self) -> int:
        """Elements of one chunk of a row that is walked in chunks."""
        return self.registers // 16

    @property
    def tile(self) -> int:
        return self.registers // 32

    @property
    def flat(self) -> int:
        """Elements per program of a nest without folds."""
        return self.registers // 64

    @property
    def programs(self) -> int:
        """Programs that share the rows of a fold over outer dimensions: about eight per multiprocessor.

        Twice as many took longer on an H200: a bias gradient behind gelu's 42 us instead of 40, the statistics of a batch
        norm 52 instead of 49.
        """
        return 2 * self.row_programs

    @property
    def row_programs(self) -> int:
        """The same, if each program also folds whole rows, as for the gradients of a layer norm (17 us instead of 21)."""
        return 1 << round(math.log2(4 * self.processors))


HOST = torch.device("cpu")
VECTORS = {"AVX512": 64, "AVX2": 32}  # torch's name of the CPU's capability → bytes


def cpu(device: torch.device = HOST, threads: int = 0) -> Target:
    """This machine as a target, for kernels with `threads` threads."""
    return _cpu(threads or torch.get_num_threads(), threads)


@functools.cache
def _cpu(processors: int, threads: int) -> Target:
    try:
        line = os.sysconf("SC_LEVEL1_DCACHE_LINESIZE")
    except (ValueError, OSError):
        line = 0
    vector = VECTORS.get(torch.backends.cpu.get_cpu_capability(), 16)
    return Target(kind="cpu", processors=processors, threads=threads, line=line if line > 0 else 64, vector=vector)


H200 = Target(kind="cuda", processors=132, registers=65536, line=128)  # stands for a GPU that is not present


def cuda(device: torch.device, threads: int = 0) -> Target:
    """The GPU as a target."""
    there = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    return _cuda(torch.cuda.current_device() if device.index is None else device.index) if there else H200


@functools.cache
def _cuda(index: int) -> Target:
    has = torch.cuda.get_device_properties(index)
    return Target(kind="cuda", processors=has.multi_processor_count, registers=has.regs_per_multiprocessor, line=128)


MAKERS: dict[str, Callable[[torch.device, int], Target]] = {"cpu": cpu, "cuda": cuda}


def of_program(program: Program, threads: int = 0) -> Target:
    """The target of a program: its first device that is not the host, or else the host.

    `threads`: of CPU kernels; 0: torch's number.
    """
    devices = [b.device for node in program.nodes for b in node.out if b is not None]
    device = max(devices, key=lambda d: d.type != "cpu", default=HOST)
    return MAKERS[device.type](device, threads)
