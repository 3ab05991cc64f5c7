"""The prelude's functions: error in ulp against float64, edge cases as torch's, conversions bit for bit."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
import torch

from pycompiler.runtime.build import build

# name -> (torch function, largest error in ulp, range of arguments)
FLOAT: dict[str, tuple[object, float, float, float]] = {
    "exp": (torch.exp, 1.0, -87.3, 88.7), "exp2": (torch.exp2, 1.5, -125.9, 127.9), "expm1": (torch.expm1, 2.0, -30, 88),
    "log": (torch.log, 1.0, 1e-38, 1e38), "log2": (torch.log2, 2.0, 1e-38, 1e38), "log10": (torch.log10, 2.0, 1e-38, 1e38),
    "log1p": (torch.log1p, 2.0, -0.999, 1e4), "erf": (torch.erf, 2.0, -5, 5), "tanh": (torch.tanh, 1.5, -12, 12),
    "sigmoid": (torch.sigmoid, 2.5, -80, 80), "sin": (torch.sin, 1.5, -1e4, 1e4), "cos": (torch.cos, 1.5, -1e4, 1e4),
    "sin_near": (torch.sin, 1.5, -1e4, 1e4), "cos_near": (torch.cos, 1.5, -1e4, 1e4),
    "one_plus_erf": (lambda x: 1 + torch.erf(x), 3.0, -0.5, 5),
    "sqrt": (torch.sqrt, 0.6, 0, 1e30), "rsqrt": (torch.rsqrt, 1.6, 1e-30, 1e30), "erfinv": (torch.erfinv, 1.0, -0.999, 0.999),
    "digamma": (torch.digamma, 2.0, 1.6, 50), "erfc": (torch.erfc, 0.6, -3, 5), "lgamma": (torch.lgamma, 0.6, 0.1, 50), "tan": (torch.tan, 2.0, -100, 100),
}  # fmt: skip
DOUBLE = {
    "exp": (torch.exp, 2.0, -700, 700), "log": (torch.log, 1.5, 1e-300, 1e300), "sigmoid": (torch.sigmoid, 3.0, -600, 600),
    "tanh": (torch.tanh, 1.5, -30, 30),
}  # fmt: skip
NARROW = {"log": (0.5, 2.0), "log1p": (-0.5, 0.5), "expm1": (-1, 1), "erf": (-1.2, 1.2), "tanh": (-0.7, 0.7),
          "log2": (0.6, 1.5), "exp": (-1, 1), "sin": (-1, 1)}  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL:
    parts = ['#include "pyc_prelude.h"']
    for table, t, suffix in ((FLOAT, "float", ""), (DOUBLE, "double", "_d")):
        for name in table:
            parts.append(f'extern "C" PYC_EXPORT void t_{name}{suffix}({t}* o, const {t}* x, int64_t n) {{\n'
                         f"#pragma omp simd\nfor (int64_t i = 0; i < n; i++) o[i] = pyc_{name}(x[i]); }}")  # fmt: skip
    for name, body in {
        "pow": "((float*)o)[i] = pyc_pow(((float*)a)[i], ((float*)b)[i])",
        "max": "((float*)o)[i] = pyc_max(((float*)a)[i], ((float*)b)[i])",
        "min": "((float*)o)[i] = pyc_min(((float*)a)[i], ((float*)b)[i])",
        "mod": "((float*)o)[i] = pyc_mod(((float*)a)[i], ((float*)b)[i])",
        "floordiv": "((float*)o)[i] = pyc_floordiv(((float*)a)[i], ((float*)b)[i])",
        "to_bf16": "((bf16*)o)[i] = pyc_to_bf16(((float*)a)[i])",
        "to_f16": "((f16*)o)[i] = pyc_to_f16(((float*)a)[i])",
        "from_bf16": "((float*)o)[i] = pyc_from_bf16(((bf16*)a)[i])",
        "from_f16": "((float*)o)[i] = pyc_from_f16(((f16*)a)[i])",
    }.items():
        parts.append(f'extern "C" PYC_EXPORT void u_{name}(void* o, const void* a, const void* b, int64_t n) {{\n'
                     f"#pragma omp simd\nfor (int64_t i = 0; i < n; i++) {body}; }}")  # fmt: skip
    return ctypes.CDLL(build("\n".join(parts)).path)


def call(name: str, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    suffix = "_d" if x.dtype == torch.float64 else ""
    library()[f"t_{name}{suffix}"](*(ctypes.c_void_p(t.data_ptr()) for t in (out, x)), ctypes.c_int64(x.numel()))
    return out


def call2(
    name: str, a: torch.Tensor, b: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    out, b = torch.empty(a.shape, dtype=dtype), a if b is None else b
    library()[f"u_{name}"](*(ctypes.c_void_p(t.data_ptr()) for t in (out, a, b)), ctypes.c_int64(a.numel()))
    return out


def arguments(low: float, high: float) -> torch.Tensor:
    """Evenly spread values; if the range spans decades, evenly spread exponents."""
    even = torch.linspace(low, high, 100_000, dtype=torch.float64)
    if low > 0 and high / low > 1e6:
        even = torch.cat([even, torch.logspace(np.log10(low), np.log10(high), 100_000, dtype=torch.float64)])
    return even


def ulps(got: torch.Tensor, exact: np.ndarray) -> float:
    spacing = np.spacing(np.abs(exact).astype(got.numpy().dtype)).astype(exact.dtype)
    return float(np.max(np.abs(got.numpy().astype(exact.dtype) - exact) / spacing))


@pytest.mark.parametrize("name", FLOAT)
def test_float_error(name: str) -> None:
    reference, limit, low, high = FLOAT[name]
    for lo, hi in {(low, high), NARROW.get(name, (low, high))}:
        x = arguments(lo, hi).float()
        assert ulps(call(name, x), reference(x.double()).numpy()) <= limit  # type: ignore[operator]


@pytest.mark.parametrize("name", DOUBLE)
def test_double_error(name: str) -> None:
    _, limit, low, high = DOUBLE[name]
    x = arguments(low, high)
    wide = x.numpy().astype(np.longdouble)
    exact = {"exp": np.exp, "log": np.log, "sigmoid": lambda v: 1 / (1 + np.exp(-v)), "tanh": np.tanh}[name](wide)
    assert ulps(call(name, x), exact) <= limit


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-3, 1e-20, 1e-40, -1e-40, 3e38, -3e38, 88.8, -88.0, 200.0,
                        -200.0, 127.99, 128.0, -126.5, 1e10, 3e20, float("inf"), -float("inf"), float("nan")])  # fmt: skip


# right for the arguments that generated code passes; 1 + erf as an absolute error, as eager's sum is
PARTIAL = ("sin_near", "cos_near", "one_plus_erf")


@pytest.mark.parametrize("name", [n for n in FLOAT if n not in PARTIAL])
def test_special_values(name: str) -> None:
    got, want = call(name, SPECIAL), FLOAT[name][0](SPECIAL.double()).float()  # type: ignore[operator]
    want = torch.where(want.abs() < 2.0**-126, 0.0 if name in ("exp", "exp2", "sigmoid") else want, want)
    torch.testing.assert_close(
        got, want, rtol=1e-6, atol=1e-37 if name in ("exp", "exp2", "sigmoid") else 0, equal_nan=True
    )


def test_exp_gives_no_denormals() -> None:
    x = torch.linspace(-104, -87, 10_000)
    out = call("exp", x)
    assert bool(((out == 0) | (out >= 2.0**-126)).all())
    assert bool((out[x > -87.3] > 0).all())


def test_large_angles() -> None:
    x = torch.tensor(np.float32(10.0) ** np.linspace(4, 38, 5000, dtype=np.float32))
    for name in ("sin", "cos"):
        torch.testing.assert_close(call(name, x), FLOAT[name][0](x.double()).float(), rtol=1e-6, atol=1e-7)  # type: ignore[operator]


def test_pow() -> None:
    a = torch.cat([torch.rand(20_000) * 10, torch.randn(20_000) * 5])
    b = torch.cat([torch.randn(20_000) * 4, torch.randint(-5, 6, (20_000,)).float()])
    assert ulps(call2("pow", a, b), torch.pow(a.double(), b.double()).numpy()) <= 1.0
    a, b = (t.contiguous().view(-1) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    want = torch.pow(a.double(), b.double()).float()
    torch.testing.assert_close(call2("pow", a, b), want, rtol=1e-6, atol=2e-38, equal_nan=True)


@pytest.mark.parametrize(("name", "reference"), [
    ("max", torch.maximum), ("min", torch.minimum), ("mod", torch.remainder), ("floordiv", torch.floor_divide)])  # fmt: skip
def test_binary(name: str, reference: object) -> None:
    # ATen's remainder is itself only accurate if the quotient is neither huge nor tiny
    usual = (
        SPECIAL
        if name in ("max", "min")
        else SPECIAL[(SPECIAL.abs() < 1e3) & ((SPECIAL.abs() > 1e-4) | (SPECIAL == 0))]
    )
    a, b = (t.contiguous().view(-1) for t in torch.meshgrid(usual, usual, indexing="ij"))
    torch.testing.assert_close(call2(name, a, b), reference(a, b), rtol=0, atol=1e-6, equal_nan=True)  # type: ignore[operator]


def all_floats(step: int) -> torch.Tensor:
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    return torch.from_numpy(bits.view(np.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_conversions(dtype: torch.dtype) -> None:
    name = "bf16" if dtype == torch.bfloat16 else "f16"
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    assert torch.equal(call2(f"from_{name}", every).nan_to_num(7), every.float().nan_to_num(7))
    x = all_floats(3989)
    got, want = call2(f"to_{name}", x, dtype=dtype), x.to(dtype)
    assert torch.equal(got.float().nan_to_num(7), want.float().nan_to_num(7))
    assert torch.equal(got[~x.isnan()].view(torch.int16), want[~x.isnan()].view(torch.int16))
