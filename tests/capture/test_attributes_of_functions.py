"""What a program stores on functions that existed before: counters of decorators, results kept beside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pycompiler


def counted(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        wrapper.calls += 1  # type: ignore[attr-defined]
        wrapper.last = args[0]  # type: ignore[attr-defined]
        return fn(*args)

    wrapper.calls = 0  # type: ignore[attr-defined]
    return wrapper


@counted
def double(x: Tensor) -> Tensor:
    return x * 2


def calls(x: Tensor) -> Tensor:
    return double(x) + double(x + 1) + double.calls


def its_own(x: Tensor) -> Tensor:
    its_own.n = getattr(its_own, "n", 0) + 1  # type: ignore[attr-defined]
    return x + its_own.n  # type: ignore[attr-defined]


class Holder:
    def method(self, x: Tensor) -> Tensor:
        Holder.method.seen = x + 1  # type: ignore[attr-defined]
        return x * Holder.method.seen  # type: ignore[attr-defined]


def of_a_method(x: Tensor) -> Tensor:
    return Holder().method(x)


def as_a_dict(x: Tensor) -> Tensor:
    double.more = 3
    return x + len(vars(double)) + vars(double)["more"]


def wrapped_again(x: Tensor) -> Tensor:
    double.more = 4

    @functools.wraps(double)
    def again(y: Tensor) -> Tensor:
        return y + again.more  # type: ignore[attr-defined, no-any-return]

    return again(x)


def renamed(x: Tensor) -> Tensor:
    double.__name__ = "other"
    out = x + len(double.__name__)
    double.__name__ = "double"
    return out


def removed(x: Tensor) -> Tensor:
    double.more = 1
    del double.more
    return x + hasattr(double, "more")


def broken(x: Tensor) -> Tensor:
    double.more = x
    pycompiler.graph_break()
    return double.more + 1  # type: ignore[no-any-return]


FUNCTIONS = (double, its_own, Holder.method)


def outcome(run: Callable[[Tensor], Tensor]) -> Any:
    for fn in FUNCTIONS:
        for name in {*vars(fn)} - {"__wrapped__"}:
            delattr(fn, name)
    double.calls = 0
    outs = [run(torch.ones(2)).tolist() for _ in range(3)]
    return outs, [[(k, str(v)) for k, v in vars(fn).items() if k != "__wrapped__"] for fn in FUNCTIONS]


@pytest.mark.parametrize("program", [calls, its_own, of_a_method, as_a_dict, wrapped_again, renamed, removed, broken])
def test_as_eager(program: Any) -> None:
    whole = program in (calls, its_own, of_a_method)
    assert outcome(pycompiler.compile(program, fullgraph=whole, backend="eager")) == outcome(program)


def test_what_a_hook_reads_of_a_function() -> None:
    def program(x: Tensor) -> Tensor:
        double.scale = 3
        y = x * 1
        y.register_hook(lambda g: g * double.scale)
        return y.sum()

    found = []
    for run in (program, pycompiler.compile(program, backend="aot_eager")):
        x = torch.ones(2, requires_grad=True)
        out = run(x)
        double.scale = 5
        try:
            out.backward()  # type: ignore[no-untyped-call]
            found.append(x.grad)
        except RuntimeError as e:
            found.append(str(e))
    assert "double" in str(found[1]) or torch.equal(found[0], found[1])
