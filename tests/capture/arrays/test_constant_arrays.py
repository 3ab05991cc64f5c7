"""Arrays of constants: NumPy computes them during capture. Their elements, lengths and
lists are constants for loops, sizes and indices; written arrays belong to the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler

X = torch.arange(24.0).reshape(4, 6)
Program = Callable[[torch.Tensor], Any]


def positions(x: torch.Tensor) -> torch.Tensor:
    table = np.array([[p / np.power(10000, 2 * (i // 2) / 6) for i in range(6)] for p in range(4)])
    table[:, 0::2] = np.sin(table[:, 0::2])
    return x + torch.tensor(table, dtype=torch.float32)


def filled(x: torch.Tensor) -> torch.Tensor:
    a = np.zeros(6)
    a[1] = 5.0
    a += 1
    return x * a[1] + torch.from_numpy(a).float() + a[0]


def viewed(x: torch.Tensor) -> torch.Tensor:
    a = np.arange(6.0)
    b = a[2:]
    b[0] = 100.0
    torch.from_numpy(a).mul_(2)
    return x * a[2] + b[1]


def decided(x: torch.Tensor) -> torch.Tensor:
    edges = np.cumsum([1, 2, 1])
    return x + 1 if edges[-1] == x.shape[0] and np.isin(2, [1, 2]) and len(edges) > 2 else x - 1


PROGRAMS: dict[str, Program] = {
    "loops": lambda x: sum(x * v for v in np.linspace(0, 1, 4)) + sum(x[i] for i in np.arange(3)),
    "zipped": lambda x: sum(row * v for row, v in zip(x, np.arange(4.0), strict=True)),
    "sizes": lambda x: x.new_zeros(tuple(int(v) for v in np.array(x.shape) // 2)) + len(np.ones(3)),
    "lists": lambda x: x[:, np.arange(0, 6, 2).tolist()] + np.linspace(0, 1, 3).tolist()[1],
    "pieces": lambda x: x.split([int(v) for v in np.diff(np.cumsum([0, 1, 3]))]),
    "indices": lambda x: (x[np.array([0, 2])], x[:, np.array([True, False] * 3).nonzero()[0]], x[np.unravel_index(5, (4, 6))]),
    "best": lambda x: x[np.argmax([1, 3, 2])] + np.array([1.0, 5.0]).max() + np.searchsorted([1, 3, 5], 4),
    "matrices": lambda x: x.T @ torch.from_numpy(np.eye(4, dtype=np.float32)) + torch.from_numpy(np.tile([1.0], (6, 4))),
    "arithmetic": lambda x: x * (np.array([1.0, 2.0]) ** 2 % 3)[1] - np.cumprod([1, 2, 3])[-1],
    "positions": positions,
    "filled": filled,
    "viewed": viewed,
    "decided": decided,
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    fn = PROGRAMS[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for factor in (1, 2):
        torch.testing.assert_close(compiled(X * factor), fn(X * factor))
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_each_call_gives_an_array_of_its_own() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = np.array([[1, 2], [3, 4]])
        return x + 1, np.eye(2), a, a.sum(), a[1].copy(), np.cumsum(a)

    compiled = pycompiler.compile(fn, fullgraph=True)
    for _ in range(2):
        got, want = compiled(X), fn(X)
        for mine, theirs in zip(got[1:], want[1:], strict=True):
            assert type(mine) is type(theirs) and mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
            if isinstance(mine, np.ndarray):
                mine += 7  # the caller's own array
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_arrays_that_exist_are_none_of_these() -> None:
    table = np.arange(4.0)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * np.flip(table)[0] + np.sum(table)

    compiled = pycompiler.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), fn(X))
        table += 1


def test_large_ones_are_the_graphs() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + torch.from_numpy(np.ones((100, 100)))[0, 0], np.arange(5000)[7]

    compiled = pycompiler.compile(fn, fullgraph=True)
    torch.testing.assert_close(compiled(X)[0], fn(X)[0])
    assert compiled(X)[1] == 7


def test_what_numpy_refuses_the_program_handles() -> None:
    def fn(x: torch.Tensor) -> Any:
        try:
            return x + np.array([1, 2])[5]
        except IndexError as error:
            return x - 1, str(error)

    got, want = pycompiler.compile(fn)(X), fn(X)
    assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_numbers_computed_of_data() -> None:
    """Beside a float tensor a NumPy number counts as a Python number. NumPy's sum differs from torch's in the last digit."""

    def fn(x: torch.Tensor) -> Any:
        a = x.numpy()
        return x * a.sum(), a.max() - x, x.half() / a.mean(), x < a[1, 1]

    compiled = pycompiler.compile(fn, fullgraph=True)
    for factor in (1, 3):
        torch.testing.assert_close(compiled(X * factor), fn(X * factor))
    assert pycompiler.counters(compiled)["compiles"] == 1
    for other in (lambda x: torch.arange(3) * x.numpy().sum(), lambda x: x ** x.numpy().mean()):
        torch.testing.assert_close(pycompiler.compile(other)(X + 1), other(X + 1))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_tensors_beside_arrays(backend: str) -> None:
    """NumPy computes the result, with its own promotion. An
    in-place operator then binds the variable to another tensor."""
    mean, scale, matrix = np.arange(6.0), np.arange(6, dtype=np.float32) + 1, np.ones((6, 2))

    def fn(x: torch.Tensor) -> Any:
        y = x
        y += mean
        return (x - mean) / scale, x * scale, x @ matrix, y, (x * np.array([2.0, 3.0] * 3))[0] + 1

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for x in (X, X.half(), torch.arange(6)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's warning about `__array_wrap__`
            want = fn(x.clone())
        for a, b in zip(compiled(x.clone()), want, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b)
    with pytest.raises(RuntimeError, match="requires grad"):
        pycompiler.compile(fn)(X.clone().requires_grad_())
    with pytest.raises(TypeError):
        pycompiler.compile(lambda x: mean * x)(X)
