"""Strides of results at capture: those of the kernels, where torch's shape functions say something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pycompiler
from pycompiler.ir import strides

DOUBLE = torch.float64
FOUND: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "a loss of one element": (
        lambda x: F.huber_loss(x, x, reduction="none"),
        lambda: (torch.randn(3, dtype=DOUBLE)[::3],),
    ),
    "a quotient of windows": (lambda x: x // 2, lambda: (torch.arange(2).unfold(0, 2, 1),)),
    "a batch norm of one channel": (
        lambda x, m, v: F.batch_norm(x.movedim(-1, 1), m, v, None, None, True, 0.1),
        lambda: (torch.randn(3, 3, 1), torch.zeros(1), torch.ones(1)),
    ),
    "a convolution to one channel": (
        lambda x, w: F.conv1d(x, w, stride=2, padding=1),
        lambda: (torch.randn(2, 3, 2, dtype=DOUBLE), torch.randn(1, 2, 3, dtype=DOUBLE).transpose(1, 2)),
    ),
    "a copy of windows": (
        lambda x, i: x.index_fill(-2, i, 1.5),
        lambda: (torch.randn(3, 3, dtype=DOUBLE).unfold(0, 2, 1), torch.tensor(1)),
    ),
    "windows convolved by a part of themselves": (
        lambda x, i: F.conv1d((y := x.index_fill(-2, i, 1.5)), y[0:1], stride=2, padding=1),
        lambda: (torch.randn(3, 3, dtype=DOUBLE).unfold(0, 2, 1), torch.tensor(1)),
    ),
    "a sum to nothing": (lambda x: x.sum(0), lambda: (torch.randn(0, 3, 1).expand(2, 0, 3, 4).transpose(1, 3),)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", FOUND)
def test_strides_are_the_kernels(name: str, backend: str) -> None:
    fn, make = FOUND[name]
    args = make()
    expected = fn(*(a.clone() if a.is_contiguous() else a for a in args))
    got = pycompiler.compile(fn, backend=backend, fullgraph=True)(*args)
    assert (got.shape, got.stride()) == (expected.shape, expected.stride())
    torch.testing.assert_close(got, expected)


def test_strides_are_known_to_the_program() -> None:
    def fn(x: Tensor) -> Tensor:
        y = F.huber_loss(x, x, reduction="none")
        return x + y.stride(0)

    x = torch.ones(3)[::3]
    assert torch.equal(pycompiler.compile(fn)(x), fn(x))


def test_each_combination_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    ask = strides._ask
    monkeypatch.setattr(strides, "_ask", lambda op, *rest: (asked.append(op), ask(op, *rest))[1])
    monkeypatch.setattr(strides, "_answers", {})
    for _ in range(2):
        pycompiler.compile(lambda x: x.cumsum(0), backend="eager")(torch.ones(1, 7))
        pycompiler.compile(lambda x: x.cumsum(0), backend="eager")(torch.ones(2, 7))  # nothing is in doubt
    assert asked == [torch.ops.aten.cumsum.default]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_with_gaps(backend: str) -> None:
    """`slice_scatter` keeps its operand's strides; what is written into its result lies where it lay."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        t = torch.empty_strided((3,), (2,), dtype=x.dtype).copy_(x)
        t.mul_(y)
        return t

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    got = pycompiler.compile(fn, backend=backend)(x, y)
    assert got.stride() == fn(x, y).stride() == (2,)
    assert torch.equal(got, x * y)
    got.sum().backward()
    assert torch.equal(x.grad, y)


@pytest.mark.parametrize("dims", [[-1], [-2], [-1, -2], 0])
def test_norms_over_dimensions_of_one_element(dims: object) -> None:
    """torch 2.11's shape function does not take negative ones."""
    x = torch.randn(1, 1)

    def fn(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, 3, dims)  # type: ignore[arg-type]

    assert torch.equal(pycompiler.compile(fn)(x), fn(x))
