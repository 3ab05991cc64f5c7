"""TorchScript functions as nodes of the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pycompiler

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated")


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sin()


def writes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return a * torch.rand_like(b)


def branches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if bool(a.sum() > 0):
        a = a * 2
    return a / b


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a - 2 * b


def made(kind: str) -> Any:
    if kind == "traced":
        return torch.jit.trace(product, [torch.zeros(3), torch.zeros(3)])
    return torch.jit.script({"product": product, "writes": writes, "branches": branches}[kind])


@pytest.mark.parametrize("kind", ["product", "writes", "branches", "traced"])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_as_eager(kind: str, backend: str) -> None:
    script = made(kind)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return script(a, b) + 1

    compiled = pycompiler.compile(program, backend=backend, fullgraph=kind != "branches")
    for i in range(3):
        found = []
        for fn in (program, compiled):
            torch.manual_seed(i)
            a, b = torch.randn(3), torch.randn(3).requires_grad_(kind == "product")
            result = fn(a, b)
            if b.requires_grad:
                result.sum().backward()
            found.append((a, result, b.grad))
        torch.testing.assert_close(found[1], found[0])
    assert compiled.counters()["compiles"] == 1


def test_another_function_is_another_graph() -> None:
    compiled = pycompiler.compile(lambda f, x: f(x, x) * 2, backend="eager", fullgraph=True)
    one, other = made("product"), torch.jit.script(difference)
    x = torch.arange(3.0)
    for f in (one, other, one):
        assert torch.equal(compiled(f, x), f(x, x) * 2)
