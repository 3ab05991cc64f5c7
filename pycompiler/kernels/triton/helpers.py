"""Functions that generated Triton kernels call."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Elementary functions come from the device library, as in eager's kernels; Triton's own are approximations.

if triton.knobs.runtime.interpret:  # the interpreter has no device library

    @triton.jit
    def pyc_floor(x):  # type: ignore[no-untyped-def]
        return tl.floor(x)

    @triton.jit
    def pyc_ceil(x):  # type: ignore[no-untyped-def]
        return tl.ceil(x)

    @triton.jit
    def pyc_trunc(x):  # type: ignore[no-untyped-def]
        return tl.where(x < 0, tl.ceil(x), tl.floor(x))

    @triton.jit
    def pyc_round(x):  # type: ignore[no-untyped-def]
        # halves go to the even neighbour
        low = tl.floor(x)
        rest = x - low
        odd = low - 2.0 * tl.floor(low * 0.5) == 1.0
        return tl.where((rest > 0.5) | ((rest == 0.5) & odd), low + 1.0, low)

    @triton.jit
    def pyc_fmod(a, b):  # type: ignore[no-untyped-def]
        return a - b * pyc_trunc(a / b)

    @triton.jit
    def pyc_tanh(x):  # type: ignore[no-untyped-def]
        # near zero the quotient cancels
        series = x * (1.0 + x * x * (-0.333333333 + x * x * (0.133333333 - 0.053968254 * x * x)))
        small = tl.exp(-2.0 * tl.abs(x))
        whole = tl.where(x < 0, -1.0, 1.0) * (1.0 - small) / (1.0 + small)
        if x.dtype == tl.float64:
            return whole
        return tl.where(tl.abs(x) < 0.15, series, whole)

    @triton.jit
    def pyc_to_int32(x):  # type: ignore[no-untyped-def]
        return x.to(tl.int32)

    @triton.jit
    def pyc_to_int64(x):  # type: ignore[no-untyped-def]
        return x.to(tl.int64)

    @triton.jit
    def pyc_to_single(x):  # type: ignore[no-untyped-def]
        return x.to(tl.float32)

    @triton.jit
    def pyc_exp(x):  # type: ignore[no-untyped-def]
        return tl.exp(x)

    @triton.jit
    def pyc_exp2(x):  # type: ignore[no-untyped-def]
        return tl.exp2(x)

    @triton.jit
    def pyc_log(x):  # type: ignore[no-untyped-def]
        return tl.log(x)

    @triton.jit
    def pyc_log2(x):  # type: ignore[no-untyped-def]
        return tl.log2(x)

    @triton.jit
    def pyc_rsqrt(x):  # type: ignore[no-untyped-def]
        return tl.rsqrt(x)

    @triton.jit
    def pyc_sin(x):  # type: ignore[no-untyped-def]
        return tl.sin(x)

    @triton.jit
    def pyc_cos(x):  # type: ignore[no-untyped-def]
        return tl.cos(x)

    @triton.jit
    def pyc_erf(x):  # type: ignore[no-untyped-def]
        return tl.erf(x)

else:
    # The device library treats denormal numbers as zero; these instructions do not.

    @triton.jit
    def pyc_floor(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rmi.f64.f64 $0, $1;", "=d,d", [x], tl.float64, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rmi.f32.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

    @triton.jit
    def pyc_ceil(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rpi.f64.f64 $0, $1;", "=d,d", [x], tl.float64, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rpi.f32.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

    @triton.jit
    def pyc_trunc(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rzi.f64.f64 $0, $1;", "=d,d", [x], tl.float64, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rzi.f32.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

    @triton.jit
    def pyc_round(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rni.f64.f64 $0, $1;", "=d,d", [x], tl.float64, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rni.f32.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

    # LLVM leaves the conversion of a float beyond the integers undefined: for a known float, the result had arbitrary
    # bits.

    @triton.jit
    def pyc_to_int32(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rzi.s32.f64 $0, $1;", "=r,d", [x], tl.int32, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rzi.s32.f32 $0, $1;", "=r,f", [x], tl.int32, True, 1)

    @triton.jit
    def pyc_to_int64(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise("cvt.rzi.s64.f64 $0, $1;", "=l,d", [x], tl.int64, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rzi.s64.f32 $0, $1;", "=l,f", [x], tl.int64, True, 1)

    # LLVM merges the conversions integer -> float32 -> half precision into one rounding.
    @triton.jit
    def pyc_to_single(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.int64:
            return tl.inline_asm_elementwise("cvt.rn.f32.s64 $0, $1;", "=f,l", [x], tl.float32, True, 1)
        else:
            return tl.inline_asm_elementwise("cvt.rn.f32.s32 $0, $1;", "=f,r", [x], tl.float32, True, 1)

    @triton.jit
    def pyc_rsqrt(x):  # type: ignore[no-untyped-def]
        if x.dtype == tl.float64:
            return libdevice.rsqrt(x)
        else:
            return tl.inline_asm_elementwise("rsqrt.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)

    @triton.jit
    def pyc_fmod(a, b):  # type: ignore[no-untyped-def]
        return libdevice.fmod(a, b)

    @triton.jit
    def pyc_exp(x):  # type: ignore[no-untyped-def]
        return libdevice.exp(x)

    @triton.jit
    def pyc_exp2(x):  # type: ignore[no-untyped-def]
        return libdevice.exp2(x)

    @triton.jit
    def pyc_log(x):  # type: ignore[no-untyped-def]
        return libdevice.log(x)

    @triton.jit
    def pyc_log2(x):  # type: ignore[no-untyped-def]
        return libdevice.log2(x)

    @triton.jit
    def pyc_sin(x):  # type: ignore[no-untyped-def]
        return libdevice.sin(x)

    @triton.jit
    def pyc_cos(x):  # type: ignore[no-untyped-def]
        return libdevice.cos(x)

    @triton.jit
    def pyc_erf(x):  # type: ignore[no-untyped-def]
        return libdevice.erf(x)

    @triton.jit
    def pyc_tanh(x):  # type: ignore[no-untyped-def]
        return libdevice.tanh(x)


@triton.jit
def pyc_divide(a, b):  # type: ignore[no-untyped-def]
    # rounded as IEEE has it: `/` of float32 is two units off
    return a / b if a.dtype == tl.float64 else tl.div_rn(a, b)


@triton.jit
def pyc_reciprocal(x):  # type: ignore[no-untyped-def]
    return pyc_divide(tl.full((1, 1), 1.0, x.dtype), x)


@triton.jit
def pyc_sigmoid(x):  # type: ignore[no-untyped-def]
    return pyc_reciprocal(1.0 + pyc_exp(-x))


# Shifts by counts beyond the type's width, as in eager's kernels.


@triton.jit
def pyc_shl(a, b):  # type: ignore[no-untyped-def]
    wrong = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    return tl.where(wrong, 0, a << tl.where(wrong, 0, b)).to(a.dtype)


@triton.jit
def pyc_shr(a, b):  # type: ignore[no-untyped-def]
    wrong = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    return tl.where(wrong, tl.where(a < 0, -1, 0), a >> tl.where(wrong, 0, b)).to(a.dtype)


@triton.jit
def pyc_sign(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(x.dtype)  # of a NaN too


@triton.jit
def pyc_sign_int(x):  # type: ignore[no-untyped-def]
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def pyc_floordiv_int(a, b):  # type: ignore[no-untyped-def]
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def pyc_mod_int(a, b):  # type: ignore[no-untyped-def]
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


# A program's numbers may be divided by zero, which LLVM leaves undefined: its result was an arbitrary number. The
# device's own quotient has all bits set, and its remainder is the dividend.


@triton.jit
def pyc_divisor(b):  # type: ignore[no-untyped-def]
    return b | (b == 0).to(b.dtype)


@triton.jit
def pyc_truncdiv_checked(a, b):  # type: ignore[no-untyped-def]
    return tl.where(b == 0, ~b, a // pyc_divisor(b))


@triton.jit
def pyc_fmod_checked(a, b):  # type: ignore[no-untyped-def]
    return tl.where(b == 0, a, a % pyc_divisor(b))


@triton.jit
def pyc_floordiv_checked(a, b):  # type: ignore[no-untyped-def]
    return tl.where(b == 0, ~b - ((a < 0) & (b == 0)).to(b.dtype), pyc_floordiv_int(a, pyc_divisor(b)))


@triton.jit
def pyc_mod_checked(a, b):  # type: ignore[no-untyped-def]
    return tl.where(b == 0, a, pyc_mod_int(a, pyc_divisor(b)))


@triton.jit
def pyc_mod_float(a, b):  # type: ignore[no-untyped-def]
    r = pyc_fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def pyc_floordiv_float(a, b):  # type: ignore[no-untyped-def]
    # As ATen: without the remainder the quotient is nearly whole, and is rounded to the whole number.
    r = pyc_fmod(a, b)
    q = pyc_divide(a - r, b)
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1.0, q)
    low = pyc_floor(q)
    low = tl.where(q - low > 0.5, low + 1.0, low)
    whole = pyc_divide(a, b)
    return tl.where(b == 0, whole, tl.where(q == 0, whole * 0.0, low))


@triton.jit
def pyc_nan_max(a, b):  # type: ignore[no-untyped-def]
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def pyc_nan_min(a, b):  # type: ignore[no-untyped-def]
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def pyc_product(a, b):  # type: ignore[no-untyped-def]
    return a * b


@triton.jit
def pyc_sum(a, b):  # type: ignore[no-untyped-def]
    return a + b


@triton.jit
def pyc_xor(a, b):  # type: ignore[no-untyped-def]
    return a ^ b


@triton.jit
def pyc_max(a, b):  # type: ignore[no-untyped-def]
    return tl.where(a > b, a, b)


@triton.jit
def pyc_min(a, b):  # type: ignore[no-untyped-def]
    return tl.where(a < b, a, b)


# For equal values the lower position wins; a NaN wins against every number.
@triton.jit
def pyc_argmax(a, i, b, j):  # type: ignore[no-untyped-def]
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def pyc_argmin(a, i, b, j):  # type: ignore[no-untyped-def]
    first = (a < b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def pyc_nan_argmax(a, i, b, j):  # type: ignore[no-untyped-def]
    a_nan = a != a
    b_nan = b != b
    first = (a > b) | (a_nan & (b == b)) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def pyc_nan_argmin(a, i, b, j):  # type: ignore[no-untyped-def]
    a_nan = a != a
    b_nan = b != b
    first = (a < b) | (a_nan & (b == b)) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def pyc_welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):  # type: ignore[no-untyped-def]
    n = n_a + n_b
    share = tl.where(n > 0, n_b / tl.where(n > 0, n, 1.0), 0.0)
    gap = mean_b - mean_a
    return mean_a + gap * share, m2_a + m2_b + gap * gap * n_a * share, n
