"""Tensors where eager takes numbers: what a graph computes with the tensor has eager's values and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pycompiler

HALF, ONE = torch.tensor(0.5), torch.tensor(1.25, dtype=torch.float64)


def lists() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    return [torch.randn(2, 3), torch.randn(4)], [torch.rand(2, 3), torch.rand(4)]


def same(fn: Any, *args: Any, fullgraph: bool = True) -> Any:
    copies = [[t.clone() for t in a] if isinstance(a, list) else a for a in args]
    want = fn(*args)
    got = pycompiler.compile(fn, backend="eager", fullgraph=fullgraph)(*copies)
    assert type(got) is type(want)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.testing.assert_close(copies, list(args), rtol=0, atol=0)
    return got


def test_exponents() -> None:
    same(torch._foreach_pow, torch.tensor(0.8), lists()[1])


@pytest.mark.parametrize("fn", [torch._foreach_lerp, torch._foreach_lerp_], ids=lambda f: f.__name__)
def test_weights(fn: Any) -> None:
    same(lambda a, b, w: fn(a, b, w), *lists(), HALF)


@pytest.mark.parametrize("number", [HALF, ONE, torch.tensor(2), torch.tensor(True)], ids=lambda t: str(t.dtype)[6:])
@pytest.mark.parametrize("dtype", [None, torch.int32, torch.float64], ids=str)
def test_full(number: torch.Tensor, dtype: Any) -> None:
    same(lambda x: torch.full((2, 3), x, dtype=dtype), number)


def test_full_of_a_subclass() -> None:
    class Own(torch.Tensor):
        pass

    same(lambda x: torch.full((2,), x), HALF.as_subclass(Own))


def test_what_may_be_otherwise_breaks() -> None:
    """Another dtype; a number that wants a gradient, which eager does not give it."""
    same(torch._foreach_pow, torch.tensor(2.0, dtype=torch.float64), lists()[1], fullgraph=False)
    with pytest.raises(pycompiler.errors.Unsupported):
        pycompiler.compile(torch.full, backend="eager", fullgraph=True)((2,), HALF.clone().requires_grad_())


def test_an_index_that_the_program_wrote_down() -> None:
    same(lambda x: [x, x + 1, x + 2][torch.as_tensor(2)], torch.rand(3))

    def written(x: torch.Tensor) -> torch.Tensor:
        i = torch.tensor(2)
        i.data.fill_(1)
        return [x, x + 1, x + 2][i]

    same(written, torch.rand(3), fullgraph=False)
    with pytest.raises(pycompiler.errors.Unsupported):
        pycompiler.compile(written, backend="eager", fullgraph=True)(torch.rand(3))
