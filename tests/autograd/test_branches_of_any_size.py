"""Branches and loops on a tensor's value: compiled once for all sizes, forward and backward, with size symbols as
inputs of the nested graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
LENGTHS = range(2, 15)
W = torch.nn.Parameter(torch.tensor([0.5, -1.5, 2.0, 1.0]))
Run = Callable[..., Any]


def branch(pred: Any, yes: Any, no: Any, given: tuple[Any, ...]) -> Any:
    """The result of eager's `torch.cond`, which compiles."""
    return yes(*given) if pred else no(*given)


def loop(test: Any, body: Any, carried: Any) -> Any:
    while test(*carried):
        carried = body(*carried)
    return carried


PROGRAMS: dict[str, Callable[[Run, Run, torch.Tensor, float], Any]] = {
    "sizes of operands": lambda cond, _, x, k: cond(
        x.sum() > 0, lambda y: (y * y.shape[0] * W).sin(), lambda y: y * W - y.shape[0], (x,)
    ),
    "sizes of what is around": lambda cond, _, x, k: cond(
        x.sum() > 0, lambda y: y / x.shape[0], lambda y: y * (W * x.shape[0]), (x * 2,)
    ),
    "results of other sizes": lambda cond, _, x, k: cond(
        x.sum() > 0, lambda y: (torch.cat([y, y]), y.amax(0)), lambda y: (y.repeat(2, 1), y.sum(0)), (x,)
    ),
    "no gradient in one": lambda cond, _, x, k: cond(
        x.sum() > 0, lambda y: y * 2, lambda y: y * W * (x[:, :1] * 3), (x * 2,)
    ),
    "nested": lambda cond, _, x, k: cond(
        x.sum() > 0,
        lambda y: cond(y.mean() > 0.5, lambda z: z * z.shape[0] * W, lambda z: z.cumsum(0) + x.shape[0], (y,)),
        lambda y: y.cumsum(0) - x.shape[0],
        (x * 2,),
    ),
    "in a checkpoint": lambda cond, _, x, k: checkpoint(
        lambda y: cond(y.sum() > 0, lambda z: (z * z.shape[0]).sin(), lambda z: z.cos() * W, (y,)),
        x,
        use_reentrant=False,
    ),
    "a float that changes": lambda cond, _, x, k: cond(
        x.sum() > 0, lambda y: (y * k).sin() * W, lambda y: y * y + k, (x,)
    ),
    "loop": lambda _, loop, x, k: loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5 + x.shape[0]), (torch.tensor(0), x.detach() + 1)
    )[1],
    "loop by data": lambda _, loop, x, k: loop(
        lambda y: y.abs().sum() < 50 * x.shape[0], lambda y: (y * 2 + y.shape[0],), (x.detach() + 1,)
    ),
    "branch in a loop": lambda cond, loop, x, k: loop(
        lambda i, y: i < 4,
        lambda i, y: (i + 1, cond(i > 1, lambda y: y * y.shape[0], lambda y: y + 1, (y,))),
        (torch.tensor(0), x.detach() * 2),
    )[1],
}


def flat(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def gradients(made: Any, x: torch.Tensor) -> list[Any]:
    W.grad = None
    if flat(made)[0].requires_grad:
        sum((t * t).sum() for t in flat(made)).backward()  # type: ignore[union-attr]
    return [
        torch.zeros_like(t) if t.grad is None else t.grad for t in (x, W)
    ]  # a branch that does not read W gives zeros


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_all_lengths(name: str, backend: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = pycompiler.compile(
        lambda x, k: program(torch.cond, while_loop, x, k), backend=backend, fullgraph=True, dynamic=dynamic
    )
    for n in LENGTHS:
        for sign in (1, -1):
            x = (torch.rand(n, 4, generator=torch.Generator().manual_seed(n)) * sign).requires_grad_()
            y = x.detach().clone().requires_grad_()
            k = n * 0.37 if "float" in name else 1.0
            got, want = compiled(x, k), program(branch, loop, y, k)
            torch.testing.assert_close(got, want)
            assert [t.stride() for t in flat(got)] == [t.stride() for t in flat(want)]
            torch.testing.assert_close(gradients(got, x), gradients(want, y))
    assert compiled.counters()["compiles"] == (1 if dynamic else 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_branch_asks_of_a_size_is_a_guard(backend: str) -> None:
    def program(cond: Run, x: torch.Tensor) -> Any:
        return cond(x.sum() > 0, lambda y: y * 2 if y.shape[0] > 6 else y * 3, lambda y: y - 1, (x,))

    compiled = pycompiler.compile(lambda x: program(torch.cond, x), backend=backend, fullgraph=True, dynamic=True)
    for n in (9, 3, 12, 7, 6, 2):
        for sign in (1.0, -1.0):
            x = torch.full((n,), sign)
            torch.testing.assert_close(compiled(x), program(branch, x))
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_second_gradients(backend: str) -> None:
    program = PROGRAMS["sizes of operands"]
    compiled = pycompiler.compile(lambda x: program(torch.cond, while_loop, x, 1.0), backend=backend, dynamic=True)
    for n in (3, 5, 8):
        found = []
        for run in (compiled, lambda x: program(branch, loop, x, 1.0)):
            x = torch.ones(n, 4, requires_grad=True)
            (g,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
            found.append(torch.autograd.grad((g * g).sum(), x)[0])
        torch.testing.assert_close(*found)
    assert compiled.counters()["compiles"] == 1
