"""Checkpoints, Functions and hooks inside a whole training step: after their backward has
run, they read nothing again. The optimizer may then write the tensors that they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler


class Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
        q = torch.round(x / scale)
        ctx.save_for_backward(q, scale)
        ctx.most = most
        return q.clamp(-most, most) * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        q, scale = ctx.saved_tensors
        inside = q.abs() <= ctx.most
        return g * inside, (g * torch.where(inside, -q, q.clamp(-ctx.most, ctx.most))).sum().reshape(scale.shape), None


class Scaled(torch.autograd.Function):
    """A Function that saves no tensor: a second backward runs it again and reads `ctx.w` again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.w = w
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.w.detach().sum(), None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor([0.05]))


def checkpointed(m: Model, x: torch.Tensor) -> torch.Tensor:
    return m.b(checkpoint(lambda t: m.a(t).relu(), x, use_reentrant=False)).pow(2).mean()


def residual(m: Model, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x)
    return m.b(checkpoint(lambda t: t + m.a(x).tanh(), h, use_reentrant=False)).pow(2).mean()


def quantised(m: Model, x: torch.Tensor) -> torch.Tensor:
    weight = Quantise.apply(m.a.weight, m.scale, 7)  # type: ignore[no-untyped-call]
    return m.b(torch.nn.functional.linear(x, weight, m.a.bias)).pow(2).mean()  # type: ignore[no-any-return]


def hooked(m: Model, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x).tanh()
    h.register_hook(lambda g: g * m.scale.detach())
    return m.b(h).pow(2).mean()  # type: ignore[no-any-return]


def state(m: Model) -> Any:
    return [p.detach().clone() for p in m.parameters()], [
        None if p.grad is None else p.grad.clone() for p in m.parameters()
    ]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("loss", [checkpointed, residual, quantised, hooked])
def test_a_training_step_is_one_graph(loss: Callable[..., Any], backend: str) -> None:
    found = []
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, backend=backend, fullgraph=True)):
        m = Model()
        optimizer = torch.optim.Adam(m.parameters(), lr=0.01)

        @wrap
        def step(x: torch.Tensor, m: Model = m, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(m, x)
            value.backward()
            optimizer.step()
            return value.detach()

        torch.manual_seed(5)
        found.append([(step(torch.randn(n, 4)), state(m)) for n in (3, 3, 4, 6)])
    torch.testing.assert_close(found[1], found[0])


def test_two_losses_of_one_checkpoint() -> None:
    """The first backward retains the graph. The tensors that it read may be written only after the second backward."""
    found = []
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, fullgraph=True)):
        m = Model()

        @wrap
        def step(x: torch.Tensor, m: Model = m) -> Any:
            h = checkpoint(lambda t: m.a(t).tanh(), x, use_reentrant=False)
            h.pow(2).mean().backward(retain_graph=True)
            m.b(h).mean().backward()
            with torch.no_grad():
                m.a.weight.add_(1.0)
            return m.a(x)

        torch.manual_seed(5)
        found.append([(step(torch.randn(n, 4)), state(m)) for n in (3, 3, 4)])
    torch.testing.assert_close(found[1], found[0])


def kept(m: Model, x: torch.Tensor) -> Any:
    h = checkpoint(lambda t: m.a(t).tanh(), x, use_reentrant=False)
    h.pow(2).mean().backward(retain_graph=True)
    with torch.no_grad():
        m.scale.add_(1.0)
        m.a.bias.data = m.a.bias.data + 1
    return h


def other_way(m: Model, x: torch.Tensor) -> Any:
    first, second = checkpoint(lambda t: (m.a(t).tanh(), m.scale * m.a(t)), x, use_reentrant=False)
    first.pow(2).mean().backward()
    with torch.no_grad():
        m.scale.add_(1.0)
    return second


def keeps_nothing(m: Model, x: torch.Tensor) -> Any:
    h = Scaled.apply(x * 1, m.scale)  # type: ignore[no-untyped-call]
    total = h.sum()
    total.backward()
    with torch.no_grad():
        m.scale.mul_(2.0)
    return total


@pytest.mark.parametrize("fn", [kept, other_way, keeps_nothing])
def test_what_may_look_again_breaks_the_graph(fn: Callable[..., Any]) -> None:
    found = []
    for call in (fn, pycompiler.compile(fn)):
        m, seen = Model(), []
        torch.manual_seed(5)
        for _ in range(3):
            x = torch.randn(3, 4, requires_grad=True)
            try:
                call(m, x).sum().backward()
                seen.append("passed")
            except RuntimeError as error:
                seen.append(str(error)[:60])
            seen.append((state(m), x.grad))
        found.append(seen)
    assert [s for s in found[0] if isinstance(s, str)] == [s for s in found[1] if isinstance(s, str)]
    torch.testing.assert_close(
        [s for s in found[1] if not isinstance(s, str)], [s for s in found[0] if not isinstance(s, str)]
    )
