"""Second derivatives of graphs whose hooks or Functions compute with gradients: eager's if the computation is linear,
otherwise an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler.errors import DoubleBackwardError

Bodies = dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
LINEAR: Bodies = {
    "itself": lambda g, h: g,
    "reversed": lambda g, h: -2 * g,
    "masked": lambda g, h: g * (h > 0),
    "of another": lambda g, h: torch.where(h > 0, g, g * 0.1),
    "a softmax's": lambda g, h: h * (g - (g * h).sum(-1, keepdim=True)),
    "turned": lambda g, h: g.flip(-1).roll(1, 0) / 3,
    "without its mean": lambda g, h: g - g.mean(),
}
OTHER: Bodies = {
    "cut off": lambda g, h: g.clamp(-0.004, 0.004),
    "cut off far away": lambda g, h: g.clamp(-10.0, 10.0),
    "without signs": lambda g, h: g.abs(),
    "of length one": lambda g, h: g / g.norm(),
    "with a constant": lambda g, h: g + 0.01,
    "squared": lambda g, h: g * g,
}


def hook_of(body: Any) -> Any:
    def hooked(h: torch.Tensor) -> torch.Tensor:
        at = h.detach()
        h.register_hook(lambda g: body(g, at))
        return h

    return hooked


def function_of(body: Any) -> Any:
    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(h)
            return h.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return body(g, ctx.saved_tensors[0].detach())  # type: ignore[no-any-return]

    return lambda h: Passes.apply(h)


def gradients(run: Callable[[Any], Any], through: Any, create_graph: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return second(torch.tanh(through(first(x).sin())))  # type: ignore[no-any-return]

    x = torch.randn(2, 4, 6, dtype=torch.float64).requires_grad_()
    loss = run(fn)(x).square().mean()
    if create_graph:
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = loss + g.abs().sum()
    loss.backward()
    return [p.grad for p in (*first.parameters(), *second.parameters(), x)]  # type: ignore[misc]


@pytest.mark.parametrize("kind", [hook_of, function_of])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_ones_are_differentiated_again(name: str, kind: Any) -> None:
    through = kind(LINEAR[name])
    torch.testing.assert_close(
        gradients(pycompiler.compile, through, True), gradients(lambda f: f, through, True), atol=1e-12, rtol=1e-9
    )


@pytest.mark.parametrize("kind", [hook_of, function_of])
@pytest.mark.parametrize("name", OTHER)
def test_others_are_an_error_under_create_graph_alone(name: str, kind: Any) -> None:
    """Eager calls the hook or backward once, with the sum of the gradients from both paths."""
    through = kind(OTHER[name])
    torch.testing.assert_close(
        gradients(pycompiler.compile, through, False), gradients(lambda f: f, through, False), atol=1e-12, rtol=1e-9
    )
    with pytest.raises(
        DoubleBackwardError, match="'graph': a hook, or the backward of an autograd Function, is not linear"
    ):
        gradients(pycompiler.compile, through, True)


@pytest.mark.parametrize("kind", [hook_of, function_of])
def test_what_is_disabled_is_eagers(kind: Any) -> None:
    through = kind(OTHER["cut off"])
    apart = pycompiler.disable(lambda h: through(h) * 1)
    torch.testing.assert_close(
        gradients(pycompiler.compile, apart, True), gradients(lambda f: f, through, True), atol=1e-12, rtol=1e-9
    )
