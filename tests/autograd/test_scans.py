"""`scan` and `map` over many rows, or over a symbolic number of rows: one call in the graph, compiled once for all lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch.utils import _pytree as pytree

import pycompiler
from tests.harness.compare import assert_same, observe

BACKENDS = ("eager", "aot_eager", "native")
LENGTHS = (3, 40, 5, 17, 200)
W = torch.nn.Parameter(torch.linspace(-0.4, 0.5, 9, dtype=torch.float64).view(3, 3))


def by_hand(step: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    rows = range(pytree.tree_leaves(xs)[0].shape[dim])
    carry, made = init, []
    for i in reversed(rows) if reverse else rows:
        carry, out = step(carry, pytree.tree_map(lambda t, i=i: t.select(dim, i), xs))
        made.append(out)
    if reverse:
        made.reverse()
    return carry, pytree.tree_map(lambda *ts: torch.stack(ts, dim), *made)


def rows_by_hand(fn: Any, xs: Any, *others: Any) -> Any:
    rows = range(pytree.tree_leaves(xs)[0].shape[0])
    return pytree.tree_map(
        lambda *ts: torch.stack(ts), *(fn(pytree.tree_map(lambda t, i=i: t[i], xs), *others) for i in rows)
    )


Program = Callable[[Any, Any, torch.Tensor, torch.Tensor], Any]
"""Takes `scan` or its replacement, `map` or its replacement, rows of three numbers, and three numbers."""


def recurrent(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    def step(c: torch.Tensor, row: torch.Tensor) -> Any:
        c = torch.tanh(row + c @ W)
        return c, c * 2

    return scan(step, h, x)


def carried_without_gradients(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return scan(lambda c, row: (c * 0.5 + row * h, c.sin()), torch.zeros(3, dtype=torch.float64), x)


def a_tree(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    def step(carry: Any, row: Any) -> Any:
        a, (b,) = row["a"], row["b"]
        return {"sum": carry["sum"] * 0.9 + a, "n": carry["n"] + 1}, (a * carry["sum"], [b.sum() * h])

    return scan(step, {"sum": h * 1, "n": torch.tensor(0)}, {"a": x, "b": (x.sin(),)})


def the_other_way(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return scan(lambda c, row: (c * 0.5 + row, (c * row).sin()), h, x.t().contiguous(), dim=1, reverse=True)


def numbers_of_sizes(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return scan(lambda c, row: (c * 0.5 + row / x.shape[0], row * c.shape[0]), h, x)


def what_nobody_reads(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return scan(lambda c, row: (c * 1.0, row.sin()), h, x)[1]


def scans_in_scans(scan: Any, _: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    def step(c: torch.Tensor, row: torch.Tensor) -> Any:
        inner, outs = scan(lambda d, one: (d * 0.5 + one * row, d.sin()), c, x * 0.1)
        return inner, outs.sum(0)

    return scan(step, h, x)


def rows(_: Any, mapped: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return mapped(lambda row, w: {"a": (row @ W).sin() * w, "b": (row.sum(),)}, x, h)


def rows_of_two(_: Any, mapped: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return mapped(lambda row: row[0] * row[1].cos() + h, (x, x * 2))


PROGRAMS = [
    recurrent, carried_without_gradients, a_tree, the_other_way, numbers_of_sizes, what_nobody_reads, rows, rows_of_two,
]  # fmt: skip
pytestmark = pytest.mark.skipif(torch.__version__ < "2.15", reason="older torches have other scans")


def compiled_of(program: Program, backend: str) -> Any:
    def captured(x: torch.Tensor, h: torch.Tensor) -> Any:
        return program(scan, map_rows, x, h)

    return pycompiler.compile(captured, backend=backend, fullgraph=True)


def given(n: int, grad: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 2, 3 * n, dtype=torch.float64).view(n, 3)
    return x.requires_grad_(grad), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64).requires_grad_(grad)


def results_and_gradients(fn: Callable[..., Any], x: torch.Tensor, h: torch.Tensor) -> Any:
    made = fn(x, h)
    loss = sum(((t * t).sum() for t in pytree.tree_leaves(made) if t.is_floating_point()), torch.zeros(()))
    return made, torch.autograd.grad(loss, (x, h, W), allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_two_compiles_for_all_lengths(program: Program, backend: str) -> None:
    compiled = compiled_of(program, backend)
    for n in LENGTHS:
        found = results_and_gradients(compiled, *given(n))
        expected = results_and_gradients(lambda x, h: program(by_hand, rows_by_hand, x, h), *given(n))
        assert_same(found, expected, strides=program is not the_other_way)  # `by_hand` lays out dimension 1 otherwise
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_without_gradients(program: Program, backend: str) -> None:
    compiled = compiled_of(program, backend)
    for grad in (False, True):
        with torch.no_grad() if grad else torch.enable_grad():
            for n in (40, 20):
                made, x, h = compiled(*given(n, grad)), *given(n, grad)
                expected = program(by_hand, rows_by_hand, x, h)
                assert_same(made, expected, history=False, strides=program is not the_other_way)
                assert not any(t.requires_grad for t in pytree.tree_leaves(made)) or program in (recurrent, rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scans_in_scans(backend: str) -> None:
    compiled = compiled_of(scans_in_scans, backend)
    for n in (20, 30):
        found = results_and_gradients(compiled, *given(n))
        assert_same(found, results_and_gradients(lambda x, h: scans_in_scans(by_hand, None, x, h), *given(n)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives(backend: str) -> None:
    found = []
    for fn in (compiled_of(recurrent, backend), lambda x, h: recurrent(by_hand, None, x, h)):
        x, h = given(20)
        carry, outs = fn(x, h)
        (grad,) = torch.autograd.grad((carry * outs).sum(), h, create_graph=True)
        found.append((grad, *torch.autograd.grad((grad * grad).sum(), (x, h, W))))
    assert_same(*found)


def test_the_graph_has_one_call() -> None:
    graphs = []
    fn = lambda x, h: recurrent(scan, None, x, h)  # noqa: E731
    pycompiler.compile(fn, backend=lambda gm, _: graphs.append(gm) or gm.forward)(*given(100))
    assert len(graphs) == 1 and len([n for n in graphs[0].graph.nodes if n.op == "call_function"]) < 12


def steps_that(what: str, said: list[int]) -> Callable[..., Any]:
    def step(c: torch.Tensor, row: torch.Tensor) -> Any:
        if what == "write what they made":
            row = row.clone().add_(1)
            c = c.clone().mul_(0.5)
        if what == "draw":
            row = torch.nn.functional.dropout(row, 0.5)
        if what == "act":
            said.append(1)
        if what == "grow":
            return torch.cat([c, row]), row * 1
        return (c, row) if what == "give back" else (c + row, row * 2)

    return step


@pytest.mark.parametrize("what", ["write what they made", "draw", "grow"])
def test_as_eager(what: str) -> None:
    def fn(x: torch.Tensor, h: torch.Tensor) -> Any:
        return scan(steps_that(what, []), h, x)

    found, expected = (observe(f, given(20, False)) for f in (pycompiler.compile(fn, backend="aot_eager"), fn))
    assert (expected.error is not None) == (what == "grow") and type(found.error) is type(expected.error)
    assert_same((found.result, found.world, found.rng), (expected.result, expected.world, expected.rng))


@pytest.mark.parametrize(("what", "times"), [("act", 20), ("give back", 0)])
def test_what_torch_refuses_is_done_row_by_row(what: str, times: int) -> None:
    said: list[int] = []
    compiled = pycompiler.compile(lambda x, h: scan(steps_that(what, said), h, x), backend="aot_eager", fullgraph=True)
    found = compiled(*given(20, False))
    assert len(said) == times
    x, h = given(20, False)
    assert_same(found, by_hand(steps_that(what, []), h, x))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_associative_scan_has_two_compiles_for_all_lengths(backend: str, reverse: bool) -> None:
    """The levels of the scan follow from the length: they may not be unrolled under assumptions about each half."""

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        def both(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        return associative_scan(both, (a.cos(), b), dim=1, reverse=reverse, combine_mode="generic")

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for n in (12, 17, 9, 3, 40):
        found = []
        for fn in (program, compiled):
            a, b = (torch.linspace(-1, k, 6 * n, dtype=torch.float64).view(2, n, 3).requires_grad_() for k in (2, 3))
            made = fn(a, b)
            loss = made[0].sum() + made[1].sin().sum()
            found.append((made, torch.autograd.grad(loss, (a, b))))
        assert_same(found[1][0], found[0][0])
        assert_same(found[1][1], found[0][1], strides=False)
    assert compiled.counters()["compiles"] == 2
