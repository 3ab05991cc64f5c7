"""`override_cudagraphs`: the settings that reach the compiler, for forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.errors import ArgumentError
from pycompiler.ir import cuda_graph_override
from pycompiler.runtime import cuda_graphs

X = torch.randn(5)
# torch 2.11 has no manager of this name
MANAGERS = [pycompiler.override_cudagraphs, *filter(None, [getattr(torch._dynamo, "override_cudagraphs", None)])]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bool]]]:
    """(graph, `config.triton.cudagraphs`) of each plan; all settings are as before at the end."""
    found: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        cuda_graphs, "of_plan", lambda gm, plan: found.append((plan.name.rpartition(".")[2], config.triton.cudagraphs))
    )
    yield found
    assert cuda_graph_override.now() == {"forward": None, "backward": None}
    assert not config.triton.cudagraphs


def trained(program: Any, **settings: Any) -> None:
    x = X.clone().requires_grad_()
    pycompiler.compile(program, **settings)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 2.0))


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("fwd", [None, True, False])
@pytest.mark.parametrize("bwd", [None, True, False])
def test_in_a_captured_frame(
    manager: Any, mode: str | None, fwd: bool | None, bwd: bool | None, asked: list[tuple[str, bool]]
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        with manager(fwd=fwd, bwd=bwd):
            z = y + 1
        return z + 1

    trained(program, mode=mode, fullgraph=True)
    default = mode is not None
    assert asked == [("forward", default if fwd is None else fwd), ("backward", default if bwd is None else bwd)]


@pytest.mark.parametrize("manager", MANAGERS)
def test_as_a_decorator_and_around_a_call(manager: Any, asked: list[tuple[str, bool]]) -> None:
    @manager(fwd=True)
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    trained(lambda x: part(x) + 1)
    assert asked == [("forward", True), ("backward", False)]
    asked.clear()
    compiled = pycompiler.compile(lambda x: x * 2 + 3)
    with pycompiler.override_cudagraphs(fwd=True, bwd=True):
        x = X.clone().requires_grad_()
        y = compiled(x)
    y.sum().backward()
    assert asked == [("forward", True), ("backward", True)]


def test_around_a_graph_break(asked: list[tuple[str, bool]]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with pycompiler.override_cudagraphs(fwd=True):
            x = x * 2
            pycompiler.graph_break()
            x = x + 1
        pycompiler.graph_break()
        return x + 2

    assert torch.equal(pycompiler.compile(program)(X), X * 2 + 1 + 2)
    assert [on for _, on in asked] == [True, True, False]


def test_other_arguments() -> None:
    with pytest.raises(ArgumentError, match="takes True, False or None, got 1"):
        pycompiler.override_cudagraphs(1)  # type: ignore[arg-type]
