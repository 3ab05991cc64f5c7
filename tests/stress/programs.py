"""The programs of the stress runs. Each checks its own result against a closed form or against eager."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

import pycompiler

SIZES = (2, 3, 4, 5)


def broken(x: Any, n: int) -> Any:
    """A function with a graph break and a specialised `n`."""
    y = x * n
    pycompiler.graph_break()
    return (y + 1).sum()


def check_broken(made: Any, rng: random.Random) -> None:
    size, n = rng.choice(SIZES), rng.randrange(3)
    value = made(torch.ones(size), n).item()
    assert value == size * (n + 1), (size, n, value)


class Net(nn.Module):
    """A module with parameters, a buffer and a dropout that eval() turns off."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 2))
        self.register_buffer("shift", torch.linspace(0, 1, 2))

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.shift


def new_net(seed: int = 0) -> Net:
    """A net with the same parameters for the same seed; the shared random generator stays untouched."""
    net = Net()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.rand(p.shape, generator=generator) - 0.5)
    return net


def inputs(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 8 * size).reshape(size, 8)


def check_net(made: Any, net: Net, rng: random.Random) -> None:
    x = inputs(rng.choice(SIZES))
    with torch.no_grad():
        torch.testing.assert_close(made(x), net(x))


def loss_of(net: Any, x: Any) -> Any:
    return net(x).square().mean()


def check_training(made: Any, rng: random.Random) -> None:
    """Check gradients of the thread's own net through a compiled function that threads share."""
    seed = rng.randrange(100)
    net, twin, x = new_net(seed), new_net(seed), inputs(rng.choice(SIZES))
    with torch.enable_grad():
        made(net, x).backward()
        loss_of(twin, x).backward()
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda text, name=name: f"{name}: {text}")
