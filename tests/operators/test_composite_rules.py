"""Composite operators with symbolic sizes: values and random numbers match eager's kernels, not torch's Python rules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler

LAYERS: dict[str, Callable[[float], nn.Module]] = {
    "lstm": lambda p: nn.LSTM(2, 3, 3, dropout=p, batch_first=True),
    "lstm with projections": lambda p: nn.LSTM(2, 3, 2, dropout=p, proj_size=2, bias=False),
    "gru": lambda p: nn.GRU(2, 3, 2, dropout=p),
    "rnn": lambda p: nn.RNN(2, 3, 2, dropout=p, bidirectional=True, nonlinearity="relu"),
}


def seen(run: Callable[..., Any], *args: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(7)
    return run(*args), torch.get_rng_state()


@pytest.mark.parametrize("p", [0.4, 1.0])
@pytest.mark.parametrize("name", LAYERS)
def test_dropout_between_recurrent_layers(name: str, p: float) -> None:
    torch.manual_seed(0)
    theirs = LAYERS[name](p)
    ours = copy.deepcopy(theirs)
    compiled = pycompiler.compile(ours, dynamic=True, backend="aot_eager")
    for size in (3, 5):
        x = torch.randn(size, 2, 2) if theirs.batch_first else torch.randn(2, size, 2)
        (want, state), numbers = seen(theirs, x)
        (got, our_state), our_numbers = seen(compiled, x)
        torch.testing.assert_close((got, our_state), (want, state))
        assert torch.equal(numbers, our_numbers)
        want.sin().sum().backward()
        got.sin().sum().backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("size", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_compile_draws_nothing(backend: str, name: str, size: tuple[int, int]) -> None:
    """Probing strides of one-element dimensions with small real tensors must not advance the program's random generator."""
    torch.manual_seed(0)
    layer, x = LAYERS[name](0.4), torch.randn(*size, 2)
    (want, _), numbers = seen(layer, x)
    (got, _), our_numbers = seen(pycompiler.compile(layer, dynamic=True, backend=backend), x)
    torch.testing.assert_close(got, want)
    assert torch.equal(numbers, our_numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_shares_that_are_symbols(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(x, p, True) * 2

    compiled = pycompiler.compile(program, dynamic=True)
    for p in (0.5, 0.25, 1.0, 0.0, 0.75):
        x = torch.ones(4, 3, dtype=dtype)
        if dtype.is_complex and p not in (0.0, 1.0) and torch.__version__ < "2.15":
            continue  # torch before 2.15 has no dropout of complex numbers
        (want, numbers), (got, our_numbers) = seen(program, x, p), seen(compiled, x, p)
        torch.testing.assert_close(got, want)
        assert torch.equal(numbers, our_numbers)


def test_artefact_of_dropout_with_symbolic_sizes(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.3)

    compiled = pycompiler.compile(program, dynamic=True)
    compiled(torch.ones(3, requires_grad=True))
    assert pycompiler.save(compiled, tmp_path / "file").left_out == ()  # a named torch result must not prevent saving


def test_others_keep_torchs_rules() -> None:
    rule = torch.ops.aten.dropout.default.py_kernels[torch._C.DispatchKey.CompositeImplicitAutograd]
    _, before = seen(lambda: None)
    _, after = seen(rule, torch.ones(3), 1.0, True)
    assert not torch.equal(before, after)  # torch's rule draws random numbers, and ours does not


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zeros_of_softshrink_have_no_sign(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, bound: float, grad: torch.Tensor) -> Any:
        y = F.softshrink(x, bound)
        return 1 / y, 1 / torch.autograd.grad(y, x, grad)[0]

    compiled = pycompiler.compile(program, dynamic=True)
    for size, bound in ((8, 0.3), (16, 0.5), (24, 0.7)):
        x = torch.tensor([-0.05, 0.05, -1.0, 2.0, 0.0, -0.0, 0.7, -0.3]).to(dtype).repeat(size).requires_grad_()
        grad = torch.tensor([-1.0, 1.0, 0.0, -0.0]).to(dtype).repeat(2 * size)
        got, want = compiled(x, bound, grad), program(x, bound, grad)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert pycompiler.counters(compiled)["compiles"] == 1
