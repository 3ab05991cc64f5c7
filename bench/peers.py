"""The implementations that benches compare, and the way to bring each to a known state.

In: a function or module. Out: the callable that one implementation returns for it.
Example: `PEERS["pycompiler"].compile(fn, backend=no_work)`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Peer:
    """`compile(fn, **kwargs)`; `reset()` drops everything compiled; `empty_caches()` gives empty caches on disk."""

    name: str
    compile: Callable[..., Any]
    reset: Callable[[], None]
    empty_caches: Callable[[], Any]


def no_work(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend whose graphs return precomputed outputs: guards and dispatch are all that a call costs."""
    outputs = tuple(o.detach() if isinstance(o, torch.Tensor) else o for o in gm(*inputs))
    return lambda *_: outputs


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _fresh_inductor() -> Iterator[None]:
    """A new cache directory with the headers precompiled: they are compiled once per machine, not once per model."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        torch.compile(lambda x: x + 1)(torch.ones(64))
        torch._dynamo.reset()
        yield


@contextmanager
def _fresh_ours() -> Iterator[None]:
    import pycompiler

    with tempfile.TemporaryDirectory() as path, pycompiler.config.patch(cache_dir=os.path.join(path, "cache")):
        yield


def _torch_compile() -> Peer:
    import torch._dynamo

    return Peer("torch.compile", torch.compile, torch._dynamo.reset, _fresh_inductor)


def _pycompiler() -> Peer:
    import pycompiler

    return Peer("pycompiler", pycompiler.compile, pycompiler.reset, _fresh_ours)


def _eager() -> Peer:
    return Peer("eager", lambda fn, **_: fn, lambda: None, _nothing)


MAKERS: dict[str, Callable[[], Peer]] = {"eager": _eager, "torch.compile": _torch_compile, "pycompiler": _pycompiler}
COMPILERS = ("torch.compile", "pycompiler")
ALL = tuple(MAKERS)
