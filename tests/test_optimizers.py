"""torch.optim inside and under `compile`: parameters and state beside eager; the step's arithmetic is one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda ps: torch.optim.Adam(ps, lr=1e-2),
    "Adam of lists": lambda ps: torch.optim.Adam(ps, lr=1e-2, foreach=True),
    "Adamax of lists": lambda ps: torch.optim.Adamax(ps, lr=1e-2, foreach=True),
    "NAdam of lists": lambda ps: torch.optim.NAdam(ps, lr=1e-2, foreach=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.1, amsgrad=True),
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2),
    "SGD momentum": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-2, centered=True),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps, lr=1e-2),
    "NAdam": lambda ps: torch.optim.NAdam(ps, lr=1e-2),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.set_num_threads(1)
    pycompiler.reset()
    yield
    pycompiler.reset()


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.rand(shape, generator=generator)) for shape in [(4, 5), (5,), (3, 2, 2)]]


def train(make: Callable[..., Any], compiled: Callable[[Any], Any] | None) -> tuple[list[Any], Any]:
    """Five steps, the learning rate halved before the last."""
    ps = parameters()
    optimizer = make(ps)
    step = optimizer.step if compiled is None else compiled(optimizer)
    for k in range(5):
        for j, p in enumerate(ps):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * k + j))
        if k == 4:
            optimizer.param_groups[0]["lr"] /= 2
        step()
    return [p.detach() for p in ps], optimizer.state_dict()["state"]


@pytest.mark.parametrize("how", ["step", "function"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_steps(name: str, how: str) -> None:
    def compiled(optimizer: Any) -> Any:
        return pycompiler.compile(optimizer.step if how == "step" else lambda: optimizer.step())

    ours, our_state = train(OPTIMIZERS[name], compiled)
    theirs, their_state = train(OPTIMIZERS[name], None)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_state, their_state)


def test_the_arithmetic_is_one_graph() -> None:
    ps = parameters()
    for p in ps:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.Adam(ps)
    counts = [len(g.graph.nodes) for g in pycompiler.explain(lambda: optimizer.step())().graphs]
    assert max(counts) > 3 * 8
    assert sum(n > 8 for n in counts) == 1


def test_saved_parameters_are_noticed() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    pycompiler.compile(lambda: optimizer.step())()
    assert p.detach().allclose(torch.full((3,), 0.9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
