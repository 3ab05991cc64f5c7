"""Everyday programs that a walk through Python's library and torch's found broken or wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")


def through_dlpack(x: Any) -> Any:
    return torch.from_dlpack(x * 2) + 1


def through_a_capsule(x: Any) -> Any:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2)) + 1


@pytest.mark.parametrize("fn", [through_dlpack, through_a_capsule])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_exported_of_real_tensors(fn: Callable[..., Any], backend: str) -> None:
    """A capsule of a fake tensor leads nowhere: the graph ends before it."""
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), fn(torch.ones(3)))
    assert pycompiler.explain(fn)(torch.ones(3)).graph_break_count
