"""Functions that a program puts into the graph unchanged: their side effects and the objects that they take."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import pycompiler

X, Y = torch.arange(4.0), torch.ones(4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_function_without_results_is_called_each_time(backend: str) -> None:
    seen: list[bool] = []

    @pycompiler.allow_in_graph
    def note() -> None:
        seen.append(torch.is_grad_enabled())

    def program(x: torch.Tensor) -> torch.Tensor:
        note()
        torch.set_grad_enabled(False)
        note()
        torch.set_grad_enabled(True)
        return x + 1

    compiled = pycompiler.compile(program, backend=backend, fullgraph=backend == "eager")  # others: eager
    for _ in range(3):
        seen.clear()
        assert torch.equal(compiled(X), X + 1)
        assert seen[-2:] == [True, False]
    assert seen == [True, False] and compiled.counters()["compiles"] == 1


@dataclasses.dataclass(frozen=True)
class Pair:
    first: torch.Tensor
    second: torch.Tensor
    more: list[int] = dataclasses.field(default_factory=lambda: [5])
    scale: int = dataclasses.field(kw_only=True, default=2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale * 10)


@pycompiler.allow_in_graph
def combined(pair: Pair, scale: int = 1) -> torch.Tensor:
    assert type(pair) is Pair and type(pair.more) is list
    return pair.first * pair.second * scale + pair.more[0] * pair.scale


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_frozen_dataclass_that_is_made(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return combined(Pair(x * 2, y, scale=3), scale=2).sin()

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for first in (X, X + 1):
        a, b = first.clone().requires_grad_(), first.clone().requires_grad_()
        want, got = program(a, Y), compiled(b, Y)
        want.sum().backward()
        got.sum().backward()
        assert torch.allclose(got, want) and a.grad is not None and b.grad is not None
        assert torch.allclose(a.grad, b.grad)
    assert compiled.counters()["compiles"] == 1


def test_a_frozen_dataclass_that_exists() -> None:
    def program(x: torch.Tensor, pair: Pair) -> torch.Tensor:
        return x + combined(pair)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for pair in (Pair(X, Y), Pair(Y, X), Pair(Y, X, scale=7), Pair(Y, X, [1, 2])):
        assert torch.equal(compiled(X, pair), program(X, pair))


def test_its_tensors_are_written() -> None:
    @pycompiler.allow_in_graph
    def write(pair: Pair) -> torch.Tensor:
        pair.first.add_(1)
        return pair.first * 2

    def program(x: torch.Tensor) -> Any:
        before = x * 1
        made = write(Pair(x, x))
        return before + x, made

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        x, y = X.clone(), X.clone()
        for got, want in zip(compiled(x), program(y), strict=True):
            assert torch.equal(got, want)
        assert torch.equal(x, y)


def test_an_object_that_is_more_than_its_fields_breaks() -> None:
    @pycompiler.allow_in_graph
    def more(pair: Any) -> torch.Tensor:
        return pair.first * getattr(pair, "extra", 1)

    def program(x: torch.Tensor) -> torch.Tensor:
        pair = Pair(x, x)
        object.__setattr__(pair, "extra", 3)
        return more(pair) + 1

    assert torch.equal(pycompiler.compile(program, backend="eager")(X), X * 3 + 1)
    assert pycompiler.explain(program)(X).graph_break_count == 1


LINEAR = torch.nn.Linear(4, 4)


@pycompiler.allow_in_graph
def functional(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(LINEAR, parameters, (x,))  # type: ignore[no-any-return]


@pycompiler.allow_in_graph
def changes_what_it_copies(given: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    mine = given.copy()
    mine.update(weight=mine["weight"] * 2)
    rest: list[torch.Tensor] = mine.pop("rest")[0]["more"].copy()
    rest.append(x)
    return x @ mine["weight"] + sum(rest)  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_dicts_and_lists_come_as_the_program_has_them(backend: str) -> None:
    def calls(x: torch.Tensor) -> torch.Tensor:
        return functional(dict(LINEAR.named_parameters()), x).relu()

    def copies(x: torch.Tensor) -> torch.Tensor:
        return changes_what_it_copies({"weight": LINEAR.weight, "rest": ({"more": [x * 2]},)}, x).sin()

    for program in (calls, copies):
        compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
        for _ in range(2):
            gradients = []
            for run in (compiled, program):
                LINEAR.zero_grad()
                x = torch.linspace(0, 1, 8).view(2, 4).requires_grad_()
                run(x).sum().backward()
                gradients.append([x.grad, LINEAR.weight.grad])
            torch.testing.assert_close(*gradients)
        assert (compiled.counters()["compiles"], compiled.counters()["hits"]) == (1, 1)
