"""torch's loops over rows of a tensor (`map`, `scan`, `associative_scan`) and `wrap`:
unrolled into one graph for few rows (`tests/autograd/test_scans.py` tests many rows)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.wrap import wrap
from torch.utils import _pytree as pytree

import pycompiler
from pycompiler.ir import higher_order

W = torch.linspace(0.5, 1.5, 3)


def mapped(x: torch.Tensor) -> Any:
    return map_rows(lambda row, w: {"a": row * w, "b": (row.sum(),)}, x, W)


def scanned(x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry * 0.5 + row, (carry + row).sin()), torch.zeros(3), x)


def backwards(x: torch.Tensor) -> Any:
    return scan(lambda c, column: (c + column, c * 2), torch.zeros(4), x, dim=1, reverse=True)


def associative(x: torch.Tensor) -> Any:
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


def associative_tree(x: torch.Tensor) -> Any:
    def joined(a: Any, b: Any) -> Any:
        return {"u": a["u"] * b["u"], "v": [a["v"][0] + b["v"][0]]}

    return associative_scan(joined, {"u": x, "v": [x * 2]}, 0, reverse=True)


def scanned_tree(x: torch.Tensor) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return {"sum": carry["sum"] + row[0], "n": carry["n"] * 2}, {"o": (row[0] * 2,), "p": carry["sum"].sin()}

    return scan(step, {"sum": torch.zeros(3), "n": torch.ones(3)}, (x,), reverse=True)


def wrapped(x: torch.Tensor) -> Any:
    return wrap(lambda y: y.sin() + W, x)


PROGRAMS = [mapped, scanned, scanned_tree, backwards, associative, associative_tree, wrapped]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    if program is associative_tree and torch.__version__ < "2.15":
        pytest.skip("on the CPU older torches have no such scan")
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    given = [torch.linspace(-1, 2, 12).view(4, 3).requires_grad_() for _ in range(2)]
    made = [fn(x) for fn, x in zip((program, compiled), given, strict=True)]
    torch.testing.assert_close(made[1], made[0])
    for out in made:
        sum(t.sum() for t in pytree.tree_leaves(out)).backward()
    if (
        program not in (scanned, scanned_tree, backwards) or torch.__version__ >= "2.15"
    ):  # eager's gradient is wrong in older torch
        torch.testing.assert_close(given[1].grad, given[0].grad)


def test_what_does_not_carry_on_what_it_began_with_is_left_to_torch() -> None:
    def grows(x: torch.Tensor) -> Any:
        return scan(lambda carry, row: (torch.cat([carry, row]), row.clone()), torch.zeros(1), x)

    for rows in (3, 100):
        with pytest.raises(pycompiler.exc.Unsupported):
            pycompiler.compile(grows, backend="eager", fullgraph=True)(torch.ones(rows, 1))


@pytest.mark.skipif(torch.__version__ < "2.15", reason="on the CPU older torches have no such scan")
def test_a_break_is_at_the_call_of_the_operator() -> None:
    """Inside the operator, torch behaves differently under a compile, so the graph breaks at the call itself."""

    def one_row(x: torch.Tensor) -> Any:
        return associative_scan(lambda a, b: {"u": a["u"] * b["u"]}, {"u": x[:1]}, 0)

    x = torch.linspace(-1, 2, 12).view(4, 3)
    expected, found = one_row(x), pycompiler.compile(one_row, backend="eager")(x)
    assert type(found) is type(expected) is dict
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("program", [mapped, scanned, backwards, associative])
def test_results_that_reach_each_operand_are_not_joined(program: Callable[..., Any]) -> None:
    """A node for zero gradients is needed only for a result that does not reach all operands that require grad."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm

    x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_()
    pycompiler.compile(program, backend=backend, fullgraph=True)(x)
    assert [n for gm in graphs for n in gm.graph.nodes if n.target is higher_order.connected_copies] == []


THREE = [(3, 2), (2,), (2,)]
UNREACHED: dict[str, Callable[..., Any]] = {
    "map, unused": lambda xs, y, u: map_rows(lambda x, y, u: x * y, xs, y, u),
    "map, detached": lambda xs, y, u: map_rows(lambda x, y, u: (x * y).detach(), xs, y, u) + u,
    "map of rows alone": lambda xs, y, u: map_rows(lambda x, y, u: x.sin(), xs, y, u),
    "scan, its stack": lambda xs, y, u: scan(lambda c, x: (c.clone(), x.sin()), u, xs)[1],
    "scan, its carry": lambda xs, y, u: scan(lambda c, x: (x * 1.0, c.cos()), u, xs)[0],
}


@pytest.mark.skipif(torch.__version__ < "2.15", reason="eager's of older torches are wrong")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", UNREACHED)
def test_what_no_row_reads_has_a_gradient_of_zeros(name: str, backend: str) -> None:
    """The gradient is zeros, as from torch's operator, which is a single autograd node."""
    gradients = []
    for fn in (UNREACHED[name], pycompiler.compile(UNREACHED[name], backend=backend, fullgraph=True)):
        given = [torch.ones(shape, requires_grad=True) for shape in THREE]
        (fn(*given) ** 2).sum().backward()
        gradients.append([t.grad for t in given])
    for expected, found in zip(*gradients, strict=True):
        assert (expected is None) == (found is None)
    torch.testing.assert_close(*([g for g in gs if g is not None] for gs in gradients))
