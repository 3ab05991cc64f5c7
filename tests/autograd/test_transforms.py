"""torch.func's transforms, branches and checkpoints in one graph each: values and gradients of every backend are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, grad_and_value, jvp, vmap
from torch.utils.checkpoint import checkpoint

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
PROGRAMS: dict[str, Callable[..., Any]] = {}
LINEAR = torch.nn.Linear(4, 4)


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


def loss(x: Any, w: Any) -> Any:
    return (torch.tanh(x @ w) ** 2).sum()


@program
def gradients(x: Any, w: Any) -> Any:
    return grad(loss, argnums=(0, 1))(x, w), grad_and_value(lambda p: loss(p["x"], w), has_aux=False)({"x": x})


@program
def second_gradient(x: Any, w: Any) -> Any:
    return grad(lambda x: grad(lambda x: loss(x, w))(x).sin().sum())(x)


@program
def gradients_of_rows(x: Any, w: Any) -> Any:
    return vmap(grad(lambda r: loss(r[None], w)))(x), grad(lambda w: vmap(lambda r: loss(r[None], w))(x).sum())(w)


@program
def along_tangents(x: Any, w: Any) -> Any:
    return jvp(lambda x: torch.tanh(x @ w), (x,), (x.cos(),)), jvp(grad(lambda x: loss(x, w)), (x,), (x,))


@program
def of_parameters(x: Any, w: Any) -> Any:
    return grad(lambda p: (functional_call(LINEAR, p, (x,)) @ w).sum())(dict(LINEAR.named_parameters()))


@program
def drawn(x: Any, w: Any) -> Any:
    return grad(lambda x: torch.nn.functional.dropout(x * x, 0.5).sum())(x) @ w


@program
def views_and_copies(x: Any, w: Any) -> Any:
    return vmap(lambda a: a.view(2, 2).T.reshape(-1) * w.sum(), in_dims=1)(torch.cat([x, x[:1]]))


@program
def checkpointed(x: Any, w: Any) -> Any:
    return checkpoint(lambda x: torch.tanh(x @ w).sin(), x, use_reentrant=False) * 2


@program
def checkpointed_dropout(x: Any, w: Any) -> Any:
    y = checkpoint(lambda x: torch.nn.functional.dropout(torch.tanh(x @ w), 0.5).exp(), x, use_reentrant=False)
    return torch.nn.functional.dropout(y, 0.5)


@program
def checkpoints_nest(x: Any, w: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.tanh(checkpoint(torch.sin, x, use_reentrant=False) @ w)

    return checkpoint(inner, x, use_reentrant=False), checkpoint(lambda x: (x.T, x), x, use_reentrant=False)


@program
def either(x: Any, w: Any) -> Any:
    return torch.cond(x.sum() > 1000, lambda x: torch.tanh(x @ w), lambda x: torch.sin(x @ w), (x,)) * 2


@program
def either_without_a_gradient(x: Any, w: Any) -> Any:
    return torch.cond(x.sum() > 1000, lambda x: x * w.sum(), torch.zeros_like, (x,))


def outcome(fn: Callable[..., Any], requires_grad: bool) -> list[Any]:
    """Results, gradients, and where the generator of random numbers is."""
    torch.manual_seed(0)
    x = (torch.arange(12.0).reshape(3, 4) / 7).requires_grad_(requires_grad)
    w = torch.arange(20.0).reshape(4, 5).sin().requires_grad_(requires_grad)
    LINEAR.zero_grad()
    torch.manual_seed(1)
    results = torch.utils._pytree.tree_leaves(fn(x, w))
    differentiable = [r for r in results if r.requires_grad and r is not x]
    if differentiable:
        sum((r * r).sum() for r in differentiable).backward()
    strides = [(r.stride(), r.requires_grad) for r in results]
    return [strides, *results, x.grad, w.grad, LINEAR.weight.grad, torch.rand(2)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_as_eager(name: str, backend: str) -> None:
    compiled = pycompiler.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for requires_grad in (False, True):
        expected, found = outcome(PROGRAMS[name], requires_grad), outcome(compiled, requires_grad)
        assert expected[0] == found[0]
        torch.testing.assert_close(found[1:], expected[1:])


def test_checkpoints_keep_what_they_are_given() -> None:
    """The values in between are not kept from forward to backward: each block keeps its input only."""

    def blocks(x: torch.Tensor, w: torch.Tensor, how: Callable[..., Any]) -> torch.Tensor:
        for _ in range(4):
            x = how(lambda x: torch.softmax((x @ w).exp() @ w, 1) @ w, x)
        return x.sum()

    def plain(fn: Any, x: Any) -> Any:
        return fn(x)

    def saved(how: Callable[..., Any]) -> int:
        x, w = torch.ones(64, 8, requires_grad=True), torch.eye(8, requires_grad=True)
        compiled = pycompiler.compile(lambda x, w: blocks(x, w, how), backend="aot_eager", fullgraph=True)
        result = compiled(x, w)
        node = result.grad_fn
        assert node is not None
        return sum(t.numel() for t in node.saved_tensors)  # type: ignore[attr-defined]

    kept = saved(lambda fn, x: checkpoint(fn, x, use_reentrant=False))
    assert kept <= 4 * 64 * 8 + 64 + saved(plain) // 100
    assert kept < saved(plain) / 2
