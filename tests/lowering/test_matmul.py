"""Small matrix products are loops, larger ones ATen's."""

import pytest
import torch
from harness import check, externs, lowered, randn

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


def test_large_and_integer_products_stay_with_aten() -> None:
    assert externs(lowered(lambda x, y: x @ y, (randn(64, 64), randn(64, 64)))) == ["aten.mm.default"]
    ints = torch.arange(4).reshape(2, 2)
    assert externs(lowered(lambda x: x @ x, (ints,))) == ["aten.mm.default"]
    assert externs(lowered(lambda x, y: x @ y, (randn(3, 0), randn(0, 5)))) != []
