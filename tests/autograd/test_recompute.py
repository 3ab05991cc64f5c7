"""`recompute.py`: exact operators, and the order in which dear operators are computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ad_helpers import joint_of

from pycompiler.autograd.recompute import decides, is_exact, recompute_cost

A, B = torch.randn(4, 6), torch.randn(6, 8)


def operator_of(fn: Callable[..., Any], args: list[torch.Tensor]) -> torch.fx.Node:
    return next(n for n in joint_of(fn, args).graph.nodes if n.op == "call_function")


@pytest.mark.parametrize(
    ("fn", "exact"),
    [(lambda x: x.t() + 1, True), (lambda x: x.split(2)[1] + 1, True), (lambda x: x.double(), True), (lambda x: x.relu(), True),
     (lambda x: x.half(), False), (lambda x: x + 1, False), (lambda x: x.sin(), False)],
)  # fmt: skip
def test_exact_operators_round_nothing(fn: Callable[..., Any], exact: bool) -> None:
    assert is_exact(operator_of(fn, [A])) is exact


@pytest.mark.parametrize(
    ("fn", "jumps"),
    [(lambda x: x.div(3, rounding_mode="floor"), True), (lambda x: x.div(3, rounding_mode="trunc"), True), (lambda x: x / 3, False),
     (lambda x: x.floor(), True), (lambda x: x > 0, True), (lambda x: x.long(), True), (lambda x: x.double(), False), (lambda x: x.sin(), False)],
)  # fmt: skip
def test_operators_that_jump_decide(fn: Callable[..., Any], jumps: bool) -> None:
    assert decides(operator_of(fn, [A])) is jumps


@pytest.mark.parametrize(
    ("fn", "args", "cost"),
    [(lambda x, y: x @ y, [A, B], 2 * 6), (lambda b, x, y: torch.addmm(b, x, y), [B[0], A, B], 2 * 6),
     (lambda x: x.sum(1), [A], 1 + 6), (lambda x: x.sum(), [A.double()], 1 + 24),
     (lambda x, w: torch.conv2d(x, w), [torch.randn(1, 3, 5, 5), torch.randn(2, 3, 2, 2)], 2 * 3 * 2 * 2)],
)  # fmt: skip
def test_the_cost_is_the_length_of_the_inner_loop(
    fn: Callable[..., Any], args: list[torch.Tensor], cost: float
) -> None:
    assert recompute_cost(operator_of(fn, args)) == cost
