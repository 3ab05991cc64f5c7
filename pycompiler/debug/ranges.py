"""Ranges in torch's profile, and in NVTX under `torch.autograd.profiler.emit_nvtx`: phases of compiles, and parts of calls.

In: torch's profiler.  Out: ranges.  The engine creates the ranges of calls (`guards-rs/src/watch.rs`); it reads the
variable that says whether a profiler is on.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from pycompiler import _native
from pycompiler.ir import compile_names, phases

FLAG = "_is_profiler_enabled"  # of `torch.autograd.profiler`
PREFIX = "pycompiler: "
Range = torch._C._profiler._RecordFunctionFast
profiler = torch.autograd.profiler


class _RangeState(threading.local):
    def __init__(self) -> None:
        self.open: list[Any] = []  # one range per phase, or None


class PhaseRanges(phases.Observer):
    """A range for each phase of a compile."""

    def __init__(self) -> None:
        self.state = _RangeState()

    def begin(self, phase: str) -> None:
        made = None
        if getattr(profiler, FLAG, False):
            title = compile_names.current()
            made = Range(f"{PREFIX}{phase}{f' of {title}' if title else ''}")
            made.__enter__()
        self.state.open.append(made)

    def end(self, phase: str, seconds: float) -> None:
        made = self.state.open.pop() if self.state.open else None
        if made is not None:
            made.__exit__(None, None, None)


def install() -> None:
    phases.observers.append(PhaseRanges())
    if isinstance(getattr(profiler, FLAG, None), bool):
        _native.show_ranges(vars(profiler), FLAG, Range, PREFIX)
