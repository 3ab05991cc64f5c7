"""An operator rounds alike wherever it is computed: compiled values have eager's bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler

Function = Callable[..., Any]


def same_bits(fn: Function, *args: torch.Tensor) -> None:
    compiled = pycompiler.compile(fn, fullgraph=True)
    for _ in range(2):
        got, want = compiled(*args), fn(*args)
        for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
            assert torch.equal(a.nan_to_num(12345), b.nan_to_num(12345))
            assert torch.equal(a.isnan(), b.isnan())
    assert pycompiler.counters(compiled)["compiles"] == 1
    assert pycompiler.counters(compiled)["hits"] == 1


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_division_by_one_number_a_row() -> None:
    x = torch.arange(0.0, 5000.0)
    rows = x.view(50, 100)
    same_bits(lambda x, rows: ((x / 41).int(), rows / rows.amax(-1, keepdim=True) == 1.0), x, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_sums_are_not_contracted(dtype: torch.dtype) -> None:
    x, k = numbers(1000, dtype=dtype), (torch.arange(1.0, 100.0) * 0.1).to(dtype)

    def fn(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return x * x - y * y == 0, (b * b - 4 * a * a).sqrt().isnan(), x * 0.1 - y * 0.1 == 0

    same_bits(fn, x, x.clone(), k, 2 * k)


def test_constants_become_integers_as_on_the_processor() -> None:
    x = torch.tensor([1.0, -1.0, 3.0] * 6)

    def fn(x: torch.Tensor) -> Any:
        nan = torch.where(x > 0, x, math.nan)
        return (
            nan.long(),
            x.masked_fill(x > 2, math.inf).int(),
            torch.where(x > 0, x, 3e9).to(torch.int16),
            (nan.bfloat16() * 2).int(),
        )

    same_bits(fn, x)


# Kernels of ATen that round once where the formula has two operators, and of half types after which steps.
COMPOSITES: dict[str, Function] = {
    "addcmul": lambda a, b, c: torch.addcmul(c, a, b), "addcmul, value": lambda a, b, c: torch.addcmul(c, a, b, value=0.3),
    "addcdiv": lambda a, b, c: torch.addcdiv(c, a, b, value=0.3), "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
    "lerp, far": lambda a, b, c: torch.lerp(a, b, 0.8), "lerp, tensor": lambda a, b, c: torch.lerp(a, b, c.abs()),
    "cube": lambda a, b, c: a**3, "inverse square": lambda a, b, c: a**-2,
    "huber": lambda a, b, c: F.huber_loss(a, b, reduction="none", delta=0.5),
    "smooth l1": lambda a, b, c: F.smooth_l1_loss(a, b, reduction="none", beta=0.5),
    "hardswish": lambda a, b, c: F.hardswish(a), "relu of zeros": lambda a, b, c: (a * 0).relu(),
    "clamp of zeros": lambda a, b, c: (a * 0).clamp(0, 1), "linspace": lambda a, b, c: a + torch.linspace(0.1, 3.7, 53, dtype=a.dtype),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_round_as_their_kernels(name: str, dtype: torch.dtype) -> None:
    same_bits(COMPOSITES[name], *(numbers(37, 53, dtype=dtype, seed=k) for k in (1, 2, 3)))


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
def test_a_sum_with_alpha_rounds_once(name: str) -> None:
    fn = getattr(torch, name)
    same_bits(
        lambda a, b: (fn(a, b, alpha=0.3), torch.rsub(a, 2.0, alpha=0.3)), numbers(37, 53), numbers(37, 53, seed=1)
    )


def test_cross_products() -> None:
    same_bits(lambda a, b: torch.linalg.cross(a, b), numbers(100, 3), numbers(100, 3, seed=1))


@pytest.mark.parametrize("columns", [4, 5, 8, 17, 64])
@pytest.mark.parametrize("rows", [1, 2])
def test_gather_at_a_truth(rows: int, columns: int) -> None:
    """gcc 12 gathers at -1 for an index 1 that it knows to be a truth."""
    same_bits(
        lambda y: ((y * 2).gather(1, (y > 0).long()), (y + 1).gather(1, torch.where(y > 0, 1, 2))),
        numbers(rows, columns),
    )
    y = numbers(rows, columns, seed=1)
    fn = lambda y: F.layer_norm(y, (y.shape[-1],)).gather(1, (y > 0).long())
    torch.testing.assert_close(pycompiler.compile(fn)(y), fn(y))


MEANS: dict[str, torch.Tensor] = {
    "outlier first": torch.cat([torch.tensor([1e8, -1e8]), torch.full((998,), 3.0)]),
    "outlier last": torch.cat([torch.full((998,), 3.0), torch.tensor([1e8, -1e8])]),
    "outlier between": torch.cat([torch.full((499,), 3.0), torch.tensor([1e8, -1e8]), torch.full((499,), 3.0)]),
    "least number first": torch.cat([torch.tensor([torch.finfo(torch.float32).min]), numbers(999)]),
    "equal": torch.full((1000,), 0.1), "far from zero": numbers(1000) * 1e-3 + 1e4, "tiny": numbers(1000) * 1e-30,
    "huge": numbers(1000) * 1e37, "alternating": numbers(1000) * torch.tensor([1e6, 1.0]).repeat(500), "infinite first": torch.tensor([math.inf] + [1.0] * 99),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("shape", ["row", "rows", "columns"])
def test_means_and_variances_are_as_close_as_eagers(name: str, shape: str) -> None:
    row = MEANS[name]
    largest = torch.finfo(torch.float32).max
    x, dim = {"row": (row, 0), "rows": (row.repeat(3, 1), 1), "columns": (row.repeat(3, 1).t().contiguous(), 0)}[shape]
    for fn in (lambda x: (x.sum(dim), x.mean(dim)), lambda x: torch.var_mean(x, dim)):
        for got, eager, exact in zip(pycompiler.compile(fn)(x), fn(x), fn(x.double()), strict=True):
            if exact.isfinite().all() and exact.abs().max() < largest:
                spacing = torch.finfo(torch.float32).eps * exact.abs()
                assert ((got - exact).abs() <= (eager - exact).abs() + spacing).all()
            else:
                assert not (got.abs() < largest).any()  # Welford's mean of an infinity is NaN, the sum is infinite


def test_running_statistics_beside_an_outlier() -> None:
    x = numbers(1000, 4) + 3
    x[0, 0], x[1, 0] = 1e7, -1e7
    norm = torch.nn.BatchNorm1d(4, momentum=1.0)
    pycompiler.compile(norm)(x)
    torch.testing.assert_close(norm.running_mean.double(), x.double().mean(0), rtol=1e-6, atol=1e-5)


def amax_of_a_polynomial(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return ((a * b + c) ** 2 + a * b).amax(-1)


GRADIENTS: dict[str, tuple[Function, tuple[tuple[int, ...], ...], torch.dtype]] = {
    "polynomial": (amax_of_a_polynomial, ((50, 500),) * 3, torch.float32),
    "bfloat16": (lambda a, b, c: (F.gelu(a) + c * b).amax(0), ((6, 37),) * 3, torch.bfloat16),
    "unit features": (lambda x: F.normalize(x, dim=-1).amax(0), ((512, 64),), torch.float32),
    "attention": (lambda x: x.softmax(-1).amax(-2), ((2, 20, 100),), torch.float32),
    "least": (lambda x: F.layer_norm(x, x.shape[-1:]).amin(0), ((64, 33),), torch.float32),
    "infinity norm": (lambda x, y: torch.linalg.vector_norm(x * y + 1, math.inf, -1), ((9, 40),) * 2, torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_gradients_of_extremes_find_them(name: str, budget: float) -> None:
    fn, shapes, dtype = GRADIENTS[name]
    args = [numbers(*shape, dtype=dtype, seed=k).requires_grad_() for k, shape in enumerate(shapes)]
    want = torch.autograd.grad(fn(*args).sum(), args)
    with pycompiler.config.patch(activation_memory_budget=budget):
        got = torch.autograd.grad(pycompiler.compile(fn, fullgraph=True)(*args).sum(), args)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)


@pytest.mark.gpu
def test_gpu_shifts_ranges_divisions_and_zeros() -> None:
    n, z = torch.ones(256, dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    x, a = numbers(4096).cuda(), torch.arange(1.0, 2000, device="cuda")
    odd = torch.tensor([math.nan, -0.0, 2.0, 1.4e-45], device="cuda")
    same_bits(lambda n: (n << 40, n >> 40, n << -1, (-n) >> 33), n)
    same_bits(lambda z: torch.arange(0, 10**10, 10**6, device="cuda") + z, z)
    same_bits(
        lambda a, b: (torch.div(a, b, rounding_mode="trunc"), torch.floor_divide(a, b), a / b, a / 41), a, a.clone()
    )
    same_bits(lambda x, y: (x * x - y * y).sqrt(), x, x.clone())
    same_bits(lambda x: (torch.sign(x), torch.signbit(-x), x.ceil(), x.floor(), x.round()), odd)


def test_float32_between_operators_of_half_precision() -> None:
    x, y = numbers(64, 33, dtype=torch.bfloat16), numbers(64, 33, dtype=torch.bfloat16, seed=1)
    fn = lambda x, y: (x * y + 1) * 3 - y
    exact = fn(x.double(), y.double())
    rounded = pycompiler.compile(fn)(x, y)
    assert torch.equal(rounded, fn(x, y))
    with pycompiler.config.patch(emulate_precision_casts=False):
        kept = pycompiler.compile(fn)(x, y)
        cast = pycompiler.compile(lambda x: (x.float() * 0.3).bfloat16().float())(x)
    assert (kept.double() - exact).abs().mean() < 0.7 * (rounded.double() - exact).abs().mean()
    assert torch.equal(cast, (x.float() * 0.3).bfloat16().float()), "a cast of the program's is kept"


def test_fast_math_contracts() -> None:
    x = numbers(1000)
    fn = lambda x, y: x * x - y * y
    with pycompiler.config.patch(fast_math=True):
        fast = pycompiler.compile(fn)(x, x.clone())
    assert torch.equal(pycompiler.compile(fn)(x, x.clone()), torch.zeros(1000))
    torch.testing.assert_close(fast, torch.zeros(1000), rtol=0, atol=1e-6)
    assert fast.any(), "one of the two products is not rounded"
