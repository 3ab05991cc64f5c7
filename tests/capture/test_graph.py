"""The graph under construction: its inputs."""

from __future__ import annotations

import torch
from capture.harness import compile_recorded
from torch import nn


class Deep(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner: nn.Module = Deep(depth - 1) if depth > 1 else nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_inputs_of_deep_sources_have_names_of_their_own() -> None:
    """The names of weight and bias begin alike, and are far too long."""
    net, x = Deep(40), torch.ones(2, 4)
    compiled = compile_recorded(lambda x: net(x))
    assert torch.equal(compiled.fn(x), net(x))
    assert [r.broke for r in compiled.records] == [None]


def test_sources_with_one_spelling() -> None:
    class Holder:
        def __init__(self) -> None:
            self.a_b, self.a, self.a_b_2 = torch.ones(2), {"b": torch.full((2,), 10.0)}, torch.full((2,), 100.0)

    holder = Holder()
    compiled = compile_recorded(lambda x, h: x + h.a_b + h.a["b"] + h.a_b_2)
    assert torch.equal(compiled.fn(torch.zeros(2), holder), torch.full((2,), 111.0))
    assert [r.broke for r in compiled.records] == [None]
