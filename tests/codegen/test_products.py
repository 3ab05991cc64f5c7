"""A product that is used more than once is one number: contracted with one sum and not with another it is two."""

from __future__ import annotations

import pytest
import torch

import pycompiler
from pycompiler.codegen.cpp.products import rounded_once


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_cancels_leaves_nothing(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = x * y
        return ((p + 0.0) - p) * 1e12, (p + x) - x * y - x, -p + p  # type: ignore[return-value]

    x, y = (torch.randn(37, generator=torch.Generator().manual_seed(k), dtype=dtype) for k in (1, 2))
    for found, expected in zip(pycompiler.compile(fn)(x, y), fn(x, y), strict=True):
        assert torch.equal(found, expected)


def test_the_gradient_of_a_normal_vector_of_zero() -> None:
    """Its norm is replaced by 1e-12."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize((x - x.mean(0, True)) * torch.rsqrt(x), dim=-1)

    compiled = pycompiler.compile(fn)
    for value in (0.7312, 0.33, 1.7, 2.9):
        x = torch.tensor(value, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad == 0


def test_where_barriers_stand() -> None:
    lines = [
        "const float t1 = p0[i0];",
        "const float t2 = t1 * t1;",  # added twice
        "const float t3 = t1 * (float)0.5;",  # added once: may be contracted
        "const float t4 = t2 + t3;",
        "    const float t5 = t4 * t1;",  # used twice, never added
        "acc1 += t2;",
        "p1[i0] = t5;",
        "p2[i0] = t5;",
    ]
    found = rounded_once(lines)(lines)
    assert [a for a, b in zip(found, lines, strict=True) if a != b] == ["const float t2 = pyc_product(t1 * t1);"]
