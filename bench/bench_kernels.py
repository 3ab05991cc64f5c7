"""Kernels of 2048×1024 fp32 with two threads; Adam's step and cross-entropy with one."""

from __future__ import annotations

from typing import Any

import programs
import pytest
import torch
from peers import ALL, Peer
from torch import Tensor

pytestmark = pytest.mark.parametrize("peer", ALL, indirect=True)
ROWS, COLUMNS = 2048, 1024
BYTES = ROWS * COLUMNS * 4


def matrix() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def two_threads(peer: Peer) -> None:
    torch.set_num_threads(2)


@pytest.mark.parametrize("threads", [1, 2])
def test_copy(measure, peer: Peer, threads: int) -> None:
    """The machine's copy as the reference; no compiler takes part."""
    if peer.name != "eager":
        pytest.skip("the copy is ATen's")
    torch.set_num_threads(threads)
    x = matrix()
    out = torch.empty_like(x)
    name = f"kernel: copy 2048×1024, {threads} {'thread' if threads == 1 else 'threads'}"
    measure.work(name, lambda: out.copy_(x), moved=2 * BYTES)


def test_gelu_layer_norm(measure, peer: Peer) -> None:
    two_threads(peer)
    x, weight, bias = matrix(), torch.ones(COLUMNS), torch.zeros(COLUMNS)
    fn = peer.compile(programs.gelu_layer_norm)
    with torch.no_grad():
        name = "kernel: gelu → layer_norm 2048×1024"
        measure.work(name, lambda: fn(x, weight, bias), {"torch.compile": 0.5}, moved=2 * BYTES)


def test_softmax(measure, peer: Peer) -> None:
    two_threads(peer)
    x = matrix()
    fn = peer.compile(programs.softmax)
    with torch.no_grad():
        measure.work("kernel: softmax 2048×1024", lambda: fn(x), {"torch.compile": 0.75}, moved=2 * BYTES)


def test_cross_entropy(measure, peer: Peer) -> None:
    logits = matrix().requires_grad_()
    targets = torch.randint(COLUMNS, (ROWS,), generator=torch.Generator().manual_seed(1))
    fn = peer.compile(programs.cross_entropy)

    def step() -> Any:
        logits.grad = None
        fn(logits, targets).backward()

    name = "kernel: cross-entropy 2048×1024, forward and backward"
    measure.work(name, step, {"torch.compile": 1.0}, moved=3 * BYTES)  # two reads of the logits, one gradient written


def test_optimizer(measure, peer: Peer) -> None:
    """The step of `torch.optim.Adam` as people compile it; `test_adam` is its arithmetic alone."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.rand(128, 128, generator=generator)) for _ in range(100)]
    for p in parameters:
        p.grad = torch.rand(128, 128, generator=generator)
    optimizer = torch.optim.Adam(parameters)
    step = peer.compile(lambda: optimizer.step())
    step()  # creates the optimizer's state
    measure.work("optimizer: torch.optim.Adam step, 100 parameters", step, {"torch.compile": 1.0})


def test_adam(measure, peer: Peer) -> None:
    generator = torch.Generator().manual_seed(0)
    lists = [[torch.rand(128, 128, generator=generator) for _ in range(100)] for _ in range(4)]
    corrections = torch.tensor([1 - 0.9**10, 1 - 0.999**10])
    fn = peer.compile(programs.adam)
    with torch.no_grad():
        name, moved = "kernel: Adam's step, 100 parameters", 7 * 100 * 128 * 128 * 4  # reads four lists, writes three
        measure.work(name, lambda: fn(*lists, corrections), {"torch.compile": 1.0}, moved=moved)
