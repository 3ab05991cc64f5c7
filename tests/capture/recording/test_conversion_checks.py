"""Changing numbers beside tensors: an overflow of the dtype is refused or saturated as in eager; the identity of a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls

backends = pytest.mark.parametrize("backend", ["eager", "native"])
X = torch.arange(6.0)


@pytest.fixture(autouse=True)
def automatic() -> Any:
    with pycompiler.config.patch(automatic_dynamic_shapes=True, recompile_limit=50):
        yield


def agree(fn: Callable[..., Any], values: tuple[Any, ...], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    for value in values:
        assert_same_calls(compiled, fn, lambda v=value: (X.clone(), v), exact=True)


INTEGERS: dict[str, Callable[..., Any]] = {
    "tensor": lambda x, n: torch.tensor(n),
    "tensor of a list": lambda x, n: torch.tensor([[n, 1], (1, n)]),
    "as_tensor": lambda x, n: torch.as_tensor(n) + x.long(),
    "new_tensor": lambda x, n: x.new_tensor(n, dtype=torch.int64),
    "clamp": lambda x, n: x.int().clamp(0, n),
    "clamp of bytes": lambda x, n: torch.clamp(x.to(torch.uint8), min=n),
    "product added": lambda x, n: torch.addcmul(x.int(), x.int(), x.int(), value=n),
    "half, filled": lambda x, n: x.half().masked_fill(x > 0, n),
    "half": lambda x, n: x.half() * n,
    "half, added": lambda x, n: x.half().add(x.half(), alpha=n),
    "half, compared": lambda x, n: x.half() > n,
}


@backends
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_beyond_the_dtype(name: str, backend: str) -> None:
    agree(INTEGERS[name], (3, 4, 300, 70000, 2**31, 2**40 + 7), backend)


def test_within_it_they_stay_symbols() -> None:
    compiled = pycompiler.compile(lambda x, n: (x.int().clamp(0, n), x.half() * n))
    for n in (3, 4, 5, 6):
        compiled(X, n)
    assert compiled.counters()["compiles"] == 2


@backends
def test_numbers_of_numpy_compare_elementwise(backend: str) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        y = x + 1
        return y, y == n, y != n, n == y

    agree(program, (np.int64(3), np.float32(3), np.bool_(True), object(), None), backend)


def test_exponents_next_to_nothing_are_not_nothing() -> None:
    agree(lambda x, f: x**f, (1e-300, 0.0, 1e-50), "native")


@backends
def test_a_number_is_itself(backend: str) -> None:
    agree(lambda x, n: (x + n, n is n), (3, 4, 300, 1000), backend)
    agree(lambda x, n: (x + n, n is n), (3.5, 4.5, 300.5), backend)


def test_of_equal_members_a_set_keeps_the_first() -> None:
    agree(lambda x, n: (x + 1, frozenset([n, 1]), {n, 1}, {1, n}, {n: 1, 1: 2}), (True, 1), "eager")
