"""Bugs of C++ compilers that our flags avoid. Programs that may crash run in another process."""

from __future__ import annotations

import ctypes
import math
import operator
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.runtime.build import build
from pycompiler.runtime.toolchain import X86, flags_for
from tests.fuzz import exact
from tests.harness.built_plans import BuiltPlans
from tests.harness.compare import assert_same_calls

CRASHED = """
import torch, pycompiler
def f(x):
    t = torch.cat([x, x], 1)
    return t.sum(-2), torch.nn.functional.softmin(t, 1)
x = torch.randn(2, 2, 7, dtype=torch.float64)
compiled = pycompiler.compile(f)
for one, other in zip(compiled(x), f(x)):
    torch.testing.assert_close(one, other)
print("ran")
"""


def test_what_lies_on_the_stack_is_aligned() -> None:
    """Bug of gcc 12: stores of 16 bytes to 8-aligned arrays of a short loop's reductions."""
    done = subprocess.run([sys.executable, "-c", CRASHED], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr[-2000:]


def test_parts_of_teams_are_called() -> None:
    """Bug of gcc 12: the part that compares was taken for a function without effects, and its call was removed."""

    def f(
        x0: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, x3: torch.Tensor, y: torch.Tensor
    ) -> list[torch.Tensor]:
        return [x1.int(), (x2 - x0).flip(0) - x2 == x3, y.abs() / y.abs().amax(-1, keepdim=True), y * 3]

    numbers = [torch.randn(*shape, dtype=torch.float64) for shape in ((16, 16), (16, 1), (16, 1), (16, 16))]
    y = torch.randn(1, 17)
    with exact.machine(2, **exact.TEAM):
        compiled = pycompiler.compile(f)
        assert_same_calls(compiled, f, lambda: [*numbers, y], exact=True)
        torch.full((16, 16), 77, dtype=torch.uint8)  # what a result that is not written may have
        assert not compiled(*numbers, y)[1].any()


MIRRORED = """#include "pyc_prelude.h"
extern "C" PYC_EXPORT void mirrored(const double* PYC_RESTRICT p0, double* PYC_RESTRICT p1) {
    for (int64_t i0 = 0; i0 < 4; i0 += 1) {
#pragma omp simd
        for (int64_t j0 = 0; j0 < 4; j0++) {
            const double t5 = p0[4*i0 + j0];
            const double t6 = (j0 - i0 <= 0 ? t5 : (0.0));
            const double t10 = p0[4*j0 + i0];
            const double t11 = (i0 - j0 <= 0 ? t10 : (0.0));
            const double t12 = (i0 - j0 <= -1 ? t11 : (0.0));
            p1[4*i0 + j0] = t6 + t12;
        }
    }
}
"""


def test_eight_doubles_are_permuted_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug of gcc 12 with AVX-512: of the 16 elements, [2, 3] was [2, 2]."""
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    x = torch.arange(16, dtype=torch.float64).view(4, 4)
    result = torch.empty_like(x)
    kernel = ctypes.CDLL(build(MIRRORED, ("mirrored",)).path).mirrored
    kernel(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(result.data_ptr()))
    assert torch.equal(result, x.tril() + x.tril(-1).mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_floats_use_whole_vectors(dtype: torch.dtype, plans: BuiltPlans) -> None:
    """Means of float32 are added in arrays of doubles, which the bug does not concern."""
    pycompiler.compile(lambda x: (x * 2).mean(0))(torch.ones(64, 96, dtype=dtype))
    (plan,) = plans.found
    assert "double* const acc" in plan.source
    assert ("-mprefer-vector-width=256" in flags_for(plan.source)) == (X86 and dtype is torch.float64)


def test_gradient_of_a_cholesky_solve() -> None:
    """The same bug in the program where it was found."""

    def solve(x: torch.Tensor) -> torch.Tensor:
        return torch.cholesky_solve(x, torch.linalg.cholesky(x @ x.mT + torch.eye(4, dtype=x.dtype)))

    torch.manual_seed(0)
    eager = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    ours = eager.detach().clone().requires_grad_()
    solve(eager).square().sum().backward()
    pycompiler.compile(solve)(ours).square().sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)


LARGEST = """#include "pyc_prelude.h"
extern "C" PYC_EXPORT void largest(const double* PYC_RESTRICT p0, double* PYC_RESTRICT p1, double* PYC_RESTRICT p2) {
    for (int64_t i0 = 0; i0 < 16; i0 += 1) {
        double r0 = (double)-PYC_INF;
        int32_t r0_nan = 0;
#pragma omp simd reduction(max:r0) reduction(|:r0_nan)
        for (int64_t j0 = 0; j0 < 31; j0++) {
            const double t0 = p0[31*i0 + j0];
            const double t1 = (t0 == (double)-PYC_INF ? (-1.7976931348623157e+308) : t0);
            const double t2 = (t0 == (double)PYC_INF ? (1.7976931348623157e+308) : t1);
            r0 = t0 > r0 ? t0 : r0;
            r0_nan |= t0 != t0;
            p1[31*i0 + j0] = pyc_min((6.0), t2);
        }
        p2[i0] = r0_nan ? (double)PYC_NAN : r0;
    }
}
"""


def test_lanes_of_a_reduction_are_read_beside_selections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug of gcc 13: it used the largest of some lanes as the largest of all."""
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    torch.manual_seed(0)
    x = torch.randn(16, 31, dtype=torch.float64)
    least, result = torch.empty_like(x), torch.empty(16, dtype=torch.float64)
    kernel = ctypes.CDLL(build(LARGEST, ("largest",)).path).largest
    kernel(*(ctypes.c_void_p(t.data_ptr()) for t in (x, least, result)))
    assert torch.equal(result, x.amax(-1))
    assert torch.equal(least, x.clamp_max(6))


NARROWED = """#include "pyc_prelude.h"
extern "C" PYC_EXPORT void narrowed(const double* PYC_RESTRICT p0, const double* PYC_RESTRICT p1, double* PYC_RESTRICT p2) {
#pragma omp simd
    for (int64_t j0 = 0; j0 < 7; j0++) {
        const double t0 = p0[j0] * 3.1;
        const float t1 = (float)t0;
        p2[j0] = p1[j0] * (double)t1 + t0;
    }
}
"""


def test_a_double_that_was_a_float(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug of gcc 12: it omitted the conversion in the elements after the vectors."""
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    torch.manual_seed(0)
    x, y = torch.randn(2, 7, dtype=torch.float64)
    result = torch.empty_like(x)
    kernel = ctypes.CDLL(build(NARROWED, ("narrowed",)).path).narrowed
    kernel(*(ctypes.c_void_p(t.data_ptr()) for t in (x, y, result)))
    assert torch.equal(result, y * (x * 3.1).float().double() + x * 3.1)


def test_argmax_beside_nan_to_num() -> None:
    """The same bug in the program where it was found."""

    def search(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * y
        scaled = y / y.amax(-1, keepdim=True)
        return y * scaled + scaled, z.t().nan_to_num(), z.argmax(-1), torch.nn.functional.relu6(z.t().nan_to_num())

    torch.manual_seed(0)
    x, y = torch.randn(2, 16, 31, dtype=torch.float64)
    for got, want in zip(pycompiler.compile(search)(x, y), search(x, y), strict=True):
        assert torch.equal(got, want)


CAST_VALUES = (
    0.0, -0.0, -0.3, 0.9, -1.5, 100.7, -100.0, 200.0, -200.0, 300.0, 40000.0, 70000.0, 2147483649.0, -2147483777.0, 3e9, 3000000007.0,
    5000070123.0, 2.0**32 + 77, 1e10, -1e10, 2.0**63 - 4096, 1e19, -1e19, 1e30, -1e30, math.nan, math.inf, -math.inf,
)  # fmt: skip
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS = (*SIGNED, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool)


def casts(x: torch.Tensor) -> list[torch.Tensor]:
    """Integers and booleans converted from floats, and floats converted back."""
    made = [x.to(t) for t in INTEGERS]
    back = [x.to(t).to(x.dtype) for t in INTEGERS]
    wide = [1 / x.to(t).to(torch.float64) for t in INTEGERS]
    return [*made, *back, *wide, *(1 / b for b in back), *(x - x.to(t) for t in (*SIGNED, torch.uint8))]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_casts_of_floats_of_any_value(dtype: torch.dtype) -> None:
    """Results equal ATen's wherever its loops of one element and of many agree."""
    values = torch.tensor(CAST_VALUES, dtype=torch.float64).to(dtype)
    times = 7
    alone = [torch.stack(r) for r in zip(*(casts(v) for v in values), strict=True)]
    compiled = pycompiler.compile(casts, dynamic=False)
    for x in (values.repeat(times), values.repeat(times).repeat_interleave(2)[::2]):
        for one, want, got in zip(alone, casts(x), compiled(x), strict=True):
            one = one.repeat(times)
            known = (want == one) | (want != want) & (one != one)
            assert got.dtype == want.dtype
            assert known.sum() >= len(x) // 2
            signs = (torch.signbit(r.double()) for r in (got, want))
            same = (got == want) & operator.eq(*signs) | (got != got) & (want != want)
            assert (same | ~known).all(), (got.dtype, x[~same & known], got[~same & known], want[~same & known])
