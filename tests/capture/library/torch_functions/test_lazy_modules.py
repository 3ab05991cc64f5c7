"""Lazy modules: the call that creates their parameters runs eagerly as a whole; the next call is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pycompiler


class Scale(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """A lazy module whose class stays the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, x: torch.Tensor, *rest: Any) -> None:
        with torch.no_grad():
            self.weight.materialize(x.shape[-1:])
            self.weight.uniform_()

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return x * self.weight


MODULES = {
    "linear": (lambda: nn.Sequential(nn.Dropout(0.5), nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), (3, 5)),
    "norm": (lambda: nn.Sequential(nn.LazyBatchNorm2d(affine=False, track_running_stats=False)), (2, 3, 4, 4)),
    "conv": (lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()), (2, 3, 6, 6)),
    "own": (lambda: nn.Sequential(Scale(), nn.Tanh()), (3, 5)),
}


@pytest.mark.parametrize("fullgraph", [True, False], ids=["whole", "parts"])
@pytest.mark.parametrize("name", MODULES)
def test_they_are_made_as_eager_makes_them(name: str, fullgraph: bool) -> None:
    make, shape = MODULES[name]
    module = make()
    twin = make()
    compiled = pycompiler.compile(module, backend="aot_eager", fullgraph=fullgraph)
    x = torch.randn(shape).requires_grad_()
    results = []
    for called in (compiled, twin):
        torch.manual_seed(3)
        calls = [called(x) for _ in range(3)]
        calls[-1].sum().backward()
        results.append(calls)
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)
    assert [type(m) for m in module.modules()] == [type(m) for m in twin.modules()]
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_below_a_function_whose_effects_happen_once() -> None:
    seen: list[int] = []
    module = nn.LazyLinear(2)

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        return module(x * 2) + len(seen)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(3, 4)
    for n in (1, 2, 3):
        assert torch.equal(compiled(x), module(x * 2) + n)
        assert seen == [*range(n)]


def test_many_through_one_function_are_compiled_once() -> None:
    """A call that runs eagerly leaves no entry for comparison with later calls."""

    def program(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x) * 2

    compiled, x = pycompiler.compile(program, fullgraph=True), torch.randn(2, 3)
    for _ in range(12):
        module = nn.LazyLinear(2)
        assert torch.equal(compiled(module, x), program(module, x))
    assert pycompiler.counters(compiled)["compiles"] == 0
    torch.testing.assert_close(compiled(module, x), program(module, x))
    counts = pycompiler.counters(compiled)
    assert (counts["compiles"], counts["limit_hits"], len(compiled.entries)) == (1, 0, 1)
