"""`fully_shard` around compiled blocks, and compiled: parameters are gathered and freed in eager's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

import pycompiler
from tests.harness.compare import assert_same
from tests.processes import Processes

BLOCKS = 12  # more than the limit of entries
WAYS = ("forward of each block", "each block", "whole")
EVENTS = ("pre_forward", "post_forward", "pre_backward", "post_backward", "unshard", "reshard", "wait_for_unshard")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


def built(how: str) -> tuple[nn.Module, Any]:
    """The sharded module, and the callable of the program."""
    torch.manual_seed(0)
    blocks: list[Any] = [Block() for _ in range(BLOCKS)]
    if how == "each block":
        blocks = [pycompiler.compile(block) for block in blocks]
    for block in blocks:
        fully_shard(block)
        if how == "forward of each block":
            block.forward = pycompiler.compile(block.forward, fullgraph=True)
    module = fully_shard(nn.Sequential(*blocks))
    return module, pycompiler.compile(module) if how == "whole" else module


@contextmanager
def recorded() -> Iterator[list[tuple[str, int]]]:
    """The calls of methods of parameter groups, each with the number of its group in the order of first calls."""
    events: list[tuple[str, int]] = []
    numbers: dict[int, int] = {}

    def recording(name: str) -> Callable[..., Any]:
        method = getattr(FSDPParamGroup, name)

        def called(self: FSDPParamGroup, *args: Any, **kwargs: Any) -> Any:
            events.append((name, numbers.setdefault(id(self), len(numbers))))
            return method(self, *args, **kwargs)

        return called

    with mock.patch.multiple(FSDPParamGroup, **{name: recording(name) for name in EVENTS}):
        yield events


def steps(how: str, rank: int) -> tuple[list[list[tuple[str, int]]], list[torch.Tensor], Any]:
    """The events of each step, losses and gradients, and the program."""
    module, run = built(how)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    seen, values = [], []
    for _ in range(3):
        with recorded() as events:
            loss = run(x).square().sum()
            loss.backward()
        seen.append(events)
        values += [loss.detach(), *(p.grad.to_local().clone() for p in module.parameters())]
    return seen, values, run


def run_orders(rank: int, world: int) -> None:
    expected, wanted, _ = steps("eager", rank)
    assert ("post_backward", BLOCKS - 1) in expected[-1]
    for how in WAYS:
        events, found, run = steps(how, rank)
        assert_same(found, wanted, tolerance=1e-4)
        assert events == expected, how
        if how == "whole":
            counters = pycompiler.counters(run)
            assert counters["limit_hits"] == 0
            assert counters["compiles"] < BLOCKS


# tests --------------------------------------------------------------------------------------------------------
def test_in_two_processes(two: Processes) -> None:
    two.run(run_orders)
