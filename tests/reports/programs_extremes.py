"""Extremes, NaN, infinities and signed zeros."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.reports.core import report

NAN, INF = float("nan"), float("inf")


@report(118266, "argmax finds the NaN that log1p made", exact=True)
def argmax_of_nan() -> Any:
    return lambda x: (torch.argmax(torch.log1p(x)), torch.argmin(torch.log1p(x))), lambda: (
        torch.tensor([-3.0, 100.0, 2.0]),
    )


@report(118177, "argmax of fliplr of nine dimensions", exact=True)
def argmax_of_flipped() -> Any:
    return lambda x: torch.argmax(torch.fliplr(x)), lambda: (torch.rand(4, 6, 2, 3, 3, 1, 1, 4, 1),)


@report(113175, "argmax of rows with several NaN", exact=True)
def first_nan() -> Any:
    return lambda x: (torch.argmax(x), torch.argmax(x, 1), x.argmin(0)), lambda: (
        torch.tensor([[1.0, NAN, 0.0, NAN], [0.0, 2.0, NAN, NAN], [3.0, 1.0, 0.0, 4.0]]),)  # fmt: skip


@report(113013, "adaptive_avg_pool1d, then argmax", exact=True)
def pool_then_argmax() -> Any:
    return lambda x: torch.argmax(torch.adaptive_avg_pool1d(x, 2)), lambda: (torch.rand(3, 3, 3, dtype=torch.float64),)


@report(183082, "argmax of the transposed copy after sin_", exact=True)
def sin_in_place_transposed() -> Any:
    def fn(x: Any) -> Any:
        x = x.clone()
        x.sin_()
        return x.t().argmax()

    return fn, lambda: (torch.randn(5, 7),)


@report(183894, "argmin of the transposed argument after sin_")
def argument_sin_in_place() -> Any:
    def fn(x: Any) -> Any:
        x.sin_()
        return x.t().argmin()

    return fn, lambda: (torch.randn(5, 7),)


@report(178964, "Indices of max(dim=1) where one summand is transposed", exact=True)
def max_of_transposed_sum() -> Any:
    return lambda a, b: (a + b).max(dim=1), lambda: (torch.randn(8, 8).t(), torch.randn(8, 8))


@report(99879, "min and argmin where several elements are the least", exact=True)
def ties() -> Any:
    return lambda x: (x.min(1), x.argmin(), x.max(0), x.argmax(1)), lambda: (torch.randint(0, 3, (6, 9)).float(),)


@report(114229, "argmax of a difference that is zero, with and without the factor as a result", cuda=True)
def argmax_of_difference() -> Any:
    def fn(x: Any, p: Any) -> Any:
        product = p / torch.atan(x) * x
        rest = product - product
        return product, rest.argmax(1)

    return fn, lambda: (torch.randn(6, 11), torch.randn(6, 1))


@report(113636, "argmin of x / x, which is all ones", exact=True, cuda=True)
def argmin_of_ones() -> Any:
    def fn(x: Any) -> Any:
        one = x / x
        return one.argmin(0), torch.cat((one,), 1)

    return fn, lambda: (torch.rand(13, 6) + 0.5,)


@report(93784, "clamp_min and maximum keep NaN of either side", exact=True)
def clamps_of_nan() -> Any:
    def fn(x: Any, y: Any) -> Any:
        return F.relu(x), torch.clamp_min(x, 0.5), torch.maximum(x, y), torch.clamp_min(x, y), x.clamp(-1.0, 1.0)

    def args() -> Any:
        x, y = torch.arange(-3.0, 4.0), torch.zeros(7)
        x[1] = x[-1] = y[2] = NAN
        return x, y

    return fn, args


@report(194347, "minimum and maximum of zeros of both signs", exact=True)
def zeros_of_both_signs() -> Any:
    def fn(x: Any, y: Any) -> Any:
        return torch.minimum(x, y), torch.maximum(y, x)

    return fn, lambda: (torch.tensor([-0.0] * 16), torch.tensor([0.0] * 16))


@report(189799, "ceil gives -0, and -0 + 0 is +0, whose reciprocal is +inf", exact=True)
def sum_of_zeros() -> Any:
    def fn(x: Any) -> Any:
        zero = torch.ceil(x)
        return torch.reciprocal(zero + torch.zeros_like(zero)), 1 / F.elu(zero), torch.rsqrt(zero.sqrt())

    return fn, lambda: (torch.tensor([-0.5, -0.1, -0.9]),)


@report(183606, "frac(-0.0) is +0.0", exact=True)
def frac_of_zero() -> Any:
    return lambda x: (torch.frac(x), 1.0 / torch.frac(x)), lambda: (torch.tensor([-0.0, -0.0, -1.5, 2.25]),)


@report(174172, "copysign by the number -0.0", exact=True, cuda=True)
def copysign_of_zero() -> Any:
    return lambda x: (torch.copysign(x, -0.0), torch.copysign(x, 0.0)), lambda: (torch.randn(6),)


@report(186379, "x * 0 is NaN where x is NaN or infinite", exact=True)
def times_zero() -> Any:
    return lambda x: (x * 0, x * 0.0, torch.mul(x, 0) + 1), lambda: (torch.tensor([NAN, INF, -INF, -2.0, 3.0]),)


@report(186018, "sin(atan(NaN)) is NaN", exact=True)
def sin_of_atan() -> Any:
    return lambda x: torch.sin(torch.atan(x)).isnan(), lambda: (torch.tensor([NAN, NAN, 0.0] * 7),)


@report(189808, "sqrt of a negative number is NaN, and what follows sees it")
def sqrt_of_negative() -> Any:
    return lambda x: (torch.tanh(F.gelu(torch.sqrt(x))), torch.sqrt(x).ceil()), lambda: (
        torch.tensor([-1.0, 4.0, -0.0, 0.25]),
    )


@report(196596, "addmm with beta=0 ignores NaN of its first argument, with alpha=0 of the product")
def addmm_of_nothing() -> Any:
    def fn(x: Any, a: Any, b: Any) -> Any:
        return torch.addmm(x, a, b, beta=0), torch.addmm(b[0], a * NAN, b, alpha=0)

    return fn, lambda: (torch.full((4,), NAN), torch.randn(1, 4), torch.randn(4, 4))


@report(168358, "Gradients of index_reduce by amax into -inf", training=True, cuda=True)
def index_reduce() -> Any:
    def fn(x: Any, index: Any) -> Any:
        return torch.full((2,), -INF).index_reduce(0, index, x, "amax", include_self=False)

    return fn, lambda: (torch.randn(5, requires_grad=True), torch.tensor([0, 0, 1, 0, 1]))


@report(132107, "cumsum of infinities has no NaN", exact=True, cuda=True)
def sum_of_infinities() -> Any:
    return lambda x: torch.cumsum(x, -1), lambda: (torch.full((1023,), INF, dtype=torch.float64),)


@report(126848, "A product that is a denormal number is kept", exact=True)
def denormal_product() -> Any:
    return lambda x: x * 2.0 ** (-127 + 3), lambda: (torch.tensor([0.1875, 1.0, 3.5]),)


@report(157959, "x / 101 is a division, not a product", exact=True)
def division_by_number() -> Any:
    return lambda x: x / 101, lambda: (torch.rand(5, 25),)


@report(141753, "A number divided by a tensor", exact=True)
def number_by_tensor() -> Any:
    return lambda x: 10 / x, lambda: (torch.rand(64) + 0.1,)


@report(171306, "x ** 0.5 beside sqrt(x)", cuda=True)
def square_root_as_power() -> Any:
    return lambda x: (x**0.5, x**0.5 == x.sqrt()), lambda: (torch.rand(64, 1),)


@report(94775, "max_pool2d with ceil_mode has no window outside of its input", exact=True)
def ceil_mode() -> Any:
    return lambda x: F.max_pool2d(x, 1, stride=(2, 2), ceil_mode=True), lambda: (torch.randn(1, 1, 6, 7),)


@report(185337, "float32 to float16 and back is rounded to float16", exact=True)
def there_and_back() -> Any:
    def fn(x: Any) -> Any:
        y = x.to(torch.float16).to(torch.float32)
        return y, y.amax(1)

    return fn, lambda: (torch.arange(20.0).reshape(5, 4).t() / 7.0,)


@report(197895, "1.0 // 0.1 is 9", exact=True)
def floor_division() -> Any:
    def fn(a: Any, b: Any) -> Any:
        return a // b, torch.floor_divide(a, b), torch.div(a, b, rounding_mode="floor")

    return fn, *(
        lambda dtype=dtype: (
            torch.tensor([1.0, 0.5, 6.0, 1.0], dtype=dtype),
            torch.tensor([0.1, 0.1, 0.2, 1 / 3], dtype=dtype),
        )
        for dtype in (torch.float32, torch.float64)
    )


@report(177740, "Floor division of whole floats is whole", exact=True, cuda=True)
def floor_division_of_whole() -> Any:
    return lambda a, b: torch.floor_divide(a, b), lambda: (
        torch.tensor([148.0, 1073.0, 2112.0, 12.0]), torch.tensor([37.0, 37.0, 33.0, 3.0]))  # fmt: skip


@report(184408, "div(rounding_mode='trunc') close to whole numbers", exact=True, cuda=True)
def truncated_division() -> Any:
    return lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda: (
        torch.tensor([14.999999, 26.999999, 13.999999, 148.0]), torch.tensor([3.0, 3.0, 7.0, 37.0]))  # fmt: skip


@report(145466, "fp16: floor and round of cos, sin and tan, which are rounded to fp16 before", exact=True)
def floor_of_cosine() -> Any:
    def fn(x: Any) -> Any:
        return torch.floor(torch.cos(x)), torch.round(torch.sin(x) * 2), torch.floor(torch.tan(x))

    return fn, lambda: (torch.linspace(-0.1, 0.1, 1024).half(),)


@report(113632, "gelu(x) - gelu(x) is 0", exact=True, cuda=True)
def nothing_left() -> Any:
    def fn(x: Any) -> Any:
        y = torch.nn.functional.gelu(x)
        return torch.sub(y, y), torch.sigmoid(y) > 0.5

    return fn, lambda: (torch.randn(25),)
