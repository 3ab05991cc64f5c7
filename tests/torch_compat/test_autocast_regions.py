"""Autocast regions: torch counts their nesting, and a count that stays too high lets later code use stale casts of weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.torch_compat.autocast_regions import autocast_nesting

BACKENDS = ["eager", "aot_eager", "native"]
Fn = Callable[[list[int], torch.Tensor, torch.Tensor], Any]


@torch.compiler.disable
def look(seen: list[int]) -> None:
    seen.append(autocast_nesting())


def bare(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ w


def broken(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ w
        look(seen)
        y = y @ w
    look(seen)
    return y


def nested(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    look(seen)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            look(seen)
            y = y.float() @ w
            with torch.autocast("cpu", torch.bfloat16):
                look(seen)
                y = y @ w
        look(seen)
    return y @ w.to(y.dtype)


def raising(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            look(seen)
            y = x @ w
            raise ValueError(y)
    except ValueError as e:
        return e.args[0] + len(seen)


def of_data(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ w)[(w[0] > 9).long() + 100]
    except IndexError:
        look(seen)
        return x @ w


@contextlib.contextmanager
def half(seen: list[int]) -> Iterator[None]:
    with torch.autocast("cpu", torch.float16):
        look(seen)
        yield
        look(seen)


def of_a_manager(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    with half(seen):
        y = x @ w
    look(seen)
    return y


def looped(seen: list[int], x: torch.Tensor, w: torch.Tensor) -> Any:
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            x = x @ w
            look(seen)
            continue
    return x


FORMS = [bare, broken, nested, raising, of_data, of_a_manager, looped]


@pytest.mark.parametrize("outer", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_regions_are_counted_as_in_eager(form: Fn, backend: str, outer: int) -> None:
    """The nesting count matches eager between graphs and after the call, whatever the count was at capture."""
    x, w = torch.ones(3, 3), torch.full((3, 3), 0.1, requires_grad=True)
    compiled = pycompiler.compile(form, backend=backend)
    for regions in (outer, 1 - outer, outer):
        with contextlib.ExitStack() as stack:
            if regions:
                stack.enter_context(torch.autocast("cpu", enabled=False))
            wanted, found = list[int](), list[int]()
            expected = form(wanted, x, w)
            assert autocast_nesting() == regions
            torch.testing.assert_close(compiled(found, x, w), expected)
            assert (found, autocast_nesting()) == (wanted, regions)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_what_is_trained_behind_it_sees_its_weights(form: Fn, backend: str) -> None:
    """Casts of a weight are dropped where the outermost region ends, also when a graph runs as captured."""

    def steps(run: Fn) -> torch.Tensor:
        w = torch.full((3, 3), 0.1, requires_grad=True)
        for _ in range(3):
            run([], torch.ones(3, 3), w)
            with torch.autocast("cpu", torch.bfloat16):
                (torch.ones(3, 3) @ w).sum().backward()
            with torch.no_grad():
                w -= w.grad * w
        return w

    torch.testing.assert_close(steps(pycompiler.compile(form, backend=backend)), steps(form))


def test_the_count_itself_is_a_break() -> None:
    """The result is the caller's nesting depth, and no guard compares that depth."""

    def fn(x: torch.Tensor) -> Any:
        n = torch.autocast_increment_nesting()
        m = torch.autocast_decrement_nesting()
        return x + n, m

    compiled = pycompiler.compile(fn)
    for regions in (0, 1):
        with contextlib.ExitStack() as stack:
            if regions:
                stack.enter_context(torch.autocast("cpu", enabled=False))
            y, m = compiled(torch.zeros(2))
            assert (y.tolist(), m) == ([regions + 1.0] * 2, regions)
