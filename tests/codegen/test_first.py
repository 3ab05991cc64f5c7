"""Hand-made programs through scheduling, C++ and a plan: values against torch, kernels counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from kernel_harness import Body, buffer, compile_plan, loop, program, run, run_plan, whole  # noqa: F401

from pycompiler.ir.loops import Loop, Op, Program
from pycompiler.symbolic.expr import Expr

R, C = 48, 200


def softmax_program(rows: int = R, columns: int = C) -> Program:
    x, o = buffer("x", (rows, columns)), buffer("o", (rows, columns))
    m, e, s = buffer("m", (rows, 1)), buffer("e", (rows, columns)), buffer("s", (rows, 1))
    return program(
        [x],
        [
            loop(m, lambda b, i, r: b.load(x, [i[0], r[0]]), ("max", [columns])),
            loop(e, lambda b, i, r: b.op("exp", b.op("sub", b.load(x, i), b.load(m, [i[0], 0])))),
            loop(s, lambda b, i, r: b.load(e, [i[0], r[0]]), ("sum", [columns])),
            loop(o, lambda b, i, r: b.op("truediv", b.load(e, i), b.load(s, [i[0], 0]))),
        ],
        [o],
    )


def layer_norm_program(rows: int = R, columns: int = C) -> Program:
    """gelu, then layer_norm: erf, welford, rsqrt."""
    x, o, g = buffer("x", (rows, columns)), buffer("o", (rows, columns)), buffer("g", (rows, columns))
    w, c = buffer("w", (columns,)), buffer("c", (columns,))
    mean, m2, rstd = buffer("mean", (rows, 1)), buffer("m2", (rows, 1)), buffer("rstd", (rows, 1))

    def gelu(b: Body, i: Sequence[Expr], r: Sequence[Expr]) -> int:
        v = b.load(x, i)
        half = b.op("mul", v, b.const(0.5))
        return b.op("mul", half, b.op("add", b.op("erf", b.op("mul", v, b.const(0.5**0.5))), b.const(1.0)))

    def normal(b: Body, i: Sequence[Expr], r: Sequence[Expr]) -> int:
        centred = b.op("sub", b.load(g, i), b.load(mean, [i[0], 0]))
        scaled = b.op("mul", centred, b.load(rstd, [i[0], 0]))
        return b.op("add", b.op("mul", scaled, b.load(w, [i[1]])), b.load(c, [i[1]]))

    stats = loop(mean, lambda b, i, r: b.load(g, [i[0], r[0]]), ("welford", [columns]))
    stats = Loop(
        (mean, m2), stats.vars, stats.ranges, stats.body, stats.results, stats.store_index * 2, stats.reduction
    )
    return program(
        [x, w, c],
        [
            loop(g, gelu),
            stats,
            loop(rstd, lambda b, i, r: b.op("rsqrt", b.op("add", b.op("truediv", b.load(m2, i), b.const(float(columns))),
                                                          b.const(1e-5)))),
            loop(o, normal),
        ],
        [o],
    )  # fmt: skip


def test_softmax_is_one_kernel() -> None:
    plan, s = compile_plan(softmax_program())
    assert len(s.kernels) == 1
    assert s.kernels[0].reads == ["x"]
    assert s.kernels[0].writes == ["o"]
    x = torch.randn(R, C)
    x[3, 7] = float("inf")
    x[5, 9] = float("nan")
    torch.testing.assert_close(run_plan(plan, [x])[0], x.softmax(-1), equal_nan=True)


def test_gelu_layer_norm_is_one_kernel() -> None:
    plan, s = compile_plan(layer_norm_program())
    assert len(s.kernels) == 1
    assert s.kernels[0].writes == ["o"]
    x, w, c = torch.randn(R, C), torch.randn(C), torch.randn(C)
    expected = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (C,), w, c)
    torch.testing.assert_close(run_plan(plan, [x, w, c])[0], expected)


def test_pointwise_chain() -> None:
    x, y, a, o = buffer("x", (R, C)), buffer("y", (C,)), buffer("a", (R, C)), buffer("o", (R, C))
    p = program(
        [x, y],
        [
            loop(a, lambda b, i, r: b.op("add", b.load(x, i), b.load(y, [i[1]]))),
            loop(o, lambda b, i, r: b.op("maximum", b.load(a, i), b.const(0.0))),
        ],
        [o],
    )
    plan, s = compile_plan(p)
    assert [k.writes for k in s.kernels] == [["o"]]
    X, Y = torch.randn(R, C), torch.randn(C)
    torch.testing.assert_close(run_plan(plan, [X, Y])[0], (X + Y).relu())


@pytest.mark.parametrize("shape", [(7,), (5, 33), (300, 500), (100_000,)])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "argmax", "argmin"])
def test_full_reduction(kind: str, shape: tuple[int, ...]) -> None:
    integer = kind.startswith("arg")
    x, o = buffer("x", shape), buffer("o", (), torch.int64 if integer else torch.float32)
    p = program([x], [loop(o, lambda b, i, r: b.load(x, r), (kind, shape))], [o])
    t = torch.rand(shape) * 0.01 + (0.995 if kind == "prod" else 0)
    expected = {"max": t.amax(), "min": t.amin()}.get(kind)
    expected = getattr(torch, kind)(t) if expected is None else expected
    torch.testing.assert_close(run(p, t)[0], expected, rtol=1e-4, atol=1e-30)
    if kind in ("max", "min"):
        t.view(-1)[5] = float("nan")
        assert run(p, t)[0].isnan()
    if integer:
        t.view(-1)[5] = float("nan")
        assert run(p, t)[0] == 5


@pytest.mark.parametrize("kind", ["sum", "max", "argmin"])
def test_column_reduction(kind: str) -> None:
    x, o = buffer("x", (R * 40, C)), buffer("o", (C,), torch.int64 if kind == "argmin" else torch.float32)
    p = program([x], [loop(o, lambda b, i, r: b.load(x, [r[0], i[0]]), (kind, [R * 40]))], [o])
    t = torch.randn(R * 40, C)
    expected = {"sum": t.double().sum(0).float(), "max": t.amax(0), "argmin": t.argmin(0)}[kind]
    torch.testing.assert_close(run(p, t)[0], expected, rtol=1e-5, atol=5e-5)


def test_transposed_copy() -> None:
    x, o = buffer("x", (130, 70)), buffer("o", (70, 130))
    p = program([x], [loop(o, lambda b, i, r: b.load(x, [i[1], i[0]]))], [o])
    t = torch.randn(130, 70)
    torch.testing.assert_close(run(p, t)[0], t.T.contiguous())


def gather_program() -> Program:
    table, at, o = buffer("table", (10, 6)), buffer("at", (20,), torch.int64), buffer("o", (20, 6))

    def row(b: Body, i: Sequence[Expr], r: Sequence[Expr]) -> int:
        k = b.load(at, [i[0]])
        return b.add(Op("load", (), torch.float32, ("table", 6 * Expr.sym(f"%{k}") + i[1])))

    return program([table, at], [loop(o, row)], [o])


def test_gather_checks_its_index() -> None:
    table, at = torch.randn(10, 6), torch.randint(0, 10, (20,))
    torch.testing.assert_close(run(gather_program(), table, at)[0], table[at])
    for bad in (10, -1, 2**62):
        at[7] = bad
        with pytest.raises(IndexError):
            run(gather_program(), table, at)


def test_scatter_add() -> None:
    at, v, o = buffer("at", (20,), torch.int64), buffer("v", (20, 6)), buffer("o", (10, 6))
    fill = loop(o, lambda b, i, r: b.const(0.0))
    b = Body()
    i = (Expr.sym("i0"), Expr.sym("i1"))
    k = b.load(at, [i[0]])
    value = b.load(v, i)
    add = Loop((o,), ("i0", "i1"), (Expr.of(20), Expr.of(6)), tuple(b.ops), (value,),
               (6 * Expr.sym(f"%{k}") + i[1],), None, "add", "o")  # fmt: skip
    p = program([at, v], [fill, add], [o])
    index, values = torch.randint(0, 10, (20,)), torch.randn(20, 6)
    expected = torch.zeros(10, 6).index_add(0, index, values)
    torch.testing.assert_close(run(p, index, values)[0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    x, o = buffer("x", (1000,), dtype), buffer("o", (1000,), dtype)
    half = dtype in (torch.bfloat16, torch.float16)

    def fill(b: Body, i: Sequence[Expr], r: Sequence[Expr]) -> int:
        v = b.load(x, i)
        v = b.op("cast", v, dtype=torch.float32) if half else v
        v = b.op("mul", v, b.const(3, torch.float32 if half else dtype))
        return b.op("cast", v, dtype=dtype) if half else v

    p = program([x], [loop(o, fill)], [o])
    t = (torch.randn(1000) * 50).to(dtype)
    assert torch.equal(run(p, t)[0], t * 3)


def test_integer_division_by_zero_raises() -> None:
    x, o = buffer("x", (10,), torch.int64), buffer("o", (10,), torch.int64)
    p = program([x], [loop(o, lambda b, i, r: b.op("floordiv", b.const(7, torch.int64), b.load(x, i)))], [o])
    t = torch.tensor([-3, -2, -1, 1, 2, 3, 4, 5, 6, 7])
    assert torch.equal(run(p, t)[0], 7 // t)
    t[4] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(p, t)
