"""Operators of `torch.library` beside eager: which errors they raise nothing tells, and what they write they write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")


@torch.library.custom_op("pycompiler_library::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    if x.sum() > 100:
        raise ValueError("too much")
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pycompiler_library::put", mutates_args=("b",))
def put(b: Tensor, x: Tensor) -> None:
    if x.sum() > 100:
        raise ValueError("too much")
    b.copy_(x)


class Count:
    n = 0


def caught(count: Count, x: Tensor, b: Tensor) -> Any:
    count.n += 1
    try:
        return doubled(x + 1).sin(), count.n
    except ValueError as error:
        return str(error), x * 3


def caught_further_out(count: Count, x: Tensor, b: Tensor) -> Any:
    def inner(x: Tensor) -> Tensor:
        count.n += 1
        y = doubled(x)
        count.n += 1
        return y

    try:
        return inner(x)
    except ValueError:
        return count.n, x + 1


def suppressed(count: Count, x: Tensor, b: Tensor) -> Tensor:
    with contextlib.suppress(ValueError):
        x = doubled(x) + 1
    return x * 2


def behind_a_draw(count: Count, x: Tensor, b: Tensor) -> Tensor:
    dropped = torch.dropout(x, 0.5, True)
    return doubled(x) + dropped


def behind_an_effect(count: Count, x: Tensor, b: Tensor) -> Tensor:
    count.n += 1
    y = doubled(x)
    count.n += 1
    return y


def between_writes(count: Count, x: Tensor, b: Tensor) -> Tensor:
    b.add_(1)
    y = doubled(x)
    b.mul_(2)
    return y + b


def written_and_caught(count: Count, x: Tensor, b: Tensor) -> Any:
    try:
        put(b, x)
        return b * 2
    except ValueError as error:
        return str(error), x + b


def written_and_suppressed(count: Count, x: Tensor, b: Tensor) -> Tensor:
    with contextlib.suppress(ValueError), torch.no_grad():
        put(b, x)
        x = x + 1
    return x * b


def written_without_gradients(count: Count, x: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        put(b, x)
        return doubled(b)


WHOLE = (
    caught,
    caught_further_out,
    suppressed,
    behind_a_draw,
    behind_an_effect,
    between_writes,
    written_without_gradients,
)
BROKEN = (written_and_caught, written_and_suppressed)


def seen(fn: Callable[..., Any], size: float) -> list[Any]:
    """What a call gives or raises, and leaves behind."""
    torch.manual_seed(0)
    count, b = Count(), torch.ones(4)
    try:
        found = fn(count, torch.full((4,), size), b)
    except ValueError as error:
        found = type(error), str(error)
    return [found, count.n, b, torch.rand(2)]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [*WHOLE, *BROKEN], ids=lambda f: f.__name__)
def test_errors_are_eagers(program: Callable[..., Any], backend: str) -> None:
    run = pycompiler.compile(program, backend=backend)
    for size in (1.0, 2.0, 60.0, 1.0):
        assert_same(seen(run, size), seen(program, size))
    assert run.counters()["compiles"] == 1
    assert pycompiler.explain(program)(Count(), torch.ones(4), torch.ones(4)).graph_break_count == (program in BROKEN)
