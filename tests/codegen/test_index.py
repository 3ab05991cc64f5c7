"""Index expressions in C++: the cheapest division that is right for the dividend's range."""

from __future__ import annotations

import pytest

from pycompiler.codegen.cpp.index import c_index
from pycompiler.symbolic.expr import Expr

I, N = Expr.sym("i"), Expr.sym("n")


@pytest.mark.parametrize(
    ("index", "size", "text"),
    [
        (I // 3, 10, "(int64_t)((uint32_t)(i0) / 3u)"),
        (I % 3, 10, "(int64_t)((uint32_t)(i0) % 3u)"),
        (I // 3, 2**31, "(int64_t)((uint32_t)(i0) / 3u)"),
        (I // 3, 2**31 + 1, "(int64_t)((uint64_t)(i0) / 3u)"),
        ((2 - I) // 3, 10, "pyc_floordiv_index(-i0 + 2, 3)"),
        ((2 - I) % 3, 10, "pyc_mod_index(-i0 + 2, 3)"),
        ((2 - I) // 3, 3, "(int64_t)((uint32_t)(-i0 + 2) / 3u)"),
        (I // N, 10, "pyc_floordiv_index(i0, n)"),
        (I.min(3), 10, "pyc_min_index(3, i0)"),
        (I % 2**33, 10, "(int64_t)((uint32_t)(i0) % 8589934592u)"),  # the literal is an unsigned long
        (I * N * 3 - I - 2**31, 10, "3*i0*n - i0 - 2147483648"),
    ],
)
def test_expressions(index: Expr, size: int, text: str) -> None:
    assert c_index(index, {"i": "i0", "n": "n"}, {"i": Expr.of(size)}) == text
