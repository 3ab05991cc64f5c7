"""Regions that a program marks: functions called often, each compiled once within one graph.

In: `nested_compile_region(fn)`.  Out: a function that calls `fn`.  Capture knows `call_region` and records the call's
number on each node of the call (`meta[REGION]`).  `pipeline/region_parts.py` uses these numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pycompiler.errors import ArgumentError, describe

REGION = "region"  # metadata key of a captured node: the number of the call that created it


def call_region(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def nested_compile_region(fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Compile a function once that is called several times in one graph, for example the forward of a model's blocks.

    Calls with equal graphs (except for their input tensors) share one compiled graph, forward and backward.  The compile then
    takes as long as the compile of one block.  The cost: no fusion across region ends, a few microseconds a call.
    Calls with a unique graph are compiled in place.  `torch.compiler.nested_compile_region` means the same here.

    Args:
        fn: The function.  None: return a decorator.

    Returns:
        Callable: The marked function; without `fn`, a decorator.

    Raises:
        ArgumentError: `fn` is not callable.

    Example:
        ```python
        class Block(torch.nn.Linear):
            @pycompiler.nested_compile_region
            def forward(self, x):
                return super().forward(x).relu()

        model = pycompiler.compile(torch.nn.Sequential(*(Block(8, 8) for _ in range(4))))
        model(torch.randn(2, 8))
        ```
    """
    if fn is None:
        return nested_compile_region
    if not callable(fn):
        raise ArgumentError(f"nested_compile_region() takes a function, got {describe(fn)}")
    marked = fn

    @functools.wraps(marked)
    def region(*args: Any, **kwargs: Any) -> Any:
        return call_region(marked, *args, **kwargs)

    return region
