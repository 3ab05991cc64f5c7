"""Graph breaks below a call, with a live value that generated code cannot rebuild: the call breaks, not the whole frame."""

from __future__ import annotations

import copy
from typing import Any

import torch

import pycompiler

X = torch.arange(4.0)


def test_a_module_is_copied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def program(model: Any, x: torch.Tensor) -> Any:
        x = x * 2
        copied = copy.deepcopy(model)
        return copied(x), copied

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(3):
        got, copied = compiled(model, X)
        assert torch.equal(got, program(model, X)[0])
        assert copied is not model and copied[0].weight is not model[0].weight
        assert torch.equal(copied[0].weight, model[0].weight)
    report = pycompiler.explain(program)(model, X)
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def _inner(x: torch.Tensor, log: list[Any], depth: int) -> torch.Tensor:
    number = id(log)
    if depth:
        x = _inner(x + 1, log, depth - 1)
    else:
        log.append(x.sum())
        pycompiler.graph_break()
        log.append("after")
    return x * 3 if number == id(log) else x


def test_the_innermost_call_that_can_go_on_is_the_break() -> None:
    def program(x: torch.Tensor, log: list[Any], depth: int) -> torch.Tensor:
        x = x.sin()
        y = _inner(x, log, depth)
        return x + y

    for depth in (0, 1, 2):
        compiled = pycompiler.compile(program, backend="eager")
        for _ in range(3):
            mine: list[Any] = []
            theirs: list[Any] = []
            assert torch.equal(compiled(X, mine, depth), program(X, theirs, depth))
            assert torch.equal(mine[0], theirs[0]) and mine[1:] == theirs[1:]
        assert compiled.counters()["eager_calls"] == 0
        report = pycompiler.explain(program)(X, [], depth)
        assert report.graph_count >= 2


def test_a_call_in_a_try_stays_there() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        number = id(x)
        pycompiler.graph_break()
        if number:
            raise ValueError("late")
        return x

    def calls(x: torch.Tensor) -> torch.Tensor:
        return fails(x + 1)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        try:
            x = calls(x)
        except ValueError as e:
            x = x + len(str(e))
        return x * 3

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(X), program(X))
