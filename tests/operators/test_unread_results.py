"""Operators with an effect and an unused result: they still run, at any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler

Call = Callable[[Any, torch.Tensor], Any]


def _itself(module: Any, x: torch.Tensor) -> Any:
    return module(x)


def _native(m: Any, x: torch.Tensor) -> Any:
    return torch.native_batch_norm(x, None, None, m.running_mean, m.running_var, True, 0.1, 1e-5)


def _legit(m: Any, x: torch.Tensor) -> Any:
    return torch.ops.aten._native_batch_norm_legit(x, None, None, m.running_mean, m.running_var, True, 0.1, 1e-5)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Call]] = {
    "batch norm": (lambda: nn.BatchNorm1d(4), (4,), _itself),
    "batch norm of images": (lambda: nn.BatchNorm2d(4), (4, 2, 2), _itself),
    "instance norm": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), (4, 3), _itself),
    "the operator": (lambda: nn.BatchNorm1d(4), (4,), _native),
    "what it is made of": (lambda: nn.BatchNorm1d(4), (4,), _legit),
    "an observer": (lambda: torch.ao.quantization.FusedMovingAvgObsFakeQuantize(), (4,), _itself),  # type: ignore[attr-defined]
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("case", CASES)
def test_statistics_of_what_nobody_reads(case: str, backend: str) -> None:
    """Calls that write without a version change must not be dropped when sizes change."""
    make, shape, call = CASES[case]

    def program(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        call(module, x)
        return x * 2

    found = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        module, seen = make(), []
        for n in (3, 5, 3, 4):
            x = torch.arange(float(torch.Size((n, *shape)).numel())).sin().view(n, *shape)
            seen += [run(module, x), *(b.clone() for b in module.buffers())]
        found.append(seen)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_random_numbers_of_what_nobody_reads(layer: Any, backend: str) -> None:
    """torch's rule for symbolic sizes forgets the dropout between recurrent layers: the call must not be dropped for that."""
    torch.manual_seed(0)
    module = layer(2, 3, 2, dropout=0.5)

    def program(x: torch.Tensor) -> torch.Tensor:
        module(x)
        return x * 2

    found = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        torch.manual_seed(1)
        seen = []
        for n in (3, 5, 3, 4):
            run(torch.ones(n, 1, 2))
            seen.append(torch.rand(1))
        found.append(seen)
    assert found[1] == found[0]
