"""`override_cudagraphs`: whether graphs captured in a part of the program are recorded as CUDA graphs.

In: a `with` block or a decorated function.  Out: `now`, the settings of this thread; capture puts the settings that a
graph has met into `meta[OVERRIDE]` of the graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from pycompiler.errors import ArgumentError, describe

OVERRIDE = "override_cudagraphs"
KINDS = ("forward", "backward")
Setting = bool | None


class _State(threading.local):
    forward: Setting = None
    backward: Setting = None


_state = _State()


def switch(kind: str, value: Setting) -> Setting:
    """Set the setting of forwards or backwards in this thread; returns the previous one."""
    before: Setting = getattr(_state, kind)
    setattr(_state, kind, value)
    return before


def now() -> dict[str, Setting]:
    return {kind: getattr(_state, kind) for kind in KINDS}


class override_cudagraphs:
    """Context manager and decorator: whether graphs captured inside are recorded as CUDA graphs.

    The setting is read when a graph is captured, and holds for a whole graph that has code inside.

    Args:
        fwd: Record forwards (True), or not (False).  None: as `mode` and `options` of `compile` say.
        bwd: The same for backwards.

    Raises:
        ArgumentError: An argument is neither a bool nor None.

    Example:
        ```python
        @pycompiler.compile(mode="reduce-overhead")
        def step(x):
            with pycompiler.override_cudagraphs(fwd=False):
                return x + 1

        step(torch.ones(3))
        ```
    """

    def __init__(self, fwd: bool | None = None, bwd: bool | None = None) -> None:
        for value in (fwd, bwd):
            if type(value) not in (bool, type(None)):
                raise ArgumentError(f"override_cudagraphs() takes True, False or None, got {describe(value)}")
        self.fwd, self.bwd = fwd, bwd

    def __enter__(self) -> None:
        self.before_forward = switch("forward", self.fwd)
        self.before_backward = switch("backward", self.bwd)

    def __exit__(self, *exc: object) -> None:
        switch("forward", self.before_forward)
        switch("backward", self.before_backward)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        fwd, bwd = self.fwd, self.bwd

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            return call_with(fwd, bwd, fn, *args, **kwargs)

        return within


def call_with(fwd: Setting, bwd: Setting, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `fn` under these settings."""
    with override_cudagraphs(fwd, bwd):
        return fn(*args, **kwargs)
