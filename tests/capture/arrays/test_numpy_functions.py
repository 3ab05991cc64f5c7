"""NumPy functions that graphs compute by `operators/numpy_functions.py`, and NumPy functions that break the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same, observe

BACKENDS = ("eager", "native")
FLOATS: dict[str, Callable[[Any], Any]] = {
    "pad": lambda a: np.pad(a, 1),
    "pad each": lambda a: np.pad(a, ((1, 0), (0, 2)), constant_values=3),
    "pad a pair": lambda a: np.pad(a, (1, 2)),
    "cov": lambda a: (np.cov(a), np.cov(a, rowvar=False, ddof=0), np.cov(a[:1])),
    "corrcoef": lambda a: np.corrcoef(a),
    "average": lambda a: (np.average(a, axis=0, weights=[1, 2, 3]), np.average(a[:, 0], weights=(1.0, 2.0, 0.5))),
    "average, returned": lambda a: np.average(a, 0, [1, 2, 3], True),
    "outer": lambda a: np.outer(a, a),
    "matrix_power": lambda a: [np.linalg.matrix_power(a[:3, :3], n) for n in range(2, 7)],
    "nansum": lambda a: (np.nansum(np.where(a > 0, np.nan, a), axis=0), np.nansum(a), np.nansum(a, axis=1, keepdims=True)),
    "trapezoid": lambda a: (np.trapezoid(a, axis=0), np.trapezoid(a, dx=0.5), np.trapezoid(a[0])),
    "transposed": lambda a: (np.matrix_transpose(a), a.mT, a.mT is a),
    "reduce": lambda a: (np.add.reduce(a), np.multiply.reduce(a, axis=1), np.maximum.reduce(a, 1), np.minimum.reduce(a, axis=None)),
    "reduce truths": lambda a: (np.logical_or.reduce(a > 0, axis=1), np.logical_and.reduce(a > 0), np.add.reduce(a > 0)),
    "accumulate": lambda a: (np.add.accumulate(a), np.multiply.accumulate(a, axis=1), np.add.accumulate(a[0])),
    "sign": lambda a: (np.sign(a), np.sign(np.where(a > 0, np.nan, a)), np.sign(a[0, 0]), np.sign(a - a), np.sign(-a * 0)),
    "reciprocal": lambda a: (np.reciprocal(a), np.reciprocal(a[0, 0])),
    "heaviside": lambda a: (np.heaviside(a, 0.5), np.heaviside(np.where(a > 1, np.nan, a - a), a)),
    "median": lambda a: (np.median(a), np.median(a, axis=0), np.median(a, 1, keepdims=True), np.median(np.where(a > 3, np.nan, a), 0)),
    "quantile": lambda a: (np.quantile(a, 0.3), np.quantile(a, 0.8, axis=1), np.quantile(a, 1.0, 0), np.quantile(a, 0.5, keepdims=True)),
    "percentile": lambda a: (np.percentile(a, 25), np.percentile(a, 60.5, axis=1, keepdims=True), np.percentile(a[0], 0)),
    "gradient": lambda a: (np.gradient(a[0]), np.gradient(a, axis=0), np.gradient(a, 0.5, axis=-1), np.gradient(a[:2, 0])),
    "vander": lambda a: (np.vander(a[0]), np.vander(a[0], 3), np.vander(a[:, 0], increasing=True), np.vander(a[0], N=1)),
    "diag": lambda a: (np.diag(a[0]), np.diag(a[:, 0], 1), np.diag(a[0], k=-2)),
}  # fmt: skip


def filled(a: Any) -> Any:
    made, wide, alike = np.empty((2, a.shape[0])), np.empty(a.shape[1], dtype=np.float32), np.empty_like(a)
    made[0], made[1], wide[...], alike[:] = a[:, 0], np.sign(a[:, 1]), a[0], a * 2
    return made, wide, alike, np.empty_like(a, dtype=int) * 0


FLOATS |= {
    "empty": filled,
    "ascontiguousarray": lambda a: (np.ascontiguousarray(a), np.ascontiguousarray(a.T), np.ascontiguousarray(a[:, 1:])),
}
BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pad by the edge": (lambda a: np.pad(a, 1, mode="edge"), "numpy.pad with these arguments"),
    "where": (lambda a: np.where(a > 0), "numpy.nonzero"),
    "no power": (lambda a: np.linalg.matrix_power(a[:3, :3], 0), "numpy.linalg.matrix_power with these arguments"),
    "flip": (lambda a: np.flip(a, 0), "numpy.flip"),
    "diagonal": (lambda a: np.diag(a), "numpy.diag with these arguments"),
    "several places": (lambda a: np.quantile(a, [0.1, 0.5]), "numpy.quantile with these arguments"),
    "reduced to a dtype": (lambda a: np.add.reduce(a, dtype=np.float32), "ufunc.reduce"),
    "outer of a ufunc": (lambda a: np.subtract.outer(a[0], a[1]), "ufunc.outer"),
}


def lying(value: Any) -> Any:
    """The strides of arrays in dimensions longer than one: NumPy gives the others no meaning."""
    if isinstance(value, (tuple, list)):
        return [lying(v) for v in value]
    if isinstance(value, np.ndarray):
        return [s for s, n in zip(value.strides, value.shape, strict=True) if n > 1]
    return None


def agree(got: Any, want: Any) -> None:
    assert lying(got) == lying(want)
    assert_same(got, want, strides=False, tolerance=1e-5, absolute=1e-6)


def example(rows: int, columns: int, order: str, dtype: Any) -> Any:
    made = np.random.default_rng(3).normal(size=(rows, columns)) * 3
    return np.array(made, dtype=dtype, order=order)  # type: ignore[call-overload]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FLOATS)
def test_values_dtypes_and_layouts_are_numpys(name: str, backend: str, order: str) -> None:
    fn = FLOATS[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph="average" not in name or order == "C")
    for columns in (4, 6, 5):
        agree(compiled(example(3, columns, order, np.float64)), fn(example(3, columns, order, np.float64)))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.bool_, np.complex128])
@pytest.mark.parametrize("name", FLOATS)
def test_other_dtypes_are_numpys(name: str, dtype: Any) -> None:
    compiled = pycompiler.compile(FLOATS[name], backend="eager")
    want, got = (observe(fn, (example(3, 4, "C", dtype),)) for fn in (FLOATS[name], compiled))
    assert_same(got.error, want.error)
    agree(got.result, want.result)


def test_an_array_in_order_is_itself() -> None:
    compiled = pycompiler.compile(lambda a: (np.ascontiguousarray(a) is a, a * 2), backend="eager", fullgraph=True)
    assert [compiled(example(3, 4, order, np.float64))[0] for order in "CF"] == [True, False]


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_says_why(name: str) -> None:
    fn, reason = BROKEN[name]
    made = example(3, 4, "C", np.float64)
    report = pycompiler.explain(fn)(made)
    assert reason in report.break_reasons[0].reason
    assert repr(pycompiler.compile(fn, backend="eager")(made)) == repr(fn(made))


@pytest.mark.parametrize(
    "name",
    [
        "pad",
        "pad each",
        "cov",
        "corrcoef",
        "average",
        "outer",
        "nansum",
        "trapezoid",
        "reduce",
        "reciprocal",
        "quantile",
        "gradient",
        "vander",
        "diag",
    ],
)
def test_gradients_are_those_of_differences(name: str) -> None:
    compiled = pycompiler.compile(pycompiler.wrap_numpy(FLOATS[name]), backend="eager", fullgraph=True)

    def results(x: torch.Tensor) -> Any:
        made = compiled(x)
        return tuple(made) if isinstance(made, (tuple, list)) else made

    x = torch.from_numpy(example(3, 4, "C", np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(results, (x,))
