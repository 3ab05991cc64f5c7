"""`requires_grad = True` on tensors that a compiled function creates: they are leaves inside its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad

import pycompiler
from tests.harness.compare import assert_same_calls

BACKENDS = ["eager", "aot_eager", "native"]
W = torch.linspace(-1, 1, 9, dtype=torch.double).view(3, 3)


def features(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x[:, None]
    h.requires_grad = True
    return (h @ w).tanh().sum()


def penalty(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = (x.detach() * 0.5 + 1).requires_grad_(True)
    d = (h @ w).tanh().sum()
    (g,) = torch.autograd.grad(d, h, create_graph=True)
    return d + (g * g).sum()


def force(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((h @ w.detach()).tanh().sum(), h)
    return -g, g.requires_grad


def asked(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone()
    same = h.contiguous()
    h.requires_grad_()
    y = same @ w.detach()
    return (y @ w).sum() if y.requires_grad else y.sum()


def of_a_part(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone()
    row = h[0]
    row.requires_grad_()
    return (h @ w).sum() * 2 + (row @ w).sum(), h.requires_grad


def transformed(x: torch.Tensor, w: torch.Tensor) -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return (a @ w).tanh().sum()

    h = x.clone().requires_grad_()
    return f(h) + grad(f)(h).sum()


ONE_GRAPH = [features, penalty, force, asked, of_a_part, transformed]


def given_back(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone()
    h.requires_grad = True
    return h, h.is_leaf, (h @ w).sum()


def only_by_it(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone().requires_grad_()
    return (h @ w.detach()).sum()


def written_to_an_argument(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone().requires_grad_()
    x.mul_(h)
    return (x @ w).sum()


def backward(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone().requires_grad_()
    (h @ w).sum().backward()
    return h.grad


def taken_back(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone().requires_grad_()
    h.requires_grad = False
    return (h @ w).sum(), h


def with_a_history(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x @ w
    h.requires_grad = True
    return h


def of_integers(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.long().requires_grad_()


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.clone().requires_grad_()
    h.add_(1)
    return h


def of_no_flag(x: torch.Tensor, w: torch.Tensor) -> Any:
    return w.requires_grad_([x])  # type: ignore[arg-type]


BREAKS = [
    of_no_flag,
    given_back,
    only_by_it,
    written_to_an_argument,
    backward,
    taken_back,
    with_a_history,
    of_integers,
    written,
]


def arguments(training: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return W.cos(), W.clone().requires_grad_(training)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [*ONE_GRAPH, *BREAKS], ids=lambda f: f.__name__)
def test_as_eager(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    for training in (True, False):
        assert_same_calls(compiled, program, lambda t=training: arguments(t), backward=True)


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda f: f.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    assert_same_calls(compiled, program, lambda: arguments(True), backward=True)
