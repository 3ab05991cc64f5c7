"""What is inside of a wrapper that an operator made: tensors are the graph's, numbers are constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")


class Scaled(torch.Tensor):
    """Its operators hand its scale on, and count."""

    data_: torch.Tensor
    scale: torch.Tensor
    depth: int

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, depth: int) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, data.shape, strides=data.stride(), dtype=data.dtype, device=data.device
        )

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, depth: int) -> None:
        self.data_, self.scale, self.depth = data, scale, depth

    def __repr__(self) -> str:
        return f"Scaled({self.data_!r}, {self.scale!r}, {self.depth})"

    def __tensor_flatten__(self) -> Any:
        return ["data_", "scale"], {"depth": self.depth}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["data_"], inner["scale"], context["depth"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        of = args[0]
        rest = [a.data_ if isinstance(a, Scaled) else a for a in args[1:]]
        return Scaled(func(of.data_, *rest, **(kwargs or {})), of.scale, of.depth + 1)


def made_of(x: Any) -> Any:
    y = x * 2
    return y.data_ + 1, y.scale * y.depth, y.data_ is y.data_


def handed_on(x: Any) -> Any:
    y = (x * 2).sin()
    return y.scale is x.scale, y.scale + x.scale, y.depth - x.depth


def written_inside(x: Any) -> Any:
    y = x * 2
    y.data_.add_(1)
    z = y + 1
    return z.data_ * 1, y


def in_both(x: Any) -> Any:
    y = x + 1
    return y, y.scale * 2, torch.cat([y.data_.view(-1), x.data_.view(-1)])


def flat(made: Any) -> list[Any]:
    if isinstance(made, Scaled):
        return [made.data_, made.scale, made.depth]
    return [part for m in made for part in flat(m)] if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [made_of, handed_on, written_inside, in_both])
def test_it_is_the_graphs(fn: Callable[[Any], Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for depth in (1, 1, 5):
        got, want = (flat(run(Scaled(torch.ones(2, 3), torch.full((3,), 2.5), depth))) for run in (compiled, fn))
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_gradients(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        return y.sin(), y.a + 1, y.a.requires_grad

    compiled, found = pycompiler.compile(fn, backend=backend, fullgraph=True), []
    for run in (compiled, fn):
        x: Any = TwoTensor(torch.ones(3), torch.ones(3) * 2).requires_grad_()
        y, a, tracked = run(x)
        y.sum().backward()
        found.append([x.grad.a, x.grad.b, y.a.detach(), a.detach(), torch.tensor([tracked, a.requires_grad])])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_there_is_left_to_eager(backend: str) -> None:
    def fn(x: Any) -> Any:
        return getattr(x * 2, "missing", 7) + x.depth

    compiled = pycompiler.compile(fn, backend=backend)
    assert compiled(Scaled(torch.ones(2), torch.ones(2), 3)) == 10
