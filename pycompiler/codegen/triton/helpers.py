"""Functions that generated Triton kernels call."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

if triton.knobs.runtime.interpret:  # the interpreter has no device library

    @triton.jit
    def pyc_quotient(a, b):  # type: ignore[no-untyped-def]
        return a / b

    @triton.jit
    def pyc_fmod(a, b):  # type: ignore[no-untyped-def]
        return a - b * pyc_trunc(a / b)

    @triton.jit
    def pyc_tanh64(x):  # type: ignore[no-untyped-def]
        small = tl.exp(-2.0 * tl.abs(x))
        return tl.where(x < 0, -1.0, 1.0) * (1.0 - small) / (1.0 + small)

else:

    @triton.jit
    def pyc_fmod(a, b):  # type: ignore[no-untyped-def]
        return libdevice.fmod(a, b)

    @triton.jit
    def pyc_tanh64(x):  # type: ignore[no-untyped-def]
        return libdevice.tanh(x)

    @triton.jit
    def pyc_quotient(a, b):  # type: ignore[no-untyped-def]
        # a / b within 2 units in the last place for float32 `b` far from the ends of its range: one instruction and a product,
        # where `/` scales operands that may be denormal
        return libdevice.fast_dividef(a, b)


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
def pyc_sign(x):  # type: ignore[no-untyped-def]
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))


@triton.jit
def pyc_sign_int(x):  # type: ignore[no-untyped-def]
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def pyc_tanh(x):  # type: ignore[no-untyped-def]
    # for float32: odd polynomial near zero, where 2 * sigmoid(2x) - 1 cancels
    small = x * (1.0 + x * x * (-0.333333333 + x * x * (0.133333333 - 0.053968254 * x * x)))
    return tl.where(tl.abs(x) < 0.15, small, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def pyc_floordiv_int(a, b):  # type: ignore[no-untyped-def]
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def pyc_mod_int(a, b):  # type: ignore[no-untyped-def]
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


# Numbers of a program may be divided by zero, which LLVM leaves undefined: it took what came for a number of the type.
# The device's own quotient has all bits set, and its remainder is the dividend.


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
    # as ATen: the quotient of what the remainder leaves, which is nearly whole, rounded to the whole number
    r = pyc_fmod(a, b)
    q = (a - r) / b
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1.0, q)
    low = tl.floor(q)
    low = tl.where(q - low > 0.5, low + 1.0, low)
    return tl.where(b == 0, a / b, tl.where(q == 0, a / b * 0.0, low))


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


# Of equal values the lower position wins; a NaN wins against every number.
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


@triton.jit
def pyc_erf(x):  # type: ignore[no-untyped-def]
    # a quotient of polynomials, within 4 units in the last place; |erf| is 1 beyond 4
    x = tl.minimum(tl.maximum(x, -4.0, propagate_nan=tl.PropagateNan.ALL), 4.0, propagate_nan=tl.PropagateNan.ALL)
    s = x * x
    p = -2.72614225801306e-10 * s + 2.77068142495902e-08
    p = p * s - 2.10102402082508e-06
    p = p * s - 5.69250639462346e-05
    p = p * s - 7.34990630326855e-04
    p = p * s - 2.95459980854025e-03
    p = p * s - 1.60960333262415e-02
    q = -1.45660718464996e-05 * s - 2.13374055278905e-04
    q = q * s - 1.68282697438203e-03
    q = q * s - 7.37332916720468e-03
    q = q * s - 1.42647390514189e-02
    return pyc_quotient(x * p, q)
