"""Ranges in torch's profile, and on NVTX under `torch.autograd.profiler.emit_nvtx`: phases of compiles, and what calls do.

Those of calls are the engine's (`guards-rs/src/watch.rs`): it looks at the variable that says whether a profiler is on.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from pycompiler import _native
from pycompiler.ir import titles, watch

FLAG = "_is_profiler_enabled"  # of `torch.autograd.profiler`
PREFIX = "pycompiler: "
Range = torch._C._profiler._RecordFunctionFast
profiler = torch.autograd.profiler


class _State(threading.local):
    def __init__(self) -> None:
        self.open: list[Any] = []  # a range for each phase, or None


class Phases(watch.Observer):
    """A range for each phase of a compile."""

    def __init__(self) -> None:
        self.state = _State()

    def begin(self, phase: str) -> None:
        made = None
        if getattr(profiler, FLAG, False):
            title = titles.current()
            made = Range(f"{PREFIX}{phase}{f' of {title.name}' if title else ''}")
            made.__enter__()
        self.state.open.append(made)

    def end(self, phase: str, seconds: float) -> None:
        made = self.state.open.pop() if self.state.open else None
        if made is not None:
            made.__exit__(None, None, None)


def install() -> None:
    watch.observers.append(Phases())
    if isinstance(getattr(profiler, FLAG, None), bool):
        _native.show_ranges(vars(profiler), FLAG, Range, PREFIX)
