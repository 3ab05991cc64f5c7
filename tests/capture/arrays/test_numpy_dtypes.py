"""Random NumPy programs whose result depends on dtypes of numbers, on array contents and on array identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls


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


def of_lists(c: Any, s: Any) -> Any:
    both = np.concatenate([c, [s]]), np.vstack([c, [s, s]]), np.column_stack([c, [s, s]]), np.append(c, s)
    return *both, np.array([c, [s, s]]), np.array([c[0], s]), np.array([c[0], 2]), np.array([c.max(), c.max() * 0.5])


def joined(a: Any, b: Any) -> Any:
    return np.dot(a, b), np.outer(a, b), np.kron(a, b), np.diff(a, append=b), np.average(b, weights=a), np.append(a, b)


def added_beyond(c: Any) -> Any:
    try:
        return c + 300
    except OverflowError as e:
        return str(e)


def roots(a: Any) -> Any:
    return a.sum() ** 0.5, a.min() ** -0.5, a**0.5, a**-0.5, np.power(a, 0.5), a**2, a.sum() ** 2


def of_number(a: Any) -> Any:
    s = a.sum()
    b = s[...]
    b[()] = 9
    return s, b, a[0][...]


def zeros(a: Any) -> Any:
    return np.maximum(a, 0), np.maximum(0, a), np.minimum(0.0, a), np.minimum(a, -a), np.maximum(a, -a)


def in_place(a: Any, b: Any) -> Any:
    a += b
    a *= 2
    a **= 2
    a //= 3
    a %= 5
    a[1:] -= b[1:]
    a += a[::2].sum()
    return a


def refused_in_place(a: Any) -> Any:
    try:
        a /= 2
    except TypeError as e:
        return str(e)
    return a


def divided_by_zeros(a: Any, b: Any) -> Any:
    with np.errstate(divide="ignore"):
        a //= b
    return a


def filled(a: Any) -> Any:
    try:
        return np.full_like(a, -1)
    except OverflowError as e:
        return str(e)


def not_summed(a: Any) -> Any:
    try:
        return np.tensordot(a, a, 1)
    except ValueError as e:
        return str(e)


def not_joined(a: Any) -> Any:
    try:
        return np.concatenate([a[0, :0], a])
    except ValueError as e:
        return str(e)


def no_weight(a: Any, w: Any) -> Any:
    try:
        return np.average(a, weights=w)
    except ZeroDivisionError as e:
        return str(e)


def the_very(a: Any) -> Any:
    views = (
        np.ravel(a),
        a.reshape(3),
        a.squeeze(),
        a.T,
        np.real(a),
        np.asarray(a),
        np.atleast_1d(a),
        a[:],
        np.expand_dims(a, 0)[0],
    )
    views[0][0] = 7
    return *(v is a for v in views), *views, a


def no_loop(a: Any, b: Any) -> Any:
    try:
        a &= b
    except TypeError as e:
        return str(e)
    return a


def out_of_range(a: Any, x: torch.Tensor) -> Any:
    try:
        a[[0, 7]] *= 2
    except IndexError as e:
        return str(e), a, x + 1
    return a


def stored_beyond(a: Any, b: Any) -> Any:
    b += 1
    try:
        a[[0, 1]] = b
    except ValueError as e:
        return str(e), b
    return a


def masked_by_another(a: Any) -> Any:
    try:
        a[np.array([True, False, True])] = 1
    except IndexError as e:
        return str(e)
    return a


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], int]] = {
    "compared with a tensor": (compared, lambda: (torch.arange(3),), 0),
    "in place by name": (added_in_place, lambda: (torch.ones(3),), 1),
    "integers beyond the dtype": (beyond, lambda: (np.array([7, 250], np.uint8),), 1),
    "where of int8 and int64": (weak, lambda: (np.array([1, 2], np.int8), np.int64(500)), 0),
    "where of float32 and float64": (weak, lambda: (np.array([1, 2], np.float32), np.float64(0.5)), 0),
    "where of one dtype": (weak, lambda: (np.array([1, 2]), np.int64(5)), 0),
    "square": (squared, lambda: (np.array([2**40 + 1, 3]),), 0),
    "stored, too large": (stored, lambda: (np.array([3, 2], np.int8), np.int64(300)), 1),
    "stored": (stored, lambda: (np.array([3, 2], np.int8), np.int64(30)), 1),
    "truths": (decided, lambda: (torch.ones(2), np.array([True, False])), 1),
    "conj": (conjugated, lambda: (np.arange(4),), 0),
    "a list of float32": (listed, lambda: (torch.ones(2),), 0),
    "clip": (clipped, lambda: (np.array([3, -2], np.int8),), 0),
    "clip beyond": (lambda c: np.clip(c, 0, 200), lambda: (np.array([3, -2], np.int16),), 0),
    "clip to floats": (
        lambda c, s: (np.clip(c, s, 2.5), c.clip(0, s)),
        lambda: (np.array([3, -2]), np.float32(0.5)),
        0,
    ),
    "lists of arrays and numbers": (of_lists, lambda: (np.array([7, 250], np.uint8), np.float32(0.5)), 0),
    "lists of truths": (of_lists, lambda: (np.array([True, False]), np.int8(3)), 0),
    "where of Python's numbers": (
        lambda c: (np.where(c > 1, c, 2), np.where(c > 1, 1, 0.5)),
        lambda: (np.array([1, 2], np.int8),),
        0,
    ),
    "a row of float32": (
        lambda a: (np.linspace(a[0], a[1], 3), np.linspace(0, a[1], 5)),
        lambda: (np.array([1, 2.5], np.float32),),
        0,
    ),
    "a row to infinity": (
        lambda a: [np.linspace(v, w, n, e) for v in a for w in a for n in (1, 2, 5) for e in (True, False)],
        lambda: (np.array([np.nan, np.inf, -np.inf, 2.0]),),
        0,
    ),
    "joined": (joined, lambda: (np.array([1, -2], np.int8), np.array([0.5, 2], np.float32)), 0),
    "integers beyond the dtype, by name": (lambda c: np.less(c, 300), lambda: (np.array([7, 250], np.uint8),), 1),
    "added beyond the dtype": (added_beyond, lambda: (np.array([7, 250], np.uint8),), 1),
    "mask of nothing": (lambda a: a[a == a], lambda: (np.zeros((0, 2)),), 1),
    "what no tensor is made of": (
        lambda a, t: (a == a, a != a, t + 1),
        lambda: (np.array(["a", "b"]), torch.ones(2)),
        1,
    ),
    "roots of infinity": (roots, lambda: (np.array([-np.inf, -0.0, 4.0]),), 0),
    "roots of infinity, single": (roots, lambda: (np.array([-np.inf, -0.0, 4.0], np.float32),), 0),
    "a root of a number": (lambda a: (a**0.5, a**-0.5), lambda: (np.float64("-inf"),), 0),
    "rounded halves": (lambda a: np.round(a, 1), lambda: (np.array([1, 65504], np.float16),), 1),
    "spread of halves": (lambda a: a.std(), lambda: (np.array([1, 2, 65504], np.float16),), 1),
    "an array of a number": (of_number, lambda: (np.ones(3),), 0),
    "zeros of either sign": (zeros, lambda: (np.array([-0.0, 0.0, np.nan, 1], np.float32),), 0),
    "zeros of either sign, double": (zeros, lambda: (np.array([-0.0, 0.0, np.nan, 1]),), 0),
    "zeros of either sign, half": (zeros, lambda: (np.array([-0.0, 0.0, np.nan, 1], np.float16),), 0),
    "powers of truths": (
        lambda t: (np.array([True]) ** 2, np.bool_(True) ** 2, np.power(np.array([True]), 2), t),
        lambda: (torch.ones(1),),
        0,
    ),
    "in place, of integers": (in_place, lambda: (np.array([1, -2, 3], np.int32), np.array([4, 5, 6])), 0),
    "in place, of floats": (in_place, lambda: (np.array([1, -2, 3], np.float32), np.array([4, 5, 6])), 0),
    "in place, refused": (refused_in_place, lambda: (np.array([1, -2, 3]),), 1),
    "in place, by zeros": (divided_by_zeros, lambda: (np.array([1, -2, 3]), np.array([1, 0, 2])), 1),
    "a list of places": (out_of_range, lambda: (np.arange(3), torch.ones(1)), 1),
    "stored into fewer places": (stored_beyond, lambda: (np.arange(3), np.arange(3)), 1),
    "stored into as many places": (stored_beyond, lambda: (np.arange(3), np.arange(2)), 0),
    "a mask of another shape": (masked_by_another, lambda: (np.zeros((2, 1)),), 1),
    "weights of another dtype": (
        lambda a, w: np.average(a, weights=[w, w]),
        lambda: (np.array([7, 250], np.uint8), np.float32(0.5)),
        0,
    ),
    "weights without a sum": (no_weight, lambda: (np.array([7.0, 2]), np.array([1, -1])), 0),
    "the very array": (the_very, lambda: (np.arange(3.0),), 0),
    "parts of numbers": (lambda a: (np.nan_to_num(a), np.real(a), np.squeeze(a), a.T), lambda: (np.float32(3),), 0),
    "nothing beside more dimensions": (not_joined, lambda: (np.ones((2, 3)),), 1),
    "sums over other sizes": (not_summed, lambda: (np.ones((1, 3)),), 1),
    "sums": (lambda a: (np.tensordot(a, a), np.tensordot(a, a, ([0], [0]))), lambda: (np.ones((1, 3)),), 0),
    "dot of more dimensions": (lambda a: np.dot(a, a), lambda: (np.arange(8.0).reshape(2, 2, 2),), 1),
    "filled beyond the dtype": (filled, lambda: (np.array([7, 250], np.uint8),), 1),
    "filled": (
        lambda a: (np.full_like(a, 2.5), np.full(3, 2, dtype=np.int8), np.full((2,), a[0])),
        lambda: (np.zeros(2, np.uint8),),
        0,
    ),
    "a tensor and truths": (
        lambda x, a: (x * np.logical_not(a), x + a),
        lambda: (torch.tensor([True, False]), np.array([0.0, 1])),
        0,
    ),
    "a tensor compared with a truth": (
        lambda x: (x == np.less(2, 0.5), x != np.bool_(True)),
        lambda: (torch.ones(2),),
        1,
    ),
    "complex powers": (lambda a, b: a**b, lambda: (np.array([np.nan, np.inf]), np.zeros(2, np.complex128)), 1),
    "operators of no loop": (no_loop, lambda: (np.array([1, 2]), np.array([0.5, 2])), 1),
    "no imaginary part": (lambda a: (a.imag, a.real is a), lambda: (np.arange(3.0),), 0),
    "no imaginary part to write": (
        lambda a: (a.imag.flags.writeable, np.imag(a)[1:] + 1),
        lambda: (np.arange(3.0),),
        1,
    ),
    "an imaginary part": (lambda a: (a.imag, a[0].imag), lambda: (np.array([1 + 2j, 3]),), 0),
    "a truth is a float to torch": (lambda t: (torch.full((2,), np.bool_(True)), t + 1), lambda: (torch.ones(2),), 1),
}


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("name", CASES)
def test_dtypes_and_values_are_numpys(name: str, backend: str) -> None:
    fn, make, breaks = CASES[name]
    compiled = pycompiler.compile(fn, backend=backend)
    assert_same_calls(compiled, fn, make, exact=True)
    assert bool(pycompiler.explain(fn)(*make()).graph_break_count) == bool(breaks)


def test_masks_do_not_fit_sizes_that_change() -> None:
    def program(a: Any, b: Any) -> Any:
        a[np.array([True, False, True])] = b
        return a

    compiled = pycompiler.compile(program, backend="eager")
    for n in (3, 2, 3, 4):
        assert_same_calls(compiled, program, lambda n=n: (np.zeros((n, 2)), 5), calls=1, exact=True)
