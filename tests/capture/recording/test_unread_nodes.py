"""Graphs for a user's backend: they contain all computations of the program, also unused ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


class Recorded:
    """A backend that stores the graph and runs it unchanged."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward

    @property
    def operators(self) -> int:
        return sum(n.op in ("call_function", "call_method") for gm in self.graphs for n in gm.graph.nodes)


def nothing(x: torch.Tensor) -> None:
    torch.mul(x, 2)


def only_its_shape(x: torch.Tensor) -> Any:
    return (x + 1).shape


def beside_the_result(x: torch.Tensor) -> torch.Tensor:
    x.sin()
    return x.cos()


def parts(x: torch.Tensor) -> torch.Tensor:
    first, _, _ = x.split(1)
    return first


@pytest.mark.parametrize(
    ("program", "operators"), [(nothing, 1), (only_its_shape, 1), (beside_the_result, 2), (parts, 2)],
    ids=lambda p: getattr(p, "__name__", str(p)),
)  # fmt: skip
def test_calls_stay_in_the_graph(program: Callable[..., Any], operators: int) -> None:
    backend = Recorded()
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    x = torch.rand(3)
    for _ in range(2):
        assert str(compiled(x)) == str(program(x))
    assert (len(backend.graphs), backend.operators) == (1, operators)


def test_a_frame_that_calls_nothing_has_no_graph() -> None:
    backend = Recorded()
    assert pycompiler.compile(lambda x: x.shape[0], backend=backend, fullgraph=True)(torch.rand(3)) == 3
    assert not backend.graphs


def test_a_frame_that_gives_a_tensor_back_has_a_graph() -> None:
    """Counts as in torch.compile: one graph for a returned tensor of the caller, none for containers of such tensors."""

    def alone(x: torch.Tensor, y: torch.Tensor) -> Any:
        return y

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return [y, {"x": x}], y.dim()

    x, y = torch.rand(3), torch.rand(4)
    backend = Recorded()
    compiled = pycompiler.compile(alone, backend=backend, fullgraph=True)
    assert compiled(x, y) is y and compiled(x, y) is y
    assert (len(backend.graphs), backend.operators) == (1, 0)
    backend = Recorded()
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        (first, more), dims = compiled(x, y)
        assert first is y and more["x"] is x and dims == 1
    assert not backend.graphs


def test_our_own_backends_leave_them_out() -> None:
    for backend in ("eager", "native"):
        compiled = pycompiler.compile(nothing, backend=backend, fullgraph=True)
        compiled(torch.rand(3))
        assert [entry.kind for entry in compiled.entries] == ["eager"]


def test_classes_that_stand_for_dtypes() -> None:
    """Graphs are printed as source code, where such a class has no name."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.type(torch.HalfTensor)
        return x.type(torch.DoubleTensor)

    for backend in (Recorded(), "eager", "native"):
        assert pycompiler.compile(program, backend=backend, fullgraph=True)(torch.ones(3)).dtype is torch.float64
