"""The environment of a compile: state of torch and of the thread, modes, hooks, the garbage collector, debuggers, knobs.

In: the program's state.  Out: context managers that set it aside for the compile and restore it afterwards.
"""

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
from pycompiler.operators import numpy_random
from pycompiler.torch_compat import torch_state
from pycompiler.torch_compat.interrupts import allowed
from pycompiler.torch_compat.process_settings import WhileInside


class ThreadState:
    """The state of torch that belongs to the creating thread; inside `with`, another thread has it, too."""

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
    """Whether this code was called by the garbage collector, or a signal, while torch creates a tensor of a Python
    class.

    This happens in another capture.  torch crashes if such a tensor is created inside.
    """
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)


NEVER = 2**31 - 1
RESTING_COLLECTOR = WhileInside(
    gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds), lambda before: (*before[:2], NEVER)
)
"""While frames are compiled, the oldest generation is not searched for garbage.

Objects of a compile are in use until its end.  One search of all objects that torch created costs as much as the
compile of fifty layers.  Young garbage is still collected.  Thresholds that other code sets meanwhile stay.
"""


@contextlib.contextmanager
def users_backend() -> Iterator[None]:
    """A scope for a user's backend: it may be interrupted, and its random draws count as not drawn.

    All threads share one generator of torch, one of Python and one of NumPy.  If another thread may draw, the
    generators are not reset: its numbers must not come twice.
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
    """Whether a trace or profile function in Python is set: it, and the functions that it calls, are no part of the
    program."""
    return any(isinstance(f, (types.FunctionType, types.MethodType)) for f in (sys.gettrace(), sys.getprofile()))


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """A scope without trace and profile functions: they do not see the compiler, and do not slow it down."""
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
    """Restores the dispatch modes of before a compile, when an exception ends it.

    Ctrl-C can come after torch has switched on a mode, and before the `with` block that would switch it off.
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
    """The knobs of one callable during its compile.  They are set for the process, so one such compile runs at a
    time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.before: dict[str, Any] = {}  # the values that the compile with the lock has set aside
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
        """Restore the knobs in a forked child: another thread's compile has ended with its thread."""
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            before, self.lock, self.before = self.before, threading.RLock(), {}
            for name, value in before.items():
                setattr(config, name, value)


own_knobs = OwnKnobs()
