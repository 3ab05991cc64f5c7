"""Whole calls of small work: guards, allocation, kernels, wrapping; one thread."""

from __future__ import annotations

import programs
import pytest
import torch
from peers import ALL, COMPILERS, Peer

everyone = pytest.mark.parametrize("peer", ALL, indirect=True)
compilers = pytest.mark.parametrize("peer", COMPILERS, indirect=True)


@everyone
def test_plus_one(measure, peer: Peer) -> None:
    fn = peer.compile(programs.plus_one)
    measure.calls("call: x + 1, 4 floats", fn, torch.ones(4), limits={"torch.compile": 1 / 10, "eager": 1 / 2})


@compilers
def test_plus_one_of_any_size(measure, peer: Peer) -> None:
    fn = peer.compile(programs.plus_one, dynamic=True)
    measure.calls("call: x + 1, two symbols", fn, torch.ones(3, 4), limits={"torch.compile": 1 / 10})


@everyone
def test_mlp_inference(measure, peer: Peer) -> None:
    model = peer.compile(programs.mlp())
    with torch.no_grad():
        measure.calls("call: MLP 8×8", model, torch.ones(8, 8), limits={"torch.compile": 1 / 3, "eager": 1 / 2})


@everyone
def test_mlp_training(measure, peer: Peer) -> None:
    plain = programs.mlp()
    model = peer.compile(plain)
    x = torch.ones(8, 8)
    ones = torch.ones(8, 8)

    def step() -> None:
        model(x).backward(ones)

    step()
    measure.calls("call: MLP 8×8, forward and backward", step, limits={"torch.compile": 1 / 2, "eager": 1.0})


@compilers
@pytest.mark.parametrize("entries", [1, 8])
def test_entries(measure, peer: Peer, entries: int) -> None:
    """The most recently used of `entries` entries is hit."""
    fn = peer.compile(programs.plus_one, dynamic=False)
    for size in range(2, entries + 2):
        fn(torch.ones(size))
    measure.calls(f"call: {entries} entries, the last used", fn, torch.ones(entries + 1))


@everyone
def test_graph_break(measure, peer: Peer) -> None:
    fn = peer.compile(programs.with_break)
    measure.calls("call: a graph break in the middle", fn, torch.ones(4), limits={"torch.compile": 1 / 3})
