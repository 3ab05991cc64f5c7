"""Symbolic sizes: one library, several sizes."""

from __future__ import annotations

import pytest
import torch
from kernel_harness import CPU, Body, compile_plan, f32, flat, program

from pycompiler.ir.loops import Buffer, Loop, Program, Reduction
from pycompiler.runtime.plan_python import PythonPlan
from pycompiler.symbolic.expr import Expr
from tests.symbolic_sizes import compiled

S0, S1 = Expr.sym("s0"), Expr.sym("s1")


def matrix(name: str, *shape: Expr) -> Buffer:
    strides, step = [], Expr.of(1)
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return Buffer(name, f32, shape, tuple(reversed(strides)), CPU)


def softmax_and_sums(rows: Expr, columns: Expr) -> Program:
    x, e, o = (matrix(n, rows, columns) for n in "xeo")
    m, s, c, t = matrix("m", rows), matrix("s", rows), matrix("c", columns), matrix("t")
    i, j, k, n = (Expr.sym(v) for v in ("i0", "i1", "r0", "r1"))

    def node(out: Buffer, source: Buffer, index: list[Expr], fold: tuple[str, list[Expr]] | None, op: str = "",
             other: Buffer | None = None) -> Loop:  # fmt: skip
        b = Body()
        v = b.load(source, index)
        if other is not None:
            v = b.op(op, v, b.load(other, index[:1]))
        if out is e:
            v = b.op("exp", v)
        space = [i, j][: len(out.shape)]
        reduction = Reduction(fold[0], ("r0", "r1")[: len(fold[1])], tuple(fold[1])) if fold else None
        return Loop((out,), ("i0", "i1")[: len(space)], out.shape, tuple(b.ops), (v,), (flat(out, space),), reduction)

    return program([x], [
        node(m, x, [i, k], ("max", [columns])), node(e, x, [i, j], None, "sub", m), node(s, e, [i, k], ("sum", [columns])),
        node(o, e, [i, j], None, "truediv", s), node(c, o, [k, i], ("sum", [rows])), node(t, o, [k, n], ("sum", [rows, columns])),
    ], [o, c, t])  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), [(S0, Expr.of(64)), (S0, S1), (Expr.of(33), S1)])
def test_softmax_of_any_size(rows: Expr, columns: Expr) -> None:
    plan, _ = compile_plan(softmax_and_sums(rows, columns))
    run = PythonPlan(plan)
    for a, b in ((5, 7), (300, 500), (1, 1)):
        x = torch.randn(a if not rows.is_const else 33, b if not columns.is_const else 64)
        o, c, t = run(x)
        want = x.softmax(-1)
        torch.testing.assert_close(o, want)
        torch.testing.assert_close(c, want.sum(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(t, want.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_of_any_size(dtype: torch.dtype) -> None:
    def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        var, mean = torch.var_mean(x, 1)
        return var, mean

    run = compiled(moments, [torch.randn(4, 64, dtype=dtype)], {(0, 1): "n"})
    for n in (3, 64, 1000):
        x = torch.randn(4, n, dtype=dtype) + 1000
        torch.testing.assert_close(run(x), moments(x))
