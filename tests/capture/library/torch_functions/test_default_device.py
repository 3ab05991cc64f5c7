"""`torch.set_default_device(...)` inside a function: later constructors use that device, and the call is a side effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same


@pytest.fixture(autouse=True)
def _no_default() -> Iterator[None]:
    yield
    torch.set_default_device(None)


# Older torch creates a real tensor in `torch.tensor` on the device "meta", under any mode.
MAKES_REAL = torch.__version__ < "2.12"


def made(x: torch.Tensor) -> Any:
    before = torch.zeros(2)
    torch.set_default_device("meta")
    inside = (
        torch.ones(3),
        torch.tensor([1.0, 2.0]),
        torch.arange(4),
        torch.full((2,), 3.0),
        torch.nn.Linear(2, 2).weight,
    )
    with torch.device("cpu"):
        other = torch.rand(2)
    torch.set_default_device("cpu")
    return before, inside, other, torch.get_default_device(), x + torch.ones(2)


def stays(x: torch.Tensor) -> Any:
    y = x * torch.ones(2)
    torch.set_default_device("meta")
    return y, torch.zeros(3), torch.get_default_device()


def unset(x: torch.Tensor) -> Any:
    torch.set_default_device(None)
    return torch.zeros(2) + x, torch.get_default_device()


def broken(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    y = torch.ones(2)
    pycompiler.graph_break()
    z = torch.ones(2)
    torch.set_default_device(None)
    return x * 2, y, z, torch.ones(2) + x


def raises(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    return x[torch.tensor([5], device="cpu")] * 2


def caught(x: torch.Tensor) -> Any:
    try:
        torch.set_default_device("nowhere")
    except RuntimeError as error:
        return x * 2, str(error)[:40]
    return x


def with_numpy(x: torch.Tensor) -> Any:
    torch.set_default_device("cpu")
    found = torch.from_numpy(np.ones(2)) + x, torch.as_tensor(np.ones(2)) * 2
    torch.set_default_device("meta")
    return *found, torch.as_tensor(np.ones(2))


PROGRAMS = {f.__name__: (f, breaks) for f, breaks in (
    (made, int(MAKES_REAL)), (stays, 0), (unset, 0), (broken, 1), (raises, 0), (caught, 1), (with_numpy, 0),
)}  # fmt: skip


def told(fn: Callable[..., Any], x: torch.Tensor, around: Any) -> Any:
    torch.set_default_device(around)
    torch.manual_seed(0)
    try:
        result = fn(x)
    except (IndexError, RuntimeError, AssertionError) as error:
        result = type(error).__name__
    now = torch.get_default_device()
    torch.set_default_device(None)
    return result, now, torch.rand(1)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_eagers(name: str, backend: str) -> None:
    fn, breaks = PROGRAMS[name]
    compiled = pycompiler.compile(fn, backend=backend)
    x = torch.tensor([1.0, 2.0])
    for around in (None, None, "meta", None, "cpu"):
        assert_same(told(compiled, x, around), told(fn, x, around), exact=True)
    if name != "raises":
        assert pycompiler.explain(fn)(x).graph_break_count >= breaks
        if not breaks:
            torch.set_default_device(None)
            assert pycompiler.explain(fn)(x).graph_break_count == 0
