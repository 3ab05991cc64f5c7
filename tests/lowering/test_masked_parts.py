"""A cat that pointwise operators of a GPU read becomes part of their kernels.  The CPU computes such programs, too, so
values are compared here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, lowered, randn
from torch import Tensor

from pycompiler.ir.loops import Loop
from pycompiler.ir.target import H200
from pycompiler.lowering import joining
from pycompiler.scheduling import schedule

Step = Callable[..., Any]


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule holds for the CPU."""
    monkeypatch.setattr(joining, "MASKED", frozenset({"cpu"}))


def rotated(x: Tensor, y: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * y.cos() + torch.cat((-x[..., half:], x[..., :half]), -1) * y.sin()


ONE_KERNEL: dict[str, tuple[Step, list[Tensor]]] = {
    "columns": (lambda x, y: torch.cat((x, y), -1).relu(), [randn(9, 7), randn(9, 5)]),
    "rows": (lambda x, y: torch.cat((x, y), 0) * 2, [randn(9, 7), randn(3, 7)]),
    "four": (lambda x, y: torch.cat((x, y, y, x), 1) + 1, [randn(9, 7), randn(9, 5)]),
    "the same part twice": (lambda x: torch.cat((x, x), 1) + 1, [randn(9, 7)]),
    "an empty part": (lambda x, y: torch.cat((x[:, :0], x, y), 1) + 1, [randn(9, 7), randn(9, 5)]),
    "computed parts": (lambda x, y: torch.cat((x * 2, -y), 1).exp(), [randn(9, 7), randn(9, 5)]),
    "rotary": (rotated, [randn(3, 9, 8), randn(3, 9, 8)]),
    "a view between": (lambda x, y: torch.cat((x, y), -1).view(-1)[3:].sin(), [randn(9, 7), randn(9, 5)]),
    "two dtypes": (lambda x, y: torch.cat((x, y), -1) + 1, [randn(9, 7), randn(9, 5, dtype=torch.bfloat16)]),
    "a number of a narrower dtype": (
        lambda x: torch.cat((torch.full((9, 2), 0.1, dtype=torch.bfloat16), x), 1) * 1000,
        [randn(9, 7)],
    ),
    "infinite": (lambda x, y: torch.cat((x * float("inf"), y), -1) * 0, [randn(9, 7), randn(9, 5)]),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_values(forced: None, name: str) -> None:
    function, arguments = ONE_KERNEL[name]
    check(function, arguments)
    made = schedule(lowered(function, arguments), H200)
    assert [len(k.nests) for k in made.kernels] == [1] == [len(made.steps)]


LOOPS: dict[str, Step] = {
    "returned": lambda x, y: torch.cat((x, y), 0),
    "a fold": lambda x, y: torch.cat((x, y), 0).sum(0),
    "a product": lambda x, y: torch.cat((x, y), 0) @ torch.cat((x, y), 0).t(),
    "five parts": lambda x, y: torch.cat((x, y, x, y, x), 0) + 1,
}


@pytest.mark.parametrize("name", LOOPS)
def test_other_readers_get_one_loop_for_each_part(forced: None, name: str) -> None:
    arguments = [randn(64, 48), randn(64, 48)]
    loops = [n for n in lowered(LOOPS[name], arguments).nodes if isinstance(n, Loop) and n.init is not None]
    assert loops, "no loop extends the first part's buffer"
    check(LOOPS[name], arguments)
