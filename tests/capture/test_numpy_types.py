"""Where dtypes of NumPy's numbers, what an array holds and which array it is count: found by random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler


def compared(t: torch.Tensor) -> Any:
    return t + 1, t == np.int64(5), np.int64(1) == t, t != np.int8(2), t == np.float16(1)


def added_in_place(x: torch.Tensor) -> Any:
    a = np.array([3, 4])
    b = a.__iadd__(1)
    return a, b, a.sum() + 1, x * a.sum()


def beyond(c: Any) -> Any:
    return c > -1, c > 300, c == 300, c < 300, -1 < c


def weak(c: Any, s: Any) -> Any:
    return np.where(c > 1, c, s), np.clip(c, s, s)


def squared(a: Any) -> Any:
    return np.square(a)


def stored(c: Any, b: Any) -> Any:
    try:
        c[0] = b
    except OverflowError:
        return "too large"
    return c


def decided(x: torch.Tensor, a: Any) -> Any:
    return (x + 1 if a[0] else x), not a[1]


def conjugated(a: Any) -> Any:
    b = a.conj()
    b[0] = 7
    return b is a, a


def listed(x: torch.Tensor) -> Any:
    return np.array([x.numpy().mean(), x.numpy().max()])


def clipped(a: Any) -> Any:
    return np.clip(a[0], 0, 1), np.clip(a, 0, 1)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], int]] = {
    "compared with a tensor": (compared, lambda: (torch.arange(3),), 0),
    "in place by name": (added_in_place, lambda: (torch.ones(3),), 1),
    "integers beyond the dtype": (beyond, lambda: (np.array([7, 250], np.uint8),), 1),
    "where of int8 and int64": (weak, lambda: (np.array([1, 2], np.int8), np.int64(500)), 1),
    "where of float32 and float64": (weak, lambda: (np.array([1, 2], np.float32), np.float64(0.5)), 1),
    "where of one dtype": (weak, lambda: (np.array([1, 2]), np.int64(5)), 0),
    "square": (squared, lambda: (np.array([2**40 + 1, 3]),), 0),
    "stored, too large": (stored, lambda: (np.array([3, 2], np.int8), np.int64(300)), 1),
    "stored": (stored, lambda: (np.array([3, 2], np.int8), np.int64(30)), 1),
    "truths": (decided, lambda: (torch.ones(2), np.array([True, False])), 1),
    "conj": (conjugated, lambda: (np.arange(4),), 0),
    "a list of float32": (listed, lambda: (torch.ones(2),), 1),
    "clip": (clipped, lambda: (np.array([3, -2], np.int8),), 1),
}


def told(result: Any) -> list[Any]:
    items = result if isinstance(result, tuple) else (result,)
    return [(type(v), getattr(v, "dtype", None), str(v)) for v in items]


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("name", CASES)
def test_dtypes_and_values_are_numpys(name: str, backend: str) -> None:
    fn, make, breaks = CASES[name]
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        assert told(compiled(*make())) == told(fn(*make()))
    assert bool(pycompiler.explain(fn)(*make()).graph_break_count) == bool(breaks)
