"""`torch.Size` arguments are captured like tuples, `slice` arguments by their parts: a changed number becomes a symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

X = torch.arange(40.0)
OF_SIZES: dict[str, Callable[[torch.Size], Any]] = {
    "made of it": lambda s: torch.zeros(s) + s[0],
    "viewed": lambda s: X[: s.numel()].view(s),
    "new": lambda s: X.new(s).fill_(1),
    "Tensor": lambda s: torch.Tensor(s).fill_(2),
    "the very object": lambda s: (X * s[0], s),
    "parts": lambda s: (X * s[0], s + (1,), s[1:], s[::-1], len(s), s.numel(), sum(s), s * 2),
    "other classes": lambda s: (X * s[0], tuple(s), [*s], isinstance(s, torch.Size)),
    "its text": lambda s: (X * s[0], f"{s}"),
}
OF_SLICES: dict[str, Callable[[slice], Any]] = {
    "an index": lambda s: X[s] * 2,
    "parts": lambda s: (X * s.stop, s.start, s.step),
    "the very object": lambda s: (X[s], s),
    "a write": lambda s: X.clone().index_fill_(0, torch.tensor([1]), 2)[s].fill_(1),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_SIZES)
def test_a_size_that_is_an_argument(name: str, dynamic: bool | None) -> None:
    program = OF_SIZES[name]
    compiled = pycompiler.compile(program, backend="eager", dynamic=dynamic, fullgraph=True)
    for n in (3, 4, 5, 6, 8):
        size = torch.Size((n, 4))
        got = compiled(size)
        assert_same(got, program(size))
        assert name != "the very object" or got[1] is size
    assert pycompiler.counters(compiled)["compiles"] == (1 if dynamic else 2)


def test_a_size_is_no_tuple_and_has_its_length() -> None:
    compiled = pycompiler.compile(lambda s: (X * 2, s, len(s)), backend="eager")
    for size in (torch.Size((2, 3)), (2, 3), torch.Size((2, 3, 4)), torch.Size(())):
        got = compiled(size)
        assert got[1] is size and got[2] == len(size)


@pytest.mark.parametrize("name", OF_SLICES)
def test_a_slice_that_is_an_argument(name: str) -> None:
    program = OF_SLICES[name]
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for n in (3, 4, 5, 6, 8):
        given = slice(0, n)
        got = compiled(given)
        assert name != "the very object" or got[1] is given
        if isinstance(got, tuple):
            assert torch.equal(got[0], program(given)[0]) and got[1:] == program(given)[1:]
        else:
            assert_same(got, program(given))
    assert pycompiler.counters(compiled)["compiles"] == 2


def test_slices_of_other_parts() -> None:
    compiled = pycompiler.compile(lambda s: X[s] * 2, backend="eager")
    for given in (slice(3), slice(None), slice(1, None, 2), slice(torch.tensor(2), 9), slice(-4, -1)):
        assert_same(compiled(given), X[given] * 2)
    with pytest.raises(TypeError, match="slice indices must be integers"):
        compiled(slice("a"))
