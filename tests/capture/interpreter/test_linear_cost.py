"""Linear capture cost: twice as many inputs, operators, writes or objects cost twice the Python calls, not four times."""

from __future__ import annotations

import collections
import cProfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler

Case = tuple[Callable[..., Any], tuple[Any, ...]]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Result:
    def __init__(self, value: Any) -> None:
        self.value = value


def modules(n: int) -> Case:
    return nn.Sequential(*(Scaled() for _ in range(n))), (torch.ones(2),)


def result_of_modules(n: int) -> Case:
    """Generated code reads the parameters."""
    model, _ = modules(n)
    return lambda x: Result(model(x)), (torch.ones(2),)


def written(n: int) -> Case:
    def fn(xs: list[torch.Tensor]) -> None:
        for x in xs:
            x.add_(1)

    return fn, ([torch.ones(2) for _ in range(n)],)


def operators(n: int) -> Case:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        return x

    return fn, (torch.ones(2),)


def step(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], n: int) -> Case:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(n)]
    for p in parameters:
        p.grad = torch.ones(2)
    optimizer = make(parameters)
    optimizer.step()
    return lambda: optimizer.step(), ()


def handled(n: int) -> Case:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(n):
                x = x + 1
        return x

    return fn, (torch.ones(2),)


def fields(n: int) -> Case:
    cls = collections.namedtuple("cls", [f"n{i}" for i in range(n)])  # type: ignore[misc]

    def fn(x: torch.Tensor) -> torch.Tensor:
        made = cls(*range(n))
        return x + sum([getattr(made, name) for name in cls._fields])

    return fn, (torch.ones(2),)


CASES: dict[str, Callable[[int], Case]] = {
    "modules": modules,
    "result of modules": result_of_modules,
    "written": written,
    "operators": operators,
    "in a with": handled,
    "fields": fields,
    "Adam": lambda n: step(lambda ps: torch.optim.Adam(ps, foreach=False), n // 2),
    "SGD": lambda n: step(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), n),
}


def calls(case: Case) -> int:
    """The number of Python and C function calls during the first call of a compiled function."""
    fn, args = case
    compiled = pycompiler.compile(fn, backend="eager")
    with cProfile.Profile() as profile:  # a Python profile function would not see the compiler
        compiled(*args)
    counters = pycompiler.counters(compiled)
    assert (counters["compiles"], counters["eager_calls"]) == (1, 0)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", CASES)
def test_capture_is_linear(name: str) -> None:
    calls(CASES[name](4))  # loads and lookups that happen once
    few, more, many = (calls(CASES[name](n)) for n in (20, 40, 80))
    assert many - more <= 2.15 * (more - few), (few, more, many)
