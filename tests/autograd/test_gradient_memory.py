"""Memory of gradients: they share memory with each other, and with the backward's arguments, exactly where eager's do.

Autograd adds the gradients of a second backward to the first ones in place: wrongly shared memory gives a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler

BACKENDS = ["aot_eager", "native"]
_COLUMN = torch.tensor([[2.0], [3.0], [4.0]])

# name -> (function, shapes of its arguments)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "equal gradients, one a view": (lambda x, y: x.view(3, 1) * _COLUMN + y * _COLUMN, [(3,), (3, 1)]),
    "equal gradients": (lambda x, y: x * 3 + y * 3, [(3,), (3,)]),
    "equal gradients, transposed": (lambda x, y: x.t() * 3 + y * 3, [(2, 2), (2, 2)]),
    "one for both": (lambda x, y: x + y, [(3,), (3,)]),
    "pieces": (lambda x, y: torch.cat([x, y]), [(3,), (2,)]),
    "pieces of products by one": (lambda x, y: torch.cat([x * 1.0, y / 1]), [(3,), (2,)]),
    "pieces of sums with zero": (lambda x, y: torch.cat([x + 0, -(-y)]), [(3,), (2,)]),
    "piece of a stack": (lambda x, y: torch.cat([torch.stack([x])[0], y]), [(3,), (2,)]),
    "piece of a sum": (lambda x, y: torch.cat([x.sum(0), y]), [(1, 3), (2,)]),
    "bias of layer_norm in a piece": (lambda x, w, b: torch.cat([b[:1], F.layer_norm(x, (3,), w, b)]), [(3,)] * 3),
    "bias of layer_norm, transposed": (lambda x, w, b: F.layer_norm(x, (2, 3), w, b).t(), [(2, 3)] * 3),
    "bias of linear in a piece": (lambda x, w, b: torch.cat([F.linear(x, w, b), x[:1]]), [(3,), (3, 3), (3,)]),
    "dropout of nothing": (lambda x, y: torch.cat([F.dropout(x, 0.0), y]), [(3,), (2,)]),
    "pooling of nothing": (lambda x, y: torch.cat([F.avg_pool1d(x[None], 1).view(3), y]), [(1, 3), (2,)]),
}


# Here the order of arrival decides whether eager's gradients share memory; for "two views" a second backward
# then adds to both twice.
IN_ONE_PLACE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "one for both, one a view": (lambda x, y: x.view(3, 1) + y, [(3,), (3, 1)]),
    "two views": (lambda x, y: x.view(3, 1) + y.view(3, 1), [(3,), (1, 3)]),
    "pieces that overlap": (lambda x, y: torch.cat([x, y])[1:4].flip(()) + torch.cat([y, x])[1:4], [(3,), (2,)]),
    "complex and its parts": (
        lambda x, y: torch.view_as_complex(x).view(2, 1) + torch.view_as_complex(y),
        [(2, 2), (2, 1, 2)],
    ),
}


def inputs(shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def shared(tensors: Sequence[torch.Tensor]) -> list[list[bool]]:
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for b in places] for a in places]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_several_backwards(name: str, backend: str) -> None:
    fn, shapes = PROGRAMS[name]

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        args, given = inputs(shapes), torch.ones(())
        for k in range(3):
            out = fn(*args)
            if k == 0:
                given = torch.arange(1.0, 1 + out.numel()).reshape(out.shape)
            out.backward(given)
        return [given, *(a.grad for a in args if a.grad is not None)]

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    torch.testing.assert_close(run(compiled), run(fn))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*PROGRAMS, *IN_ONE_PLACE])
def test_gradients_are_added_up(name: str, backend: str) -> None:
    """Each backward gets its own tensor, which autograd may keep: three backwards give three times the first gradient."""
    fn, shapes = (PROGRAMS | IN_ONE_PLACE)[name]

    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out * torch.arange(1.0, 1 + out.numel()).reshape(out.shape)).sum().abs()

    args = inputs(shapes)
    once = torch.autograd.grad(loss(fn(*args)), args)
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(3):
        loss(compiled(*args)).backward()
    torch.testing.assert_close([a.grad for a in args], [3 * g for g in once])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_of_what_grad_gives(name: str, backend: str) -> None:
    fn, shapes = PROGRAMS[name]

    def run(fn: Callable[..., Any]) -> list[list[bool]]:
        args = inputs(shapes)
        out = fn(*args)
        given = torch.ones_like(out)
        found = torch.autograd.grad(out, args, given)
        return shared([given, *args, *found])

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    assert run(compiled) == run(fn)


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_sizes(backend: str) -> None:
    """The copied piece of the tangent has the sizes of the call."""

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([w[:1], F.layer_norm(x, x.shape, w, b)])

    compiled = pycompiler.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for n in (3, 5, 8):
        results = []
        for f in (fn, compiled):
            args, given = inputs([(n,)] * 3), torch.arange(1.0, n + 2)
            f(*args).backward(given)
            f(*args).backward(given)
            results.append([given, *(a.grad for a in args)])
        torch.testing.assert_close(results[1], results[0])


def _bases(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1)[:3] + y.reshape(-1)[:3]


def _pieces(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.reshape(-1), (12,), None, y.reshape(-1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_bases, _pieces])
def test_of_several_results_one_gets_a_gradient(fn: Callable[..., Any], backend: str) -> None:
    """A sum of gradients is one of its terms then: `x.grad` and `y.grad` may not be views of one tensor that adds up twice."""

    def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin().sum() + y.cos().sum(), fn(x, y)

    compiled = pycompiler.compile(several, backend=backend, fullgraph=True)
    runs: list[list[Any]] = []
    for f in (several, compiled):
        x, y = inputs([(3, 4), (4, 3)])
        _, out = f(x, y)
        given = torch.arange(1.0, 1 + out.numel())
        for k in range(3):
            out.backward(given, retain_graph=k < 2)
        runs.append([given, x.grad, y.grad])
    torch.testing.assert_close(runs[1], runs[0])


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.ones(4).cumsum(0).view(2, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_depends_on_nothing_is_made_by_each_backward(backend: str) -> None:
    """The forward must not create and save it: a second backward would add to it in place, and the third would return the sum."""

    def run(fn: Callable[..., Any]) -> Any:
        x = torch.ones(2, 2, requires_grad=True)
        out = fn(x)
        for _ in range(3):
            out.sum().backward(retain_graph=True)
        return x.grad, *torch.autograd.grad(out.sum(), x)

    def fn(x: torch.Tensor) -> Any:
        return _Steps.apply(x)

    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    torch.testing.assert_close(run(compiled), run(fn))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_gradient_of_two_leaves_is_added_to_once_for_each(backend: str) -> None:
    """Derivatives of gradients may not give both leaves views of one memory: the next backward would add to it for both."""

    def run(fn: Callable[..., Any]) -> Any:
        a, b = (torch.tensor([1.0, v], requires_grad=True) for v in (2.0, 3.0))
        y = fn(a, b).sum()
        for _ in range(2):
            first = torch.autograd.grad(y, (a, b), create_graph=True)
            sum((g * g).sum() for g in first).backward(retain_graph=True)  # type: ignore[union-attr]
        return a.grad, b.grad

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).square()

    made = run(pycompiler.compile(fn, backend=backend))
    torch.testing.assert_close(made, run(fn))
    assert made[0].data_ptr() != made[1].data_ptr()
