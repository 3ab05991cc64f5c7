"""Backends of others get symbolic numbers that torch's own machinery can carry."""

from __future__ import annotations

from typing import Any

import pytest
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


def test_numbers_that_are_asked_for_more() -> None:
    """torch's tracing looks into the expression of a float that a product in place takes: it is given one of torch's."""

    def program(x: torch.Tensor, rate: float) -> Any:
        return x.clone().mul_(0.5 * rate), rate + 1

    check(program, *((torch.ones(2), rate) for rate in (0.1, 0.2, 0.3, 0.4)))


def test_a_backend_s_own_attribute_error() -> None:
    def broken(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return examples[0].no_such_attribute

    compiled = pycompiler.compile(lambda x: x + 1, backend=broken, dynamic=True)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        compiled(torch.ones(3))
