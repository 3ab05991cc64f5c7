"""NumPy numbers beside tensors, as sizes and as indices: torch treats them as Python numbers, and graphs do so too."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same, assert_same_calls

X = torch.arange(12.0).reshape(4, 3)
BACKENDS = ["eager", "native"]


def agree(fn: Callable[..., Any], calls: list[tuple[Any, ...]], compiles: int, backend: str = "eager") -> None:
    """Each call takes one graph and matches eager; all calls take `compiles` compiles."""
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for args in calls:  # kernels may round once less than eager
        assert_same(compiled(*args), fn(*args), exact=backend == "eager")
    assert pycompiler.counters(compiled)["compiles"] == compiles


KINDS = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8]
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda x, n: (x + n, n + x, x - n, n - x),
    "products": lambda x, n: (x * n, n * x, x / n, n / x),
    "powers and parts": lambda x, n: (x**n, x // n, x % n),
    "comparisons": lambda x, n: (x < n, n <= x, x == n, x != n),
    "in place": lambda x, n: x.clone().mul_(n).add_(x, alpha=1).__iadd__(n),
    "functions": lambda x, n: (torch.add(x, n), torch.clamp(x, n), torch.full((2,), n), torch.where(x > 3, x, n)),
    "computed": lambda x, n: (x * (n + 1), x + 2 * n, x - (n - 1), x * (n * n)),
    "branches": lambda x, n: x + 1 if n > 1 else x - 1,
    "Python's numbers": lambda x, n: (x * float(n), x + int(n), x * math.sqrt(n), n.item()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operands(name: str, backend: str) -> None:
    fn = OPERATIONS[name]
    for kind in KINDS if backend == "eager" else KINDS[:4]:
        for x in (X, torch.arange(3), torch.tensor(2.5, dtype=torch.float64), torch.ones(2, dtype=torch.bfloat16)):
            if name == "in place" and not x.is_floating_point() and issubclass(kind, np.floating):
                continue  # eager refuses this case
            if backend == "native" and x is not X:
                continue
            agree(lambda n, x=x: fn(x, n), [(kind(2),), (kind(3),)], 2, backend)


def test_one_graph_does_for_all_values() -> None:
    floats = [(X, np.float64(v)) for v in (1.5, 2.5, -3.25, 4.0, 0.1)]
    agree(lambda x, s: x * s + (s - 1), floats, 2)
    agree(lambda x, s: x * s, [(X, np.float32(v)) for v in (1.5, 0.1, 0.3)], 2)
    integers = [(X, np.int64(v)) for v in (2, 3, 5, 7)]
    agree(lambda x, n: x * n + n % 2, integers, 2)
    agree(lambda x, n: x * (3 * n - 1), integers, 2)
    compiled = pycompiler.compile(lambda x, s: x * s, dynamic=True, fullgraph=True)
    for x, s in floats:
        assert torch.equal(compiled(x, s), x * s)
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_attributes_and_globals() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = np.sqrt(16) / 3
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale

    model = Scaled()
    compiled = pycompiler.compile(model, fullgraph=True)
    want, got = model(X), compiled(X)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    grad, model.linear.weight.grad = model.linear.weight.grad, None
    want.sum().backward()
    torch.testing.assert_close(grad, model.linear.weight.grad)
    model.scale = np.float64(0.5)  # type: ignore[assignment]
    torch.testing.assert_close(compiled(X), model(X))
    model.scale = 0.5  # type: ignore[assignment]  # another class
    torch.testing.assert_close(compiled(X), model(X))
    table = {"a": np.float32(3)}
    agree(lambda x: x * table["a"] * SimpleNamespace(b=np.int64(2)).b, [(X,)], 1)


def test_sizes_and_indices() -> None:
    integers = [(X, np.int64(v)) for v in (1, 2, 3)]
    agree(lambda x, n: (x[n], x[n, 1], x[None, n]), integers, 2)
    agree(lambda x, n: (x[:n] + 1, x[n:] + 1), integers[1:], 2)
    agree(lambda x, n: (x.new_zeros(n), torch.zeros(n, 2), x.view(1, -1).expand(n, 12).sum(0)), integers[1:], 2)
    agree(lambda x, n: x + [10, 20, 30, 40][n] + len(range(n)), integers, 3)

    def stored(x: Any, n: Any) -> Any:
        y = x.clone()
        y[n] = 5
        y[0, n - 1] = np.float64(7)
        return y

    agree(stored, integers, 2)


def test_functions_of_sizes_are_symbols() -> None:
    squares = [(torch.ones(n, n),) for n in (2, 3, 4, 5, 9)]
    agree(lambda x: x / np.sqrt(x.shape[-1]), squares, 2)
    agree(lambda x: x.view(np.prod(x.shape)) + 1, squares, 2)
    agree(lambda x: x.reshape(int(np.prod(x.shape[:2]))) + 1, squares, 2)
    agree(lambda x: x[: int(np.ceil(x.shape[0] / 2))] + int(np.floor(x.shape[0] / 2)), squares, 2)
    agree(lambda x: x * np.log(x.shape[0]) + np.sin(x.shape[1]), squares[:3], 3)  # NumPy's results differ from Python's


def test_methods_of_numbers() -> None:
    squares = [(torch.ones(n, n),) for n in (5, 6, 7)]
    agree(lambda x: x[: np.round(x.shape[0] * 0.6).astype(int)] + np.float64(2.7).astype("int64"), squares, 3)
    agree(lambda x, s: x * s.astype(np.int64) + s.round(), [(X, np.float64(v)) for v in (1.7, 2.7)], 2)


def test_numbers_that_leave_the_graph_are_numpys() -> None:
    agree(lambda x, s: (x * s, s, s + 1, [s * 2], s > 2), [(X, np.float64(v)) for v in (1.5, 2.5)], 2)
    agree(lambda x: (x + 1, np.sqrt(x.shape[0]), np.prod(x.shape)), [(torch.ones(n, 2),) for n in (3, 4, 5)], 3)


def test_elements_of_arrays() -> None:
    betas = [(X, np.array([0.1, 0.2, 0.3]) * k) for k in (1, 2, 3)]
    agree(lambda x, a: x * a[1] + a[-1], betas, 2)
    agree(lambda x, a: x[a[0], a[1]], [(X, np.array([k, 1])) for k in (1, 2, 3)], 2)
    agree(lambda x, m: x + m[1, 0], [(X, np.array([[1.0, 2.0], [k, 4.0]])) for k in (1.0, 2.0)], 2)

    def written(x: Any, a: Any) -> Any:
        a[1] = 7.0
        return x * a[1]

    compiled = pycompiler.compile(written)
    for x, a in betas:
        assert_same_calls(compiled, written, lambda x=x, a=a: (x, a.copy()), calls=1, exact=True)

    def through_a_tensor(x: Any, a: Any) -> Any:
        torch.from_numpy(a).mul_(2)
        return x * a[1]

    compiled = pycompiler.compile(through_a_tensor)
    for x, a in betas:
        assert_same_calls(compiled, through_a_tensor, lambda x=x, a=a: (x, a.copy()), calls=1, exact=True)


@pytest.mark.parametrize("number", [np.bool_(True), np.complex64(1)])
def test_torch_takes_truths_for_floats(number: Any) -> None:
    """`torch.arange(3) + numpy.bool_(True)` is a float tensor: the graph breaks."""

    def fn(x: Any) -> Any:
        return x * 2 + number

    with pytest.warns() if number.dtype.kind == "c" else contextlib.nullcontext():
        want = fn(torch.arange(3))
        got = pycompiler.compile(fn)(torch.arange(3))
    assert_same(got, want)


def test_what_numpy_says_of_integers() -> None:
    def fn(x: Any, n: Any) -> Any:
        return x + (n + np.int64(2**62)) // 2**60

    numbers = [np.int64(v) for v in (1, 2, 2**61)]
    agree(fn, [(X, n) for n in numbers], 2)
    compiled = pycompiler.compile(fn)
    for n in (*numbers, np.int64(2**62)):
        with pytest.warns(RuntimeWarning, match="overflow") if n == 2**62 else contextlib.nullcontext():
            want = fn(X, n)
        assert torch.equal(compiled(X, n), want)  # integers in graphs wrap around silently

    def divided(x: Any, n: Any) -> Any:
        return x + 7 % n

    with pytest.warns(RuntimeWarning):
        want = divided(X, np.int64(0))
    compiled = pycompiler.compile(divided)
    assert torch.equal(compiled(X, np.int64(2)), divided(X, np.int64(2)))
    assert torch.equal(compiled(X, np.int64(3)), divided(X, np.int64(3)))
    with pytest.warns(RuntimeWarning):
        assert torch.equal(compiled(X, np.int64(0)), want)


@pytest.mark.parametrize("kind", (np.float64, np.float32, np.float16, np.int64, np.int8, np.bool_))
def test_the_guard_of_a_constant_number_sees_the_very_object(kind: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x * (2 if n else 3) if kind is np.bool_ else x * n

    x, n = torch.ones(2), kind(1)
    guards = [g for gs in pycompiler.explain(program)(x, n).out_guards for g in gs]
    assert any(g.kind == "equals" and g.arg is n for g in guards) and not any("number_of" in str(g) for g in guards)
    compiled = pycompiler.compile(program, backend="eager")
    for value in (n, kind(1), kind(0), kind(1)):
        assert torch.equal(compiled(x, value), program(x, value))
    assert compiled.counters()["compiles"] <= 3


def test_zeros_and_nans_of_numpy_are_told_apart() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x * float(n)

    compiled = pycompiler.compile(program, backend="eager", dynamic=False)
    for value in (0.0, -0.0, float("nan"), float("nan"), -0.0, 0.0):
        for kind in (np.float32, np.float64):
            assert str(compiled(torch.ones(1), kind(value))) == str(program(torch.ones(1), kind(value)))
    assert compiled.counters()["compiles"] == 6


@pytest.mark.parametrize("kind", KINDS)
def test_functions_that_refuse_numbers_of_numpy(kind: Any) -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        try:
            return x + 1, math.trunc(n)
        except TypeError as e:
            return str(e)

    args = torch.ones(2), kind(3)
    assert str(pycompiler.compile(program, backend="eager")(*args)) == str(program(*args))


MADE: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda x: (torch.tensor(np.float64(0.5)), torch.tensor(np.int8(3)), x + 1),
    "as_tensor": lambda x: (torch.as_tensor(np.float64(0.5)), torch.asarray(np.int16(3)), x + 1),
    "of lists": lambda x: (
        torch.tensor([np.float64(0.5), 1]),
        torch.tensor([[np.float16(1)]]),
        torch.tensor((np.int8(3), 1)),
        x,
    ),
    "of a dtype": lambda x: (torch.tensor(np.float64(0.5), dtype=torch.float16), x + 1),
    "of functions": lambda x: (torch.tensor(np.conj(0.5)), torch.tensor(np.sqrt(16)), x + 1),
}


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("name", MADE)
def test_a_tensor_of_a_constant_number_has_its_dtype(name: str, backend: str) -> None:
    agree(MADE[name], [(torch.ones(2),)] * 2, 1, backend)


def _written(a: Any, n: Any) -> Any:
    a = a.copy()
    a += n
    a[0] = n
    return a


CHANGING: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda a, n: (a + n, n - a, a * n, a / n, n // (a + 1.5), a % (n + 0.5)),
    "compared": lambda a, n: (a < n, n <= a, a == n),
    "chosen": lambda a, n: (np.where(a > 1, n, a), np.where(a > 1, 0, n), a.clip(-n, n), np.maximum(a, n)),
    "of a number": lambda a, n: (a.max() * n, n - a.sum()),
    "beside another number": lambda a, n: np.where(a > n, n, n + 1) * (n * 2),
    "written": _written,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numbers", [(3, 4, -5, 60), (3.5, 4.5, -5.5, 1e300)], ids=["integers", "floats"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CHANGING)
def test_numbers_of_pythons_that_change_beside_an_array(
    name: str, dtype: str, numbers: tuple[Any, ...], backend: str
) -> None:
    a = np.arange(6, dtype=dtype)
    compiled = pycompiler.compile(CHANGING[name], backend=backend, fullgraph=True)
    for n in numbers:
        with np.errstate(all="ignore"):
            assert_same(compiled(a, n), CHANGING[name](a, n), tolerance=1e-6, absolute=0.0)
    assert pycompiler.counters(compiled)["compiles"] <= 3  # a negative number compiles again


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "bool"])
def test_an_integer_that_a_dtype_does_not_hold_is_refused_as_numpy_does(dtype: str) -> None:
    def program(a: Any, n: int) -> Any:
        return a + n, np.where(a > 0, n, a), a < n

    compiled = pycompiler.compile(program, backend="eager")
    for n in (3, 4, 100, 127, 128, 300, 2**40):
        assert_same_calls(compiled, program, lambda n=n: (np.arange(4).astype(dtype), n), calls=1, exact=True)


def test_a_size_beside_an_array_stays_a_symbol() -> None:
    def program(a: Any) -> Any:
        return (a - a.mean()) / a.shape[0], a.sum() / len(a)

    calls = [(np.arange(float(n)),) for n in (3, 4, 5, 6)]
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for args in calls:
        assert_same(compiled(*args), program(*args), tolerance=1e-6, absolute=0.0)
    assert pycompiler.counters(compiled)["compiles"] == 2
