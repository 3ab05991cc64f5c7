"""Hints: probable values of sizes."""

from __future__ import annotations

import pytest

from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import hinted, likely, likely_product

M, N = Expr.sym("m"), Expr.sym("n")


def test_hints_hold_inside():
    assert (likely(Expr.of(7)), likely(N)) == (7, None)
    with hinted({"n": 5}):
        assert likely(2 * N + 1) == 11
        assert likely(M * N) is None
        assert likely_product([N, Expr.of(3)]) == 15
        assert likely_product([N, M]) is None
        with hinted({"m": 2, "n": 3}):
            assert likely(M * N) == 6
        assert likely(N) == 5
    with pytest.raises(ValueError, match="inside"), hinted({"n": 1}):
        raise ValueError("inside")
    assert likely(N) is None
