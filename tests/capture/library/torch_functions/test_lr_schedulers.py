"""`step()` of learning rate schedulers: one call behind the graph, with the schedulers inside of a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import pycompiler


def in_a_row(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def in_a_chain(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


def stepped(x: torch.Tensor, scheduler: Any) -> torch.Tensor:
    scheduler.step()
    return x + 1


def read_inside(x: torch.Tensor, scheduler: Any) -> Any:
    scheduler.step()
    return x + 1, [part.last_epoch for part in scheduler._schedulers]


@pytest.mark.parametrize("fn", [stepped, read_inside])
@pytest.mark.parametrize("make", [in_a_row, in_a_chain])
def test_schedulers_inside_of_a_scheduler_step(make: Callable[..., Any], fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    found = []
    for call in (fn, compiled):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        scheduler, seen = make(optimizer), []
        for _ in range(5):
            optimizer.step()
            result = call(torch.ones(2), scheduler)
            seen.append((str(result), optimizer.param_groups[0]["lr"], [p.last_epoch for p in scheduler._schedulers]))
        found.append(seen)
    assert found[0] == found[1]
