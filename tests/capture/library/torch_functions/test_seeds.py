"""`torch.manual_seed` inside a function: run before the graph if no number was drawn yet, otherwise a graph break."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls


def first(x: Any) -> Any:
    torch.manual_seed(3)
    return x + torch.rand(3), torch.nn.functional.dropout(x, 0.5)


def behind_operators(x: Any) -> Any:
    y = x.sin() * 2
    torch.manual_seed(seed=7)
    x.add_(1)
    return y + torch.randn(3), x


def twice(x: Any) -> Any:
    torch.manual_seed(1)
    torch.manual_seed(2)
    return x + torch.rand(3)


def given_back(x: Any) -> Any:
    g = torch.manual_seed(4)
    return x + torch.rand(3, generator=g), g is torch.default_generator, g


def alone(x: Any) -> Any:
    torch.manual_seed(5)
    return x + 1


def before_an_error_of_data(x: Any) -> Any:
    torch.manual_seed(6)
    y = torch.rand(3)
    return torch.embedding(x.view(3, 1), (x * 0).long()), y


def beside_others(x: Any) -> Any:
    r = random.random()
    torch.manual_seed(-1)
    other = random.random()
    return x * r + torch.rand(3), other


def of_sizes(x: Any) -> Any:
    torch.manual_seed(x.shape[0])
    return x + torch.rand(x.shape[0])


def behind_a_draw(x: Any) -> Any:
    y = torch.rand(3)
    torch.manual_seed(3)
    return x + y, torch.rand(3)


def again(x: Any) -> Any:
    torch.manual_seed(3)
    y = torch.rand(3)
    torch.manual_seed(3)
    return x + y, torch.rand(3) == y


def behind_an_error_of_data(x: Any) -> Any:
    y = torch.embedding(x.view(3, 1), (x * 0).long())
    torch.manual_seed(3)
    return y + torch.rand(3, 1)


def of_no_seed(x: Any) -> Any:
    try:
        torch.manual_seed(2**70)
    except (RuntimeError, ValueError, OverflowError) as e:
        return x + torch.rand(3), type(e)


def of_an_item(x: Any) -> Any:
    torch.manual_seed(int(x.sum().item()))
    return x + torch.rand(3)


def in_a_transform(x: Any) -> Any:
    def one(t: Any) -> Any:
        torch.manual_seed(3)
        return (t * torch.rand(3)).sum()

    return torch.func.grad(one)(x)


WHOLE = (first, behind_operators, twice, given_back, alone, before_an_error_of_data, beside_others, of_sizes)
BROKEN = (behind_a_draw, again, behind_an_error_of_data, of_no_seed, of_an_item, in_a_transform)


def seen(fn: Callable[..., Any], seed: int) -> Any:
    torch.manual_seed(seed)
    random.seed(seed)
    x = torch.arange(3.0)
    return str((fn(x), x)), torch.get_rng_state().tolist(), random.getstate()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [*WHOLE, *BROKEN])
def test_seeded_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn in WHOLE)
    assert_same_calls(compiled, fn, lambda: (torch.arange(3.0),), calls=3, exact=backend != "native")
    if fn in WHOLE:
        assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_an_error_of_data_behind_a_seed(backend: str) -> None:
    def fn(x: Any, i: Any) -> Any:
        torch.manual_seed(2)
        y = torch.rand(2)
        return torch.embedding(x, i) + y, torch.rand(2)

    compiled, states = pycompiler.compile(fn, backend=backend, fullgraph=True), []
    for run in (fn, compiled):
        torch.manual_seed(1)
        with pytest.raises(IndexError):
            run(torch.ones(2, 2), torch.tensor([5]))
        states.append(torch.get_rng_state().tolist())
    assert states[0] == states[1]


def test_seeds_are_saved(tmp_path: Any) -> None:
    compiled = pycompiler.compile(first, fullgraph=True)
    want = seen(compiled, 1)
    pycompiler.save(compiled, tmp_path / "seed")
    loaded = pycompiler.load(tmp_path / "seed", first)
    assert seen(loaded, 1) == want
    assert loaded.counters()["compiles"] == 0
