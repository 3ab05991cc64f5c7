"""`torch.tensor` of numbers in tensors, and tensor classes as constructors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same, assert_same_calls

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
X = torch.arange(4.0)


@pytest.mark.parametrize("first", DTYPES)
def test_the_dtype_is_that_of_all(first: torch.dtype) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.tensor([a, b]), torch.as_tensor([(a, b), (b, b)])

    for second in DTYPES:
        a, b = torch.tensor(3).to(first), torch.tensor(2).to(second)
        compiled = pycompiler.compile(program, backend="eager")
        assert_same(compiled(a, b), program(a, b), exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_that_is_asked_for(dtype: torch.dtype) -> None:
    def program(a: torch.Tensor) -> Any:
        return torch.tensor([a, a * 2], dtype=dtype)

    for given in DTYPES:
        for number in (1.75, -1.5, 300.0, 2.0**40):
            a, error, want = torch.tensor(number, dtype=torch.complex64).to(given), None, X
            try:
                want = program(a)
            except (RuntimeError, TypeError) as e:
                error = type(e)
            compiled = pycompiler.compile(program, backend="eager")
            if error is None:
                assert_same(compiled(a), want, exact=True)
            else:
                with pytest.raises(error):
                    compiled(a)


def test_one_graph_and_new_memory() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        made = torch.tensor([a, b])
        a.add_(1)
        return made, torch.tensor([a], dtype=torch.float64)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert_same_calls(compiled, program, lambda: (X[1].clone(), X[2]), exact=True)


def test_what_eager_refuses() -> None:
    def program(a: torch.Tensor) -> Any:
        return torch.tensor([a, a])

    with pytest.raises(ValueError, match="only one element"):
        pycompiler.compile(program, backend="eager")(X)
    wants = torch.tensor(1.0, requires_grad=True)
    assert torch.equal(pycompiler.compile(program, backend="eager")(wants), torch.ones(2))
    assert pycompiler.explain(program)(wants).graph_break_count == 1  # eager warns


def test_an_array_without_dimensions_is_no_number() -> None:
    """Eager asks a list's items for their lengths."""

    def program(x: torch.Tensor, a: Any) -> Any:
        return torch.tensor([a[1:].reshape(()), x[0]], dtype=torch.float64)

    for fn in (program, pycompiler.compile(program, backend="eager")):
        with pytest.raises(TypeError, match="unsized"):
            fn(X, np.arange(2.0))


def test_classes_of_tensors_are_called() -> None:
    def program(x: torch.Tensor) -> Any:
        lists = torch.Tensor([[1, 2], [3, x.size(0)]]), torch.FloatTensor((1, 2.5)), torch.LongTensor([])
        numbers = (
            torch.LongTensor([np.array([1, 5])[1]]),
            torch.LongTensor([x.size(0)]),
            torch.BoolTensor([2]),
            torch.DoubleTensor([x[1], x[2]]),
        )
        sizes = torch.Tensor(2, x.size(0)).zero_(), torch.IntTensor(x.shape).fill_(7), torch.HalfTensor(3).zero_()
        return *lists, *numbers, *sizes

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for n in (4, 4, 5, 6):
        x = torch.arange(float(n))
        for got, want in zip(compiled(x), program(x), strict=True):
            assert_same(got, want, exact=True)


def test_the_default_dtype_is_asked() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor([1, 2]) + x.sum()

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert_same(compiled(X), program(X), exact=True)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(compiled(X), program(X), exact=True)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert_same(compiled(X), program(X), exact=True)


def test_other_calls_break() -> None:
    def alias(x: torch.Tensor) -> torch.Tensor:
        made = torch.Tensor(x)
        made.add_(1)
        return made

    x, y = X.clone(), X.clone()
    assert torch.equal(pycompiler.compile(alias, backend="eager")(x), alias(y)) and torch.equal(x, y)
    with pytest.raises(TypeError):
        pycompiler.compile(lambda x: torch.FloatTensor(2.5) + x, backend="eager")(X)
