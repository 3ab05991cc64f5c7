"""Tensors where eager takes numbers: what a graph computes with the tensor has eager's values and dtypes."""

from __future__ import annotations

from collections.abc import Callable
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


MADE: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "float": lambda x, f: x * torch.tensor(f),
    "floats": lambda x, f: torch.tensor([f, 1.0, 2]),
    "half": lambda x, f: torch.tensor([f, -f], dtype=torch.float16),
    "sizes": lambda x, f: torch.tensor([x.shape[0], x.shape[1] * x.shape[0]]),
    "shape": lambda x, f: torch.tensor(x.shape),
    "matrix": lambda x, f: torch.tensor([[x.shape[0]], [2]], dtype=torch.float32),
    "mixed": lambda x, f: torch.as_tensor((f, x.shape[0])),
    "index": lambda x, f: x[torch.tensor([x.shape[0] - 1, 0])],
    "of all": lambda x, f: torch.asarray([[[f * 2.0]]], dtype=torch.float64),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", MADE)
def test_tensors_of_numbers_that_change(name: str, backend: str) -> None:
    compiled = pycompiler.compile(MADE[name], backend=backend, fullgraph=True)
    for n in range(6):
        x, f = torch.arange(n + 2.0).view(-1, 1).expand(-1, 3), 0.1 * n + 0.05
        want, got = MADE[name](x, f), compiled(x, f)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride() and got.device == want.device
    assert compiled.counters()["compiles"] == 2


LOOKED_INTO: dict[str, Callable[[torch.Tensor], Any]] = {
    "index": lambda x: x[torch.tensor(x.shape[0]) - 1],
    "of a list": lambda x: [x, x + 1, x + 2, x + 3, x + 4, x + 5][torch.as_tensor(x.shape[0])],
    "steps": lambda x: torch.linspace(0, 1, torch.tensor(x.shape[0])),
}


@pytest.mark.parametrize("name", LOOKED_INTO)
def test_numbers_are_constants_where_their_tensor_is_looked_into(name: str) -> None:
    compiled = pycompiler.compile(LOOKED_INTO[name], backend="eager", fullgraph=True)
    for n in (2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n, 2)), LOOKED_INTO[name](torch.ones(n, 2)))


def test_numbers_that_the_dtype_does_not_hold() -> None:
    fns = (lambda f: torch.tensor([f], dtype=torch.float16), lambda f: torch.tensor([f, 1], dtype=torch.int64))
    for fn in fns:
        compiled = pycompiler.compile(fn, backend="eager")
        for f in (0.5, 1.5, 1e9, -1e9, 2.5, float("inf")):
            try:
                want: Any = fn(f)
            except (OverflowError, ValueError, RuntimeError) as e:
                with pytest.raises(type(e)):
                    compiled(f)
            else:
                torch.testing.assert_close(compiled(f), want, rtol=0, atol=0)


def test_tensors_of_numbers_are_on_the_default_device() -> None:
    def program(n: int, f: float) -> Any:
        with torch.device("meta"):
            a = torch.tensor([n, n])
        return a.device, torch.tensor([f]), torch.tensor(n, device="meta").device

    compiled = pycompiler.compile(program, backend="eager")
    for n in (2, 3, 4):
        assert str(compiled(n, n * 0.3)) == str(program(n, n * 0.3))
