"""Side effects of a compiled function inside a checkpoint, which stops its recompute early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
SEEN: list[int] = []


def _first(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(0)
    return x.sin().exp()


def _all_along(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    y = x.sin()
    SEEN.append(2)
    z = y.exp()
    SEEN.append(3)
    return z + 1


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        SEEN.append(self.calls)
        return x.cos().exp()


def _within(x: torch.Tensor) -> torch.Tensor:
    found = []
    for f in (torch.sin, torch.cos):
        x = f(x)
        found.append(len(found))
    return x * len(found)


def _told(make: Callable[[Any], Any], program: Callable[[], Any], reentrant: bool) -> list[Any]:
    """The side effects after each forward, and after each backward."""
    SEEN.clear()
    run, told = make(program()), list[Any]()
    for _ in range(3):
        x = torch.linspace(0.1, 1, 4, dtype=torch.float64, requires_grad=True)
        y = checkpoint(run, x, use_reentrant=reentrant)
        told += [[*SEEN], y.detach()]
        y.sum().backward()
        told += [[*SEEN], x.grad]
    return told


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [lambda: _first, lambda: _all_along, Counting])
def test_they_happen_again_as_far_as_it_goes(program: Any, backend: str, reentrant: bool) -> None:
    expected = _told(lambda f: f, program, reentrant)
    assert_same(_told(lambda f: pycompiler.compile(f, backend=backend), program, reentrant), expected)


def test_what_a_call_makes_itself_stays_in_one_graph() -> None:
    compiled = pycompiler.compile(_within, backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    assert_same(checkpoint(compiled, x, use_reentrant=False), _within(x))


def test_a_function_that_was_compiled_outside() -> None:
    """One entry for calls in checkpoints, another one for calls outside."""
    SEEN.clear()
    compiled = pycompiler.compile(_first, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    checkpoint(compiled, x, use_reentrant=False).sum().backward()
    assert SEEN == [0] * 3
    settled = compiled.counters()["compiles"]
    assert settled <= 3  # torch before 2.15 recomputes with other dispatch keys
    compiled(x).sum().backward()
    checkpoint(compiled, x, use_reentrant=False).sum().backward()
    assert SEEN == [0] * 6
    assert compiled.counters()["compiles"] == settled


@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_count_what_is_computed_again(backend: str) -> None:
    found = []
    for make in (lambda f: f, lambda f: pycompiler.compile(f, backend=backend)):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()).double()
        run = make(module)
        for _ in range(2):
            x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
            checkpoint(run, x, use_reentrant=False).square().sum().backward()
        found.append(([*module.buffers()], [b._version for b in module.buffers()], x.grad))
    assert_same(found[1], found[0])
