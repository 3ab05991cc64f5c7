"""Small matrix products are loops, larger ones ATen's."""

import pytest
import torch
from harness import check, externs, lowered, randn

import pycompiler
from tests.harness.compare import assert_same_calls

PRODUCTS = {
    "mm": lambda x, y: x @ y,
    "transposed": lambda x, y: (y.t() @ x.t()).t() + 1,
    "addmm": lambda x, y: torch.addmm(y[0], x, y),
    "addmm_scaled": lambda x, y: torch.addmm(y[0, 0], x, y, beta=0.5, alpha=3),
    "bmm": lambda x, y: torch.bmm(x.expand(2, 4, 8), y.expand(2, 8, 6)),
    "two": lambda x, y: torch.relu(x @ y) @ y.t(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_small_products_are_loops(name: str, dtype: torch.dtype) -> None:
    check(PRODUCTS[name], (randn(4, 8, dtype=dtype), randn(8, 6, dtype=dtype)), native=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 8), (8, 1), (2, 3), (64, 128)])
def test_a_product_of_one_term_adds_nothing(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Then -0.0 stays, in BLAS only if the result is a matrix."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bias = torch.full((columns,), -0.0, dtype=dtype)
        return 1 / (x @ w), 1 / torch.addmm(bias, x, w), 1 / torch.nn.functional.linear(x, w.t())

    compiled = pycompiler.compile(program, fullgraph=True)
    for sign in (-1, 1):
        args = (torch.full((rows, 1), sign, dtype=dtype), torch.zeros(1, columns, dtype=dtype))
        assert_same_calls(compiled, program, lambda given=args: given, exact=True)


def test_large_and_integer_products_stay_with_aten() -> None:
    assert externs(lowered(lambda x, y: x @ y, (randn(64, 64), randn(64, 64)))) == ["aten.mm.default"]
    ints = torch.arange(4).reshape(2, 2)
    assert externs(lowered(lambda x: x @ x, (ints,))) == ["aten.mm.default"]
    assert externs(lowered(lambda x, y: x @ y, (randn(3, 0), randn(0, 5)))) != []


def test_the_bias_of_a_product_that_a_loop_reads_moves_into_the_loop() -> None:
    x, y, bias = randn(32, 64), randn(64, 48), randn(48)

    def saved(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.addmm(b, x, y)
        return total, total.t().exp()

    for f in (lambda x, y, b: torch.addmm(b, x, y).view(4, 8, 48).relu(), saved):
        assert externs(check(f, (x, y, bias), rtol=1e-5, atol=1e-4)) == ["aten.mm.default"]


def test_the_bias_stays_where_no_loop_reads_the_sum_or_precision_would_be_lost() -> None:
    x, y, bias = randn(64, 64), randn(64, 64), randn(64)
    cases = {
        "only an output": (lambda x, y, b: torch.addmm(b, x, y), torch.float32),
        "only a product": (lambda x, y, b: torch.addmm(b, x, y).t() @ x, torch.float32),
        "scaled": (lambda x, y, b: torch.addmm(b, x, y, alpha=2).relu(), torch.float32),
        "half precision": (lambda x, y, b: torch.addmm(b, x, y).relu(), torch.bfloat16),
        "a whole matrix": (lambda x, y, b: torch.addmm(x, x, y).relu(), torch.float32),
    }
    for name, (f, dtype) in cases.items():
        assert "aten.addmm.default" in externs(lowered(f, tuple(t.to(dtype) for t in (x, y, bias)))), name
