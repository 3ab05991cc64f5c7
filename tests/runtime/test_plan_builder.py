"""Results of another shape than their buffers: the buffer is allocated in the result's shape where nothing else has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.ir.plan import View
from tests.harness.built_plans import BuiltPlans
from tests.harness.compare import assert_same


def called(x: torch.Tensor) -> Any:
    y = x * 2 + 1
    return y.reshape(-1), torch.linalg.vector_norm(y.cumsum(0), 3.0)


# program -> views that its plan needs for results
ROWS: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {
    "without a dimension": (lambda x: (x * 2).sum(0, keepdim=True).squeeze(0), 0),
    "another shape": (lambda x: (x * 2 + 1).reshape(3, -1), 0),
    "a part": (lambda x: (x * 2 + 1)[1:], 1),
    "turned": (lambda x: (x * 2 + 1).t(), 1),
    "an operator reads the buffer": (called, 1),
    "nothing": (lambda x: (x[:0] + 1).reshape(0, 2, 3), 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_views_of_results(name: str, plans: BuiltPlans) -> None:
    program, views = ROWS[name]
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    assert_same(pycompiler.compile(program)(x), program(x))
    assert plans.count(View) == views


def test_gradients_of_biases_need_no_view(plans: BuiltPlans) -> None:
    layer = torch.nn.Linear(4, 3)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    pycompiler.compile(layer)(x).sum().backward()
    found, layer.bias.grad = layer.bias.grad, None
    layer(x).sum().backward()
    assert_same(found, layer.bias.grad)
    assert plans.count(View) == 0


def test_sizes_that_calls_choose(plans: BuiltPlans) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).reshape(-1)

    compiled = pycompiler.compile(program, dynamic=True)
    for rows in (3, 5):
        x = torch.linspace(-1, 1, rows * 2).reshape(rows, 2)
        assert_same(compiled(x), program(x))
    assert plans.count(View) == 0
