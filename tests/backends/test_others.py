"""Backends of others get symbolic numbers that torch's own machinery can carry."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.backends.debugging import aot_eager

import pycompiler


def check(program: Any, *calls: tuple[Any, ...]) -> None:
    compiled = pycompiler.compile(program, backend=aot_eager, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(compiled(*args), program(*args))
    assert compiled.counters()["compiles"] == 2


def test_sizes_of_what_is_made() -> None:
    def program(n: int, m: int) -> torch.Tensor:
        return torch.full((n, m), 2.0, dtype=torch.complex64)

    check(program, *((n + 3, 2 * n) for n in range(2, 5)))


def test_sizes_and_numbers_together() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, rate: float) -> Any:
        return x * rate + y.size(0), x.reshape(-1, 2).sum(0)

    check(program, *((torch.ones(2 * i, 4), torch.ones(i), 0.5 * i) for i in range(2, 6)))
