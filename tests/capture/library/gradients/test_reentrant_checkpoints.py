"""Checkpoints with use_reentrant=True: one graph where they behave like non-reentrant ones, otherwise eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler


def leaf(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4).clone().requires_grad_()


def of_an_argument(model: Any, x: Any) -> Any:
    return checkpoint(lambda a: model(a).sin(), x * 2, use_reentrant=True).sum()


def of_two_results(model: Any, x: Any) -> Any:
    a, b = checkpoint(lambda a, k: (model(a) * k, a.cos()), x, 3, use_reentrant=True)
    return (a * b).sum()


def that_draws(model: Any, x: Any) -> Any:
    return checkpoint(
        lambda a: nn.functional.dropout(model(a), 0.5), x, use_reentrant=True, preserve_rng_state=True
    ).sum()


def gradients(program: Callable[..., Any], backend: str | None) -> list[Any]:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), leaf()
    call = program if backend is None else pycompiler.compile(program, backend=backend, fullgraph=True)
    results = []
    with torch.random.fork_rng():
        for _ in range(2):
            torch.manual_seed(1)
            result = call(model, x)
            result.backward()
            results.append(result.detach())
    return [*results, x.grad, model.weight.grad, model.bias.grad]


@pytest.mark.parametrize("program", [of_an_argument, of_two_results, that_draws])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_captured(program: Callable[..., Any], backend: str) -> None:
    torch.testing.assert_close(gradients(program, backend), gradients(program, None))


def without_gradients(model: Any, x: Any) -> Any:
    return checkpoint(lambda a: model(a), x.detach(), use_reentrant=True)


def with_an_unrelated_result(model: Any, x: Any) -> Any:
    return checkpoint(lambda a: (model(a), torch.ones(2)), x, use_reentrant=True)


def of_a_tensor_around(model: Any, x: Any) -> Any:
    y = x * 2
    return checkpoint(lambda a: model(a) * y, x, use_reentrant=True)


def that_asks_for_the_mode(model: Any, x: Any) -> Any:
    return checkpoint(lambda a: model(a) * (2 if torch.is_grad_enabled() else 3), x, use_reentrant=True)


def of_a_container(model: Any, x: Any) -> Any:
    return checkpoint(lambda a, b: model(a) * b[0], x, [x * 2], use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    "program",
    [without_gradients, with_an_unrelated_result, of_a_tensor_around, that_asks_for_the_mode, of_a_container],
)
def test_what_others_do_otherwise_is_left_to_eager(program: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), leaf()
    assert [b.kind for b in pycompiler.explain(program)(model, x).break_reasons][:1] == ["inner-graph"]
    found, expected = pycompiler.compile(program, backend="eager")(model, x), program(model, x)
    found, expected = [r if isinstance(r, tuple) else (r,) for r in (found, expected)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
        assert a.requires_grad == b.requires_grad
