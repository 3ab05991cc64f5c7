"""`x.requires_grad_()` on an argument: the input requires grad from the start of the graph, if no earlier use exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler

LINEAR = nn.Linear(3, 2)


def attack(x: torch.Tensor) -> Any:
    """The attack from the tutorial on adversarial examples."""
    x.requires_grad = True
    loss = F.nll_loss(LINEAR(x).log_softmax(1), torch.zeros(len(x), dtype=torch.int64))
    LINEAR.zero_grad()
    loss.backward()
    return (x + 0.1 * x.grad.data.sign()).clamp(0, 1), loss.detach()


def physics(x: torch.Tensor) -> Any:
    x.requires_grad_(True)
    u = LINEAR(x).tanh().sum()
    (ux,) = torch.autograd.grad(u, x, create_graph=True)
    (uxx,) = torch.autograd.grad(ux.sum(), x, create_graph=True)
    loss = (u * ux - 0.1 * uxx).pow(2).mean()
    loss.backward()
    return loss.detach()


def outlives(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.requires_grad_()
    return LINEAR(x) * 2, x.requires_grad, x.is_leaf, x


def handles(x: torch.Tensor) -> Any:
    try:
        x.requires_grad_()
        return LINEAR(x)[torch.tensor([len(x) - 3])]
    except IndexError:
        return x.requires_grad


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
@pytest.mark.parametrize("fn", [attack, physics, outlives, handles])
def test_one_graph(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    found: list[list[Any]] = []
    for call in (fn, compiled):
        torch.manual_seed(0)
        LINEAR.zero_grad()
        seen: list[Any] = []
        for n in (2, 3, 5, 4):
            x = torch.rand(n, 3)
            for _ in range(2):  # the second time it already requires grad
                made = call(x)
                first = made[0] if isinstance(made, tuple) else made
                if isinstance(first, torch.Tensor) and first.requires_grad:
                    first.sum().backward()
                seen.append((made, x.requires_grad, x.is_leaf, x.grad))
        found.append([*seen, LINEAR.weight.grad])
    torch.testing.assert_close(found[1], found[0])


def used_before(x: torch.Tensor) -> Any:
    y = x * 2
    x.requires_grad_()
    return y, LINEAR(x)


def view_before(x: torch.Tensor) -> Any:
    row = x[0]
    x.requires_grad_()
    return row * 2, x * 2


def integers(x: torch.Tensor) -> Any:
    x.requires_grad_()
    return x


def raised_before(x: torch.Tensor) -> Any:
    y = LINEAR.bias[torch.tensor([3])]
    x.requires_grad_()
    return y, x * 2


@pytest.mark.parametrize("fn", [used_before, view_before, integers, raised_before])
def test_what_is_eagers(fn: Callable[..., Any]) -> None:
    compiled, found = pycompiler.compile(fn), []
    for call in (fn, compiled, compiled):
        x = torch.arange(6).reshape(2, 3) if fn is integers else torch.ones(2, 3)
        try:
            found.append([t.requires_grad for t in call(x)])
        except (RuntimeError, IndexError) as error:
            found.append([type(error)])
        found[-1].append(x.requires_grad)
    assert found[0] == found[1] == found[2]


def test_memory_in_common() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.requires_grad_()
        total = (a * 2 + b.sum()).sum()
        total.backward()
        return total.detach(), b.requires_grad, b.grad

    compiled = pycompiler.compile(program)
    for _ in range(2):
        found = []
        for call in (program, compiled):
            x = torch.arange(12.0).reshape(4, 3)
            a = x[:2]
            found.append((call(a, x), a.grad))
        torch.testing.assert_close(found[1], found[0])


def test_a_parameter_of_an_argument_where_errors_are_handled() -> None:
    """The parameter is created before the graph; it must not be treated as a generator with a saved state."""

    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        try:
            return (nn.Parameter(x) * 2)[i].sum()
        except IndexError:
            return x.sum()

    compiled = pycompiler.compile(program)
    for k in (0, 5, 1):
        x, i = torch.ones(2, 3), torch.tensor([k])
        torch.testing.assert_close(compiled(x, i), program(x, i))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_view_of_it_that_is_written_without_gradients(backend: str) -> None:
    """Reading the history of such a view is an autograd error."""

    def program(x: torch.Tensor) -> Any:
        kept = x.detach()
        x.requires_grad_()
        with torch.no_grad():
            return 1 + x.view(-1).mul_(2), kept

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        found = []
        for call in (program, compiled):
            x = torch.arange(3.0)
            found.append((call(x), x, x.requires_grad, x._version))
        torch.testing.assert_close(found[1], found[0])
