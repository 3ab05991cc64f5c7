"""What stands around a compile and is the program's own: state of torch and of the thread, modes, hooks, the collector, the
tracer of a debugger, knobs.  Each is put aside for the compile, and back after it."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import types
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from pycompiler import config
from pycompiler.ir import numpy_random, torch_state
from pycompiler.ir.interrupts import allowed
from pycompiler.ir.shared import WhileInside


class ThreadState:
    """The state of torch that belongs to the thread that makes it; inside of `with`, another thread has it too."""

    def __init__(self) -> None:
        self.state, self.inference = torch_state.read_own_state(), torch.is_inference_mode_enabled()

    def __enter__(self) -> None:
        self.before = torch_state.read_own_state()
        self.mode = torch.inference_mode(self.inference)
        self.mode.__enter__()
        torch_state.write_state(self.state)

    def __exit__(self, *exc: object) -> None:
        self.mode.__exit__(*exc)
        torch_state.write_state(self.before)


def without_dispatch() -> bool:
    """Whether this is code that the collector, or a signal, calls while torch makes a tensor of Python (in another capture):
    torch crashes where one is made within that."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)


NEVER = 2**31 - 1
RESTING_COLLECTOR = WhileInside(
    gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds), lambda before: (*before[:2], NEVER)
)
"""While frames are compiled, the oldest generation is not searched for garbage.

What a compile makes is in use until its end, and one search of all objects that torch made costs as much as the
compile of fifty layers.  Young garbage is still collected; thresholds that others set meanwhile stay.
"""


@contextlib.contextmanager
def users_backend() -> Iterator[None]:
    """A user's backend may be interrupted, and may draw random numbers to try its code: they count as not drawn.

    There is one generator for all threads, and so of Python's and NumPy's: where another one may draw, its numbers must not
    come twice.
    """
    state, pythons, arrays = torch.random.get_rng_state(), random.getstate(), numpy_random.own_state()
    alone = threading.active_count() == 1
    try:
        with allowed():
            yield
    finally:
        if alone and not torch.equal(state, torch.random.get_rng_state()):
            torch.random.set_rng_state(state)
        if alone:
            random.setstate(pythons)
            if arrays is not None:
                put_back, numbers = arrays
                put_back(numbers)


def traced_by_python() -> bool:
    """Whether a trace or profile function written in Python is set: it, and what it calls, is no part of the program."""
    return any(isinstance(f, (types.FunctionType, types.MethodType)) for f in (sys.gettrace(), sys.getprofile()))


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """A debugger's or profiler's functions do not see, and do not slow down, the compiler at work."""
    if not traced_by_python():
        yield
        return
    trace, profile = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)


class modes_as_before:
    """Puts the dispatch modes back that were on before a compile, when an exception ends it.

    Ctrl-C can come between torch's switching on of a mode and the `with` block that would switch it off.
    """

    KEYS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))

    def __enter__(self) -> None:
        self.before, self.functions = self.now(), torch._C._len_torch_function_stack()

    @staticmethod
    def now() -> list[Any]:
        return [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            return
        if any(a is not b for a, b in zip_longest(self.now(), self.before)):
            for key in self.KEYS:
                torch._C._unset_dispatch_mode(key)
            while torch._C._len_torch_dispatch_stack():
                _pop_mode()
            for mode in self.before:
                _push_mode(mode)
        while torch._C._len_torch_function_stack() > self.functions:
            torch._C._pop_torch_function_stack()


class OwnKnobs:
    """Knobs of one callable during its compile.  They are set for the process: one compile at a time has its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.before: dict[str, Any] = {}  # the values that the compile which has the lock put aside
        os.register_at_fork(after_in_child=self.after_fork)

    @contextlib.contextmanager
    def __call__(self, knobs: dict[str, Any]) -> Iterator[None]:
        if not knobs:
            yield
            return
        with self.lock:
            outer, self.before = self.before, {name: getattr(config, name) for name in knobs} | self.before
            try:
                with config.patch(knobs):
                    yield
            finally:
                self.before = outer

    def now(self) -> dict[str, Any]:
        """The knobs of the compile that this thread is in."""
        return {name: getattr(config, name) for name in self.before} if self.before and self.lock._is_owned() else {}  # type: ignore[attr-defined]

    def after_fork(self) -> None:
        """The compile of another thread has ended with it."""
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            before, self.lock, self.before = self.before, threading.RLock(), {}
            for name, value in before.items():
                setattr(config, name, value)


own_knobs = OwnKnobs()
