"""Tensor subclasses with changing sizes: the class's result for size symbols matches eager for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import pycompiler
from tests.autograd.subclasses.test_subclasses import BACKENDS, Coded
from tests.harness.compare import assert_same

LINEAR = torch.nn.Linear(4, 5)


def two(n: int, *, grad: bool = False) -> Any:
    made: Any = TwoTensor(torch.randn(n, 4), torch.randn(n, 4))
    return made.requires_grad_() if grad else made


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: (x * 2).relu(),
    "a size": lambda x: x * x.size(0) + len(x),
    "linear": lambda x: LINEAR(x).sin(),
    "sum": lambda x: x.sum(0),
    "reshape": lambda x: (x * 1).reshape(-1),
    "cat": lambda x: torch.cat([x, x * 2]),
    "new": lambda x: x.new_zeros(x.shape[0]).sum() + x,
    "transposed": lambda x: (x * 2).t() * 1,
    "halves": lambda x: x[1:] * x[:-1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_new_sizes_compile_once_more_then_never(name: str, backend: str) -> None:
    fn = FUNCTIONS[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n in (3, 5, 7, 4, 9):
        x = two(n, grad=True)
        y = TwoTensor(x.a.clone(), x.b.clone()).requires_grad_()
        wanted, got = fn(x), compiled(y)
        assert_same(got, wanted)
        for result in (wanted, got):
            result.backward(torch.ones_like(result))
        assert_same(y.grad, x.grad)
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gradients_and_written(backend: str) -> None:
    def write(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    relu = pycompiler.compile(lambda x: x.relu(), backend=backend, fullgraph=True)
    written = pycompiler.compile(write, backend=backend, fullgraph=True)
    for n in (3, 5, 7, 2):
        coded = Coded(torch.arange(4 * n, dtype=torch.int32).reshape(n, 4), 0.5)
        assert_same(relu(coded), coded.relu())
        x = two(n)
        y = TwoTensor(x.a.clone(), x.b.clone())
        assert_same(written(y), write(x))
        assert_same(y, x)
    assert relu.counters()["compiles"] == written.counters()["compiles"] == 2


class Padded(torch.Tensor):
    """Rows with a visible part: the outer size counts the visible rows of the inner tensor."""

    rows: torch.Tensor
    seen: int

    @staticmethod
    def __new__(cls, rows: torch.Tensor, seen: int) -> Padded:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, (seen, *rows.shape[1:]), strides=rows.stride(), dtype=rows.dtype, device=rows.device
        )

    def __init__(self, rows: torch.Tensor, seen: int) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        return f"Padded({self.rows!r})"

    def __tensor_flatten__(self) -> Any:
        return ["rows"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Padded:
        return Padded(inner["rows"], size[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(a for a in args if isinstance(a, Padded))
        inside = tree_map(lambda a: a.rows if isinstance(a, Padded) else a, args)
        result = func(*inside, **(kwargs or {}))
        if func is torch.ops.aten.sum.default:
            return func(first.rows[: first.shape[0]])
        return Padded(result, first.shape[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_size_that_the_tensors_inside_do_not_tell(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        return y, y.sum(), y.shape[0]

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for rows, seen in ((6, 3), (8, 5), (8, 4), (9, 9), (20, 2), (6, 3)):
        x = Padded(torch.randn(rows, 4), seen)
        assert_same(compiled(x), fn(x))


class Fixed(TwoTensor):
    """A subclass that needs a constant for its size."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(a for a in args if isinstance(a, Fixed))
        scale = 2 if first.a.shape[0] > 4 else int(first.a.shape[0])
        inside = tree_map(lambda a: a.a if isinstance(a, Fixed) else a, args)
        return Fixed(func(*inside, **(kwargs or {})) * scale, first.b)

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Fixed(inner["a"], inner["b"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_class_that_decides_by_sizes(backend: str) -> None:
    def fn(x: Any) -> Any:
        return x.sin()

    with pycompiler.config.patch(recompile_limit=32):
        compiled = pycompiler.compile(fn, backend=backend)
        for n in (2, 3, 5, 4, 6, 3, 7, 2, 1, 4):
            x = Fixed(torch.randn(n, 4), torch.randn(n, 4))
            assert_same(compiled(x), fn(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_of_them_with_sizes_of_their_own(backend: str) -> None:
    def fn(x: Any, y: Any, p: torch.Tensor) -> Any:
        return x.sum(0) * p.size(0) + y.sum(0)

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for n, m, k in ((3, 4, 5), (4, 6, 7), (5, 5, 5), (7, 3, 2), (9, 8, 6)):
        x, y, p = two(n), two(m), torch.ones(k, 2)
        assert_same(compiled(x, y, p), fn(x, y, p))
    assert compiled.counters()["compiles"] == 2


def test_wrappers_inside_of_wrappers_have_numbers() -> None:
    def fn(x: Any) -> Any:
        return x * 2

    compiled = pycompiler.compile(fn, fullgraph=True)
    for n in (3, 5, 7):
        x = TwoTensor(two(n), two(n))
        assert_same(compiled(x), fn(x))
    assert compiled.counters()["compiles"] == 3
