"""Integers, bools and casts: wrap-around, and the dtype of results."""

from __future__ import annotations

from typing import Any

import torch

from tests.reports.core import report


@report(105264, "A uint8 sum wraps before it is widened")
def sum_then_widen() -> Any:
    return lambda x: (x + x).to(torch.int16), lambda: (torch.tensor([128, 200, 3], dtype=torch.uint8),)


@report(187018, "abs of uint8, negated, concatenated, summed")
def abs_of_bytes() -> Any:
    def fn(x: Any) -> Any:
        negative = -x.abs()
        return torch.cat((negative, negative)).sum()

    return fn, lambda: (torch.tensor([200, 130, 7], dtype=torch.uint8),)


@report(113016, "A uint8 sum, negated, cast to int32")
def sum_negated() -> Any:
    def fn(x: Any, y: Any) -> Any:
        total = x + y
        return total @ total, (-total).int()

    return fn, lambda: tuple(torch.arange(40, 56, dtype=torch.uint8).reshape(4, 4) * k for k in (3, 5))


@report(109105, "int8: (c + y) * x beside c * x + y * x where the products wrap")
def distributive() -> Any:
    def fn(x: Any, y: Any, c: Any) -> Any:
        return ((c + y) * x).int(), (c * x + y * x).int()

    return fn, lambda: (torch.arange(-9, 9, dtype=torch.int8), torch.full((18,), 20, dtype=torch.int8),
                        torch.arange(18, dtype=torch.int8))  # fmt: skip


@report(93829, "A negated uint8 is compared with a number")
def negated_less() -> Any:
    def fn(x: Any) -> Any:
        negative = torch.neg(x)
        return negative, negative < torch.tensor(4, dtype=torch.uint8)

    return fn, lambda: (torch.tensor(6, dtype=torch.uint8),)


@report(161763, "A negated uint8 constant is added to floats")
def negated_constant() -> Any:
    def fn(x: Any) -> Any:
        seven = torch.tensor(7, dtype=torch.uint8)
        return seven + x, -seven, -seven + x

    return fn, lambda: (torch.tensor([[1.5, -0.25], [-2.0, 0.5]]),)


@report(98149, "A power of uint8 wraps before cos sees it")
def power_of_bytes() -> Any:
    return lambda x: torch.cos(x.pow(5)), lambda: (torch.tensor([4, 3, 8], dtype=torch.uint8),)


@report(190764, "int32 sums and products wrap before they are widened to int64")
def wraps_at_32() -> Any:
    def fn(x: Any) -> Any:
        return (x + x).long(), (x * 3).long(), (x - (-x)).long() // 2

    return fn, lambda: (torch.tensor([2**31 - 1, 2**30, -(2**31), 5] * 9, dtype=torch.int32),)


@report(198081, "any() of uint8 is uint8, and what is computed from it wraps")
def any_of_bytes() -> Any:
    return lambda x: (torch.any(x), x.any(0), torch.any(x) * 200 + 100), lambda: (
        torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8),
    )


@report(184893, "Indices of the minimum of bools")
def minimum_of_bools() -> Any:
    return lambda x: x.min(0), lambda: (torch.randint(2, (5, 32), dtype=torch.bool),)


@report(109925, "cumsum of a constant cast to bool counts in int64")
def running_count() -> Any:
    return lambda x: torch.cumsum(torch.full((2, 4), 1).to(torch.bool), 1) + x, lambda: (
        torch.zeros(4, dtype=torch.int64),
    )


@report(100466, "torch.tensor(x >= 0, dtype=float32) as a factor")
def mask_as_factor() -> Any:
    return lambda x: x * torch.tensor(x >= 0, dtype=torch.float32), lambda: (torch.randn(3, 3),)


@report(143566, "Left shifts by as many bits as the type has, or more, or fewer than none")
def shifts() -> Any:
    return lambda x, n: (x << n, torch.bitwise_left_shift(x, n).int()), lambda: (
        torch.tensor([1, -3, 5, 7, 9] * 4, dtype=torch.int32), torch.tensor([31, 32, 33, 64, 2] * 4, dtype=torch.int32))  # fmt: skip


@report(174891, "A complex matrix plus a complex column")
def complex_broadcast() -> Any:
    return lambda x: x + torch.ones(2, 1, dtype=torch.complex64), lambda: (
        torch.full((2, 2), 1.0, dtype=torch.complex64),
    )


@report(156788, "Negative floats become uint8 modulo 256")
def floats_to_bytes() -> Any:
    return lambda x: x.to(torch.uint8), lambda: (torch.tensor([1.5, -0.29, -2.2, 0.6, -1.1] * 8),)


@report(131910, "byte() of negative floats")
def floats_byte() -> Any:
    return lambda x: x.byte(), lambda: (torch.randn(21),)


@report(175966, "arange times a large int64 does not wrap at 32 bits", cuda=True)
def large_arange() -> Any:
    def fn(x: Any) -> Any:
        return torch.arange(0, 11, dtype=torch.int64, device=x.device) * torch.tensor([10**9], device=x.device)

    return fn, lambda: (torch.zeros(1),)


@report(104020, "resize_ of a permuted input, then linear")
def permuted_resize() -> Any:
    weight, bias = torch.randn(2, 2), torch.randn(2)

    def fn(x: Any) -> Any:
        turned = x.permute(0, 2, 1)
        turned.resize_(1, 1, 2)
        return torch.nn.functional.linear(turned, weight, bias)

    return fn, lambda: (torch.randn(1, 2, 2),)


@report(138015, "A drawn bfloat16 while the default dtype is bfloat16")
def default_bfloat16() -> Any:
    def fn() -> Any:
        return torch.randn(3, dtype=torch.bfloat16).dtype, torch.ones(2).dtype

    return fn, tuple


@report(113637, "A negated uint8 maximum, cast to int32, beside an argmin of it", cuda=True)
def negated_maximum() -> Any:
    def fn(x: Any) -> Any:
        most = x.max(1).values
        return most.argmin(1), torch.neg(most).to(torch.int32)

    return fn, lambda: (torch.randint(0, 20, (3, 5, 7), dtype=torch.uint8),)
