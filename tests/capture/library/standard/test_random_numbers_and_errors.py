"""Python and NumPy random numbers drawn before a graph with a
data-dependent error: the frame runs again and draws the same numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pycompiler
from tests.harness.compare import assert_same


def mixup(net: nn.Module, optimizer: Any, log: list[Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    share = np.random.beta(0.4, 0.4)
    order = torch.randperm(x.size(0))
    log.append("a step")
    optimizer.zero_grad()
    out = net(share * x + (1 - share) * x[order])
    loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])
    loss.backward()
    optimizer.step()
    return loss.detach()


def caught(net: nn.Module, optimizer: Any, log: list[Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    scale, noise, k = random.uniform(0, 1), np.random.rand(3), np.random.randint(5)
    log.append(k)
    try:
        loss = F.cross_entropy(net(x) * scale + torch.from_numpy(noise), y) * k
        return loss.detach(), net(x * random.random())
    except IndexError as error:
        log.append(str(error))
        return torch.rand(2), np.random.rand(2)


def kept(net: nn.Module, optimizer: Any, log: list[Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    """The program's module stores the drawn number."""
    share = RNG.random()
    net.share = share
    return F.one_hot(y, 3) * share + torch.dropout(net(x), 0.5, True)


RNG = np.random.default_rng(3)


def steps(fn: Any, wrap: Any) -> list[Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    fn, log, seen = wrap(fn), list[Any](), list[Any]()
    for k in range(6):
        x, y = torch.randn(6, 5), torch.randint(0, 3, (6,))
        if k in (2, 4):
            y[3] = 7
        try:
            seen.append(fn(net, optimizer, log, x, y))
        except (IndexError, RuntimeError) as error:
            seen.append((type(error).__name__, str(error)))
        seen += [np.random.rand(), random.random(), torch.rand(1), RNG.random(), getattr(net, "share", None)]
    return [*seen, *log, *(p.detach() for p in net.parameters())]


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize("fn", [mixup, caught, kept])
def test_what_was_drawn_is_drawn_again(fn: Any, backend: str) -> None:
    assert_same(steps(fn, lambda f: pycompiler.compile(f, backend=backend)), steps(fn, lambda f: f))


def test_mixup_is_one_graph() -> None:
    net = nn.Linear(5, 3)
    given = net, torch.optim.SGD(net.parameters(), 0.1), [], torch.randn(6, 5), torch.randint(0, 3, (6,))
    report = pycompiler.explain(mixup)(*given)
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    compiled = pycompiler.compile(mixup, fullgraph=True)
    for _ in range(5):
        compiled(*given)
    assert compiled.counters()["compiles"] <= 2 and compiled.counters()["eager_calls"] == 0
