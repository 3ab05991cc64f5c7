"""Regions that a program marks: functions that are called often, of which each is to be compiled once within one graph.

In: `nested_compile_region(fn)`.  Out: a function that calls it; capture, which knows `call_region`, notes which nodes of the
graph each call made (`meta[REGION]`).  What is made of them is `pipeline/parts.py`'s matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pycompiler.errors import ArgumentError, describe

REGION = "region"  # in the metadata of a captured node: the number of the call that made it


def call_region(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def nested_compile_region(fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function that is called several times in one graph, say the forward of a model's blocks, is compiled once.

    Calls whose graphs are alike, but for the tensors that they take, run one compiled graph, forward and backward: the
    compile takes as long as that of one block.  What is lost is fusion across their ends, and a few microseconds a call.
    Calls that are like no other one are compiled in place.  `torch.compiler.nested_compile_region` means the same here.
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
