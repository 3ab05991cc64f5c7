"""The six example models: inference and training; one thread."""

from __future__ import annotations

import pytest
import torch
from models import NAMES, build
from peers import ALL, Peer

pytestmark = [
    pytest.mark.parametrize("peer", ALL, indirect=True),
    pytest.mark.parametrize("name", NAMES),
]


def test_inference(measure, peer: Peer, name: str) -> None:
    case = build(name, training=False)
    model = peer.compile(case.model)
    with torch.no_grad():
        measure.work(
            f"model: {name}, inference",
            lambda: model(*case.args, **case.kwargs),
            {"torch.compile": 0.9, "eager": 1.0},
        )


def test_training(measure, peer: Peer, name: str) -> None:
    """Forward, loss and backward; the optimizer's step is another bench."""
    case = build(name)
    model = peer.compile(case.model)

    def step() -> None:
        case.loss(model(*case.args, **case.kwargs)).backward()
        case.model.zero_grad(set_to_none=True)

    measure.work(f"model: {name}, training", step, {"torch.compile": 1.0, "eager": 1.0})
