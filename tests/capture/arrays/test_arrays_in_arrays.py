"""NumPy in captured programs: arrays inside arrays of other dtypes, rows, numbers, and changing sizes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from pycompiler import config
from tests.harness.compare import assert_same, assert_same_calls

DTYPES = ("bool", "int32", "int64", "float32", "float64", "complex128")


def _add(x: Any, y: Any) -> Any:
    x += y
    return x


def _subtract(x: Any, y: Any) -> Any:
    x -= y
    return x


def _multiply(x: Any, y: Any) -> Any:
    x *= y
    return x


def _divide(x: Any, y: Any) -> Any:
    x /= y
    return x


@pytest.mark.parametrize("program", [_add, _subtract, _multiply, _divide])
def test_an_array_of_another_dtype_is_taken_in(program: Any) -> None:
    for left in DTYPES:
        for right in DTYPES:
            compiled = pycompiler.compile(program, backend="eager")
            x, y = np.array([1, 0, 3]).astype(left), np.array([1, 1, 2]).astype(right)
            mine, error = x.copy(), None
            try:
                want = program(x, y)
            except TypeError as e:
                error = type(e)
            if error is not None:
                with pytest.raises(error):
                    compiled(mine, y)
                continue
            got = compiled(mine, y)
            assert got is mine
            assert_same(got, want, exact=True)


def test_a_mask_is_added_in_one_graph() -> None:
    def program(n: int) -> Any:
        mask = np.zeros(4)
        for i in range(n):
            mask += np.ones(4) * i <= 1
        return mask

    assert_same(pycompiler.compile(program, backend="eager", fullgraph=True)(3), program(3), exact=True)


def test_rows_of_an_array_with_a_stride_of_zero() -> None:
    def program(x: Any) -> Any:
        return [row * 2 for row in x]

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for n in (3, 3, 4):
        x = np.arange(n)[:, None]
        assert 0 in x.strides
        assert_same(compiled(x), program(x), exact=True)
    spread = np.lib.stride_tricks.as_strided(np.arange(3.0), (2, 3), (0, 8), writeable=True)  # elements share memory
    assert pycompiler.explain(lambda x: x * 2)(spread).graph_count == 0


def test_tolist_is_captured_where_numbers_are() -> None:
    def program(x: Any) -> Any:
        return x.tolist(), x + 1

    x = np.arange(4).reshape(2, 2)
    with config.patch(capture_scalar_outputs=True):
        got = pycompiler.compile(program, backend="eager", fullgraph=True)(x)
    assert got[0] == [[0, 1], [2, 3]] and all(type(n) is int for row in got[0] for n in row)
    broken = pycompiler.compile(program, backend="eager")(x)
    assert broken[0] == got[0]
    assert_same(broken[1], x + 1, exact=True)


def test_sizes_that_change_stay_symbols() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        made = np.stack([np.ones([2, n]), np.zeros((2, n)), np.full((2, n), 7)])
        return torch.from_numpy(made.reshape(6, n)) + torch.tensor(np.ones(n)) + x

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for n in (3, 4, 5, 6, 7):
        x = torch.arange(float(n))
        assert torch.equal(compiled(x, n), program(x, n))
    assert compiled.counters()["compiles"] <= 3


# cases from NumPy's own tests -----------------------------------------------------------------------------------------
def other_dtypes(x: Any) -> Any:
    return (
        np.array(x, dtype=np.longlong) + 1, np.zeros(3, dtype="longlong"), x.astype("q"), x.astype("H").sum(), np.longlong(x.sum()),
        np.zeros(3, dtype=np.dtype(">i4")), np.asarray(np.longlong(2)), np.ones(2, "L"), np.sum(x, dtype="q"),
    )  # fmt: skip


def test_dtypes_that_equal_others() -> None:
    x = np.arange(3)
    compiled = pycompiler.compile(other_dtypes)
    for _ in range(2):
        for ours, theirs in zip(compiled(x), other_dtypes(x), strict=True):
            assert (type(ours), ours.dtype.char, ours.dtype.byteorder) == (
                type(theirs),
                theirs.dtype.char,
                theirs.dtype.byteorder,
            )
            assert np.array_equal(ours, theirs)


def test_arrays_of_dtypes_that_equal_others() -> None:
    compiled = pycompiler.compile(lambda x: x + 1)
    for given in (np.arange(3), np.arange(3, dtype="q"), np.arange(3, dtype=">i8"), np.longlong(3)):
        assert compiled(given).dtype.char == (given + 1).dtype.char


@pytest.mark.parametrize(
    "fn",
    (
        lambda x: x[..., ...],
        lambda x: x.copy().__setitem__((..., 0, ...), 1),
        lambda x: np.squeeze(x[None], axis=1),
        lambda x: x[None].squeeze(axis=(0, 1)),
        lambda x: np.squeeze(x[None], 0),
        lambda x: x[None, :, None].squeeze((0, -1)),
        lambda x: np.arange(6, 8, dtype="bool"),
        lambda x: np.arange(0, 2, 1, np.bool_),
    ),
)
def test_what_numpy_refuses(fn: Any) -> None:
    assert_same_calls(pycompiler.compile(fn), fn, lambda: (np.arange(3.0),), exact=True)


@pytest.mark.parametrize(
    "fn",
    (
        lambda: np.int8(127) + np.int8(1),
        lambda: -np.int8(-128),
        lambda: np.float64(1) / np.float64(0),
        lambda: np.log(np.float64(-1)),
        lambda: np.divide(1, 0.0),
    ),
)
def test_warnings_about_constants_come_in_each_call(fn: Any) -> None:
    compiled = pycompiler.compile(fn)
    for _ in range(3):
        seen = []
        for call in (compiled, fn):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                call()
            seen.append([str(w.message) for w in found])
        assert seen[0] == seen[1]


def to_what_is_given(x: Any) -> Any:
    made, sums = np.zeros(3), np.array(1.0)
    return (
        x.round(0, out=made) is made,
        np.add(x, x, made) is made,
        np.outer(x, x).trace(0, 0, 1, None, sums) is sums,
        made,
        sums,
    )


def in_its_memory(x: Any) -> Any:
    x = x * 1
    made = np.array(x, copy=False), x.astype(x.dtype, copy=False), np.array(x)
    x[0] = 9
    return made


def in_order(x: Any) -> Any:
    y = np.outer(x, x + 1).T
    made = y.copy(), y.copy("F"), y.copy("C"), np.copy(y), y.astype("f"), x[None].T.copy(), np.array(y, order="C")
    return [m.strides for m in made], made, y.ravel("F")


def by_numbers(x: Any) -> Any:
    return x[slice(np.int64(0), np.int64(2))], x[np.int64(1) : np.int64(3)], x[np.int8(1)], x[None, np.int64(-1), ...]


def sorted_in_order(x: Any) -> Any:
    y = (np.arange(600) * 7919 % 10).astype(x.dtype)
    return np.argsort(y, kind="mergesort"), y.argsort(kind="stable"), np.sort(y, kind="mergesort")


@pytest.mark.parametrize("fn", (to_what_is_given, in_its_memory, in_order, by_numbers, sorted_in_order))
def test_where_results_lie(fn: Any) -> None:
    compiled = pycompiler.compile(fn)
    assert_same_calls(compiled, fn, lambda: (np.arange(3.0),), exact=True)


def test_truths_are_one_object_each() -> None:
    def program(x: Any) -> Any:
        return (x > 1)[0] is np.False_, np.array([True])[0] is np.array([True])[0], (x > 1).any() is np.True_

    assert pycompiler.compile(program)(np.arange(3.0)) == program(np.arange(3.0))


@pytest.mark.parametrize(
    "keyed",
    [
        lambda a: {1: 1, a: 2}.get(0),
        lambda a: {a},
        lambda a: hash(a),
        lambda a: a in {1: 2},
        lambda a: {a.sum(): 1}[a.sum()],
        lambda a: {a[0], a[0]},
        lambda a: {(1, a)},
    ],
)
def test_arrays_are_no_keys_and_their_numbers_are(keyed: Any) -> None:
    """An array is no dict key by its identity, and a NumPy number is a key by its value."""

    def program(x: torch.Tensor) -> Any:
        try:
            return keyed(x.numpy()), x + 1
        except TypeError as e:
            return str(e), x + 1

    x = torch.arange(3.0)
    assert repr(pycompiler.compile(program, backend="eager")(x)) == repr(program(x))
