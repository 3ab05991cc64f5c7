"""Errors that only a call can detect: reported by the kernel's return value, whatever the number of threads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_harness import Body, buffer, compile_plan, loop, lowered, program, run_plan

import pycompiler
from pycompiler.capture.recording.data_errors import ErrorsOfData
from pycompiler.codegen.cpp import generate
from pycompiler.ir.loops import Loop, Op
from pycompiler.operators.value_checks import within
from pycompiler.symbolic.expr import Expr

N = 40_000


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_one_bad_index_among_many(threads: int) -> None:
    table, ids = torch.randn(100, 8), torch.randint(0, 100, (N,))
    plan, _ = compile_plan(lowered(lambda t, i: t[i] * 2, [table, ids]))
    torch.testing.assert_close(run_plan(plan, [table, ids], threads)[0], table[ids] * 2)
    ids[N // 3] = 100
    with pytest.raises(IndexError):
        run_plan(plan, [table, ids], threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_both_errors_at_once_are_one_of_them(threads: int) -> None:
    table, ids, divisor = torch.randint(0, 9, (100,)), torch.randint(0, 100, (N,)), torch.randint(1, 9, (N,))
    plan, _ = compile_plan(lowered(lambda t, i, d: t[i] // d, [table, ids, divisor]))
    assert torch.equal(run_plan(plan, [table, ids, divisor], threads)[0], table[ids] // divisor)
    ids[5], divisor[N - 5] = 100, 0
    with pytest.raises((IndexError, RuntimeError)):
        run_plan(plan, [table, ids, divisor], threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_that_share_several_nests_report_an_error_of_each(threads: int) -> None:
    """Each of so many nests is a function of its own.  A team of threads calls them, and joins their errors."""
    ids = torch.randint(0, 100, (N,))
    tables = [torch.randn(100, width) for width in (2, 3, 5, 7)]
    plan, _ = compile_plan(lowered(lambda i, *tables: [t[i] * 2 for t in tables], [ids, *tables]))
    assert plan.source is not None
    teams = re.findall(r"#pragma omp parallel.*", plan.source)
    assert teams and all("reduction(max:error)" in team for team in teams)
    for got, table in zip(run_plan(plan, [ids, *tables], threads), tables, strict=True):
        assert torch.equal(got, table[ids] * 2)
    ids[N // 3] = 100
    with pytest.raises(IndexError):
        run_plan(plan, [ids, *tables], threads)


T = torch.randn(12, 3)
ONE = torch.tensor([0])
INDEXED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index": lambda i: T[:, None][i] * 2,
    "second dimension": lambda i: T[:, i] * 2,
    "index_put": lambda i: T.index_put((i,), T[:1], accumulate=True),
    "gather": lambda i: T.gather(1, i[None]) * 2,
    "scatter": lambda i: T.scatter(1, i.expand(12, 1), 1.0) * 2,
    "scatter_add": lambda i: T.scatter_add(0, i[None], T) * 2,
    "index_select": lambda i: T.index_select(1, i) * 2,
    "index_add": lambda i: T.index_add(0, i, T[:1]) * 2,
    "embedding": lambda i: torch.nn.functional.embedding(i, T) * 2,
}


@pytest.mark.parametrize("bad", [-1, 12, -13, 2**40])
@pytest.mark.parametrize("name", INDEXED)
def test_a_wrong_index_raises_what_eager_raises(name: str, bad: int) -> None:
    def outcome(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[type, str, torch.Tensor]:
        try:
            return type(None), "", run(torch.tensor([bad]))
        except (IndexError, RuntimeError) as error:
            return type(error), str(error), T

    compiled = pycompiler.compile(INDEXED[name], fullgraph=True)
    assert torch.equal(compiled(ONE), INDEXED[name](ONE))
    got, want = outcome(compiled), outcome(INDEXED[name])
    assert got[0] is want[0]
    assert torch.equal(got[2], want[2])
    if bad < 2**30:  # an error code has no bits for more
        assert got[1] == want[1]


@pytest.mark.parametrize(
    ("dim", "text"), [(15, "index 3 is out of bounds for dimension 15 with"), (16, "index out of range in")]
)
def test_an_error_code_omits_a_dimension_that_it_has_no_bits_for(dim: int, text: str) -> None:
    x, places = torch.randn([1] * dim + [3]), [1] * dim + [2]
    plan, _ = compile_plan(lowered(lambda x, i: x.gather(dim, i), [x, torch.tensor([0, 2]).view(places)]))
    assert torch.equal(run_plan(plan, [x, torch.tensor([2, 0]).view(places)])[0].flatten(), x.flatten()[[2, 0]])
    with pytest.raises(RuntimeError, match=text):
        run_plan(plan, [x, torch.tensor([0, 3]).view(places)])


V = torch.arange(12)
UNREAD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "first element": lambda i: V[i][0] * 2,
    "every other": lambda i: T[i][::2] + 1,
    "columns of a row": lambda i: T[i][:1, :2].exp(),
    "through a constant index": lambda i: T[i][torch.tensor([0])],
    "cut": lambda i: torch.nn.functional.pad(V[i], (0, -1)) * 2,
    "joined": lambda i: torch.cat([T[i][:1], T]) * 2,
    "of a number": lambda i: torch.ones(12)[i] + 1,
    "embedding of zeros": lambda i: torch.nn.functional.embedding(i, torch.zeros(12, 2)).sum(),
    "where never": lambda i: torch.where(torch.zeros(2, dtype=torch.bool), V[i], 1),
    "division": lambda i: (10 // (i - 12))[:1] + 1,
    "divisions joined": lambda i: torch.cat([10 % (i - 12), i])[1:3] * 2,
    "loss": lambda i: torch.nn.functional.nll_loss(torch.ones(2, 12), i),
    "index_add": lambda i: torch.ones(12).index_add(0, i, torch.ones(2))[:1],
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_nobody_reads_is_checked(name: str) -> None:
    compiled, good = pycompiler.compile(UNREAD[name], fullgraph=True), torch.tensor([0, 1])
    torch.testing.assert_close(compiled(good), UNREAD[name](good))
    with pytest.raises((IndexError, RuntimeError)) as expected:
        UNREAD[name](torch.tensor([0, 12]))
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        compiled(torch.tensor([0, 12]))


def halved(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return table[i] / 2


def test_an_error_has_the_lines_of_the_program_that_a_kernel_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ErrorsOfData, "again", lambda self, *, ours: False)  # else the frame raises it, at one of them

    def f(table: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        there = halved(table, i)
        return (there + torch.nn.functional.embedding(j, table)).relu()

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x // y

    first = f.__code__.co_firstlineno
    embedding, index = f"{__file__}:{first + 2} in f", f"{__file__}:{halved.__code__.co_firstlineno + 1} in halved"
    good, bad = torch.tensor([1]), torch.tensor([12])
    for table, k in itertools.product((T, T.clone().requires_grad_()), ((good, bad), (bad, good))):
        with pytest.raises(IndexError) as error:
            pycompiler.compile(f)(table, *k)
        (note,) = error.value.__notes__
        assert embedding in note and index in note
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as division:
        pycompiler.compile(g)(good, torch.tensor([0]))
    assert f"{__file__}:{g.__code__.co_firstlineno + 1} in g" in division.value.__notes__[0]


def test_results_do_not_depend_on_threads() -> None:
    x = torch.randn(600, 300)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(-1), x.amax(0), (x * 2).argmax(), x.exp().T.contiguous()

    plan, _ = compile_plan(lowered(f, [x]))
    one = run_plan(plan, [x], 1)
    for threads in (2, 3, 7):
        assert all(torch.equal(a, b) for a, b in zip(one, run_plan(plan, [x], threads), strict=True))


def test_a_fixed_number_of_threads_repeats_bit_for_bit() -> None:
    x = torch.randn(3000, 64)
    plan, _ = compile_plan(lowered(lambda x: (x.sum(), x.sum(0), x.var()), [x]))
    first = run_plan(plan, [x], 2)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run_plan(plan, [x], 2), strict=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", [(N,), (8, N // 8), (N // 8, 8)])
def test_values_out_of_range_are_noticed_by_vector_loops(shape: tuple[int, ...], threads: int) -> None:
    """A check per element would prevent vector loops, and be ten times slower."""
    p, t = torch.rand(shape), torch.rand(shape)

    def loss(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (within(p, "unit input") - within(t, "unit target")).exp()

    for fn in (loss, lambda p, t: loss(p, t).sum(), lambda p, t: loss(p, t).sum(0)):
        plan, made = compile_plan(lowered(fn, [p, t]))
        pragmas = re.findall(r"#pragma omp simd.*", generate(made).text)
        assert any("wrong" in pragma for pragma in pragmas)
        torch.testing.assert_close(run_plan(plan, [p, t], threads)[0], fn(p, t))
        for k, text in enumerate(["all elements of input", "all elements of target"]):
            for at in (0, N // 2, N - 1):
                bad = [p.clone(), t.clone()]
                bad[k].view(-1)[at] = 1.5
                with pytest.raises(RuntimeError, match=text):
                    run_plan(plan, bad, threads)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("wrong", [8, -1])
def test_an_index_that_no_operation_checks_stays_within_the_buffer(wrong: int, width: int) -> None:
    x, i, o = buffer("x", (8, width)), buffer("i", (4,), torch.int64), buffer("o", (4, width))

    def fill(body: Any, at: Any, _: Any) -> int:
        place = Expr.sym(f"%{body.load(i, [at[0]])}")
        return body.add(Op("load", (), torch.float32, ("x", place * width + at[1])))  # type: ignore[no-any-return]

    plan, _ = compile_plan(program([x, i], [loop(o, fill)], [o]))
    assert "pyc_checked" in plan.source and ", 8, &error)" in plan.source
    rows, places = torch.randn(8, width), torch.tensor([7, 0, 3, 7])
    [found] = run_plan(plan, [rows, places])
    assert torch.equal(found, rows[places])
    places[2] = wrong
    with pytest.raises(IndexError):
        run_plan(plan, [rows, places])


@pytest.mark.parametrize("wrong", [8, -1])
def test_a_place_that_no_operation_checks_stays_within_the_buffer(wrong: int) -> None:
    i, v, o = buffer("i", (4,), torch.int64), buffer("v", (4, 3)), buffer("o", (8, 3))
    body, at = Body(), (Expr.sym("i0"), Expr.sym("i1"))
    place = Expr.sym(f"%{body.load(i, at[:1])}") * 3 + at[1]
    body.load(v, at)
    add = Loop((o,), ("i0", "i1"), v.shape, tuple(body.ops), (1,), (place,), None, "add", "o")
    plan, _ = compile_plan(program([i, v], [loop(o, lambda body, *_: body.const(0.0)), add], [o]))
    assert "pyc_checked" in plan.source
    places, values = torch.tensor([7, 0, 3, 7]), torch.randn(4, 3)
    [found] = run_plan(plan, [places, values])
    torch.testing.assert_close(found, torch.zeros(8, 3).index_add(0, places, values))
    places[2] = wrong
    with pytest.raises(IndexError):
        run_plan(plan, [places, values])
