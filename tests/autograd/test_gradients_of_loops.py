"""Gradients of torch's `while_loop` in one graph: they match eager at every length, for all tensors that the passes read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
W = torch.nn.Parameter(torch.tensor([0.5, -1.5, 1.2, 0.9]))


def written_out(test: Any, body: Any, carried: Any) -> Any:
    while test(*carried):
        carried = body(*carried)
    return carried


PROGRAMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "counted": lambda loop, x: loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * W + x.shape[0]), (torch.tensor(0), x * 1)
    )[1],
    "by data": lambda loop, x: loop(lambda y: y.abs().sum() < 50 * x.shape[0], lambda y: (y * 2 + y.sin(),), (x + 1,))[
        0
    ],
    "what is around has gradients, too": lambda loop, x: loop(
        lambda i, y: i < 4, lambda i, y: (i + 1, y * (x * 2).cos() + y), (torch.tensor(0), x + 1)
    )[1],
    "two that are carried": lambda loop, x: loop(
        lambda i, y, u: i < 4,
        lambda i, y, u: (i + 1, y * W.cos() + u, u * 1.1 + y.sum(0)),
        (torch.tensor(0), x + 1, x.sum(0)),
    )[1:],
    "one that ends": lambda loop, x: loop(
        lambda i, y, u: i < 3,
        lambda i, y, u: (i + 1, y.detach() * W, u * y),
        (torch.tensor(0), x * 2, x.exp()),
    )[2],
    "no pass": lambda loop, x: loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * W), (torch.tensor(0), x * 2))[1],
    "a branch in it": lambda loop, x: loop(
        lambda i, y: i < 4,
        lambda i, y: (
            i + 1,
            torch.cond(i > 1, lambda y: y * W, lambda y: y.sin() * y.shape[0], (y,))
            if loop is while_loop
            else (y * W if i > 1 else y.sin() * y.shape[0]),
        ),
        (torch.tensor(0), x * 2),
    )[1],
}


def gradients(run: Callable[[torch.Tensor], Any], n: int) -> list[torch.Tensor]:
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(n)).requires_grad_()
    W.grad = None
    made = run(x)
    results = made if isinstance(made, tuple) else (made,)
    assert all(t.requires_grad for t in results)
    sum((t * t).mean() for t in results).backward()  # type: ignore[union-attr]
    found = [torch.zeros_like(t) if t.grad is None else t.grad for t in (x, W)]
    return [*(t.detach() for t in results), *found]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_eager_gives(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = pycompiler.compile(lambda x: program(while_loop, x), backend=backend, fullgraph=True)
    for n in range(2, 15):
        got, want = gradients(compiled, n), gradients(lambda x: program(written_out, x), n)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert compiled.counters()["compiles"] == 2


def test_they_are_torchs() -> None:
    """A loop without a pass is excluded: torch's backward goes through a pass that never ran."""
    for name in PROGRAMS.keys() - {"no pass"}:
        program = PROGRAMS[name]
        torch.testing.assert_close(
            gradients(lambda x, p=program: p(while_loop, x), 3),
            gradients(lambda x, p=program: p(written_out, x), 3),  # type: ignore[misc]
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_gradients(backend: str) -> None:
    program, found = PROGRAMS["counted"], []
    compiled = pycompiler.compile(lambda x: program(while_loop, x), backend=backend)
    for run in (compiled, lambda x: program(written_out, x)):
        x = torch.ones(3, 4, requires_grad=True)
        (g,) = torch.autograd.grad((run(x) ** 2).sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
        found.append(torch.autograd.grad((g * g).sum(), (x, W)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_grad_mode(backend: str) -> None:
    program = PROGRAMS["counted"]
    compiled = pycompiler.compile(lambda x: program(while_loop, x), backend=backend, fullgraph=True)
    with torch.no_grad():
        x = torch.ones(3, 4, requires_grad=True)
        got = compiled(x)
        torch.testing.assert_close(got, program(written_out, x))
        assert not got.requires_grad


RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: torch.ones_like(x), lambda x: x * 2, (x,)),
    "while_loop": lambda x: while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y.detach() * 2), (torch.tensor(0), x * 1)
    )[1],
    "scan": lambda x: scan(lambda c, row: (c + row, c * row), x[0] * 1, x)[1],
}


@pytest.mark.skipif(torch.__version__ < "2.15", reason="older torches have other scans")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_no_leaves_and_may_be_written(name: str, backend: str) -> None:
    x = torch.ones(20, 3, requires_grad=True)
    made = RESULTS[name](x)
    y = pycompiler.compile(lambda x: RESULTS[name](x).mul_(3), backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(y, made * 3)
    assert y.requires_grad and not y.is_leaf
