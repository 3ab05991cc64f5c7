"""Gradients by each of several results, also of one call of a transform, and differentiated again, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, grad_and_value, jacrev, vjp, vmap
from torch.utils.checkpoint import checkpoint

import pycompiler

Tensors = tuple[torch.Tensor, ...]


def _pulled(x: torch.Tensor) -> Tensors:
    y, pull = vjp(lambda a: a.sin().exp(), x)
    return y, pull(torch.ones_like(y))[0]


def _pulled_of_itself(x: torch.Tensor) -> Tensors:
    (y, z), pull, aux = vjp(lambda a: ((a.exp(), a.sin()), a * 2), x, has_aux=True)
    return y, z, aux, pull((y, z))[0], pull((z, aux))[0]


def _pulled_within(x: torch.Tensor) -> Tensors:
    y, pull = vjp(torch.exp, x)
    return y, grad(lambda v: pull(v)[0].sin().sum())(x), vmap(lambda v: pull(v)[0])(torch.eye(4))


def _mapped_pulls(x: torch.Tensor) -> Tensors:
    def one(row: torch.Tensor) -> Any:
        y, pull = vjp(torch.exp, row)
        return y, pull(y)[0]

    return vmap(one)(torch.stack([x, x * 2])), jacrev(lambda a: a.sin().exp())(x)  # type: ignore[return-value]


def _random(x: torch.Tensor) -> Tensors:
    y, pull = vjp(lambda a: torch.nn.functional.dropout(a.exp(), 0.5), x)
    return y, *pull(torch.ones_like(y))


def _two(x: torch.Tensor) -> Tensors:
    y = x.exp()
    return y, y.sin() * y


def _with_a_view(x: torch.Tensor) -> Tensors:
    y = x * 2
    return y, y.reshape(2, 2).sin()


def _beside(x: torch.Tensor) -> Any:
    return grad_and_value(lambda a: (_two(a)[1].sum(), _two(a)[0]), has_aux=True)(x)


def _checkpointed(x: torch.Tensor) -> Tensors:
    a, b = checkpoint(_two, x, use_reentrant=False)
    return a, b, a * b


def _checkpointed_view(x: torch.Tensor) -> Tensors:
    return checkpoint(_with_a_view, x, use_reentrant=False)  # type: ignore[no-any-return]


def _mapped(x: torch.Tensor) -> Tensors:
    return vmap(_two)(x)  # type: ignore[return-value]


def _written_since(x: torch.Tensor) -> Tensors:
    y = x * 2
    z = y * 1
    w = z + y
    y.exp_()
    return z, w, y


def _written_behind(x: torch.Tensor) -> Tensors:
    y = (x * x).sqrt()
    z = y * y * x
    y.data.mul_(1.5)
    return y, z


def _taken_apart(x: torch.Tensor) -> Tensors:
    a, b = (x * 2).view(2, 2).unbind()
    return a, a * b, b.exp()


def _of_a_written_one(x: torch.Tensor) -> Tensors:
    y = x.sin() * x
    y.exp_()
    a, b = checkpoint(_with_a_view, y, use_reentrant=False)
    return b, y, b.sum() * b


def _asked_inside(x: torch.Tensor) -> Tensors:
    a, b = x.view(4), x.sin()
    y = a - b
    return torch.autograd.grad((y * y).sum(), [a, b], create_graph=True)


def _asked_of_two(x: torch.Tensor) -> Any:
    return grad(lambda a, b: ((a - b) ** 3).sum(), argnums=(0, 1))(x.sin(), x * 2)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in _tensors(v)]


def _asked(program: Callable[..., Any]) -> list[Any]:
    """The results, all first gradients, and all gradients of those gradients."""
    torch.manual_seed(0)
    x = torch.linspace(0.1, 1, 4, dtype=torch.float64, requires_grad=True)
    made = _tensors(program(x))
    by = [x, *made]
    found: list[Any] = [*made]
    for create in (False, True):
        first: list[Any] = []
        for t in made:
            options: Any = {"allow_unused": True, "retain_graph": True, "create_graph": create}
            first += torch.autograd.grad(t.sum(), by, **options)
        found += first
    for g in first:
        if g is not None and g.requires_grad:
            found += torch.autograd.grad(g.sum(), by, allow_unused=True, retain_graph=True)
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [
        _pulled,
        _pulled_of_itself,
        _pulled_within,
        _asked_inside,
        _asked_of_two,
        _mapped_pulls,
        _random,
        _beside,
        _checkpointed,
        _checkpointed_view,
        _written_since,
        _written_behind,
        _taken_apart,
        _of_a_written_one,
        _mapped,
    ],
)
def test_gradients_by_each_result(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(
        program, backend=backend, fullgraph=program is not _written_since
    )  # `_written_since` runs eagerly
    torch.testing.assert_close(_asked(compiled), _asked(program))


def test_a_pull_in_a_checkpoint_goes_back_through_what_was_computed() -> None:
    def program(x: torch.Tensor) -> Any:
        y, pull = vjp(torch.exp, x)
        return checkpoint(lambda v: pull(v)[0].sin(), y, use_reentrant=False), y

    torch.testing.assert_close(_asked(pycompiler.compile(program)), _asked(program))


def test_pulls_that_are_alike_are_compiled_once() -> None:
    def program(x: torch.Tensor) -> Any:
        y, pull = vjp(torch.sin, x)
        return pull(y)[0]

    x = torch.ones(3)
    before = dict(pycompiler.regions.STATISTICS)
    compiled = [pycompiler.compile(program) for _ in range(2)]
    for f in compiled:
        torch.testing.assert_close(f(x), program(x))
    assert pycompiler.regions.STATISTICS["shared"] == before["shared"] + 1
