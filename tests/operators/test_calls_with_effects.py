"""Calls with unused results and a side effect: they run once, in order, and raise eager's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")
LOG: list[float] = []


@torch.library.custom_op("pycompiler_effects::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    LOG.append(float(x.sum()))


@torch.library.custom_op("pycompiler_effects::through", mutates_args=())
def through(x: torch.Tensor) -> torch.Tensor:
    LOG.append(-float(x.sum()))
    return x * 2


@note.register_fake
def _(x: torch.Tensor) -> None:
    return None


@through.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(params=BACKENDS)
def compiled(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    LOG.clear()
    yield lambda fn: pycompiler.compile(fn, backend=request.param)


def test_operators_without_results_run_in_order(compiled: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.pycompiler_effects.note(x.sum(0) + 1)
        torch.ops.pycompiler_effects.note(x * 2)
        torch.ops.pycompiler_effects.through(x)
        torch.ops.pycompiler_effects.note(x * 2)
        torch.ops.pycompiler_effects.through(x)
        return x.softmax(0)

    x = torch.ones(2, 2)
    fn(x)
    expected = list(LOG)
    assert len(expected) == 5
    run = compiled(fn)
    for _ in range(2):
        LOG.clear()
        run(x)
        assert LOG == expected


def test_nothing_but_an_effect(compiled: Any) -> None:
    def fn(x: torch.Tensor) -> None:
        torch.ops.pycompiler_effects.note(x + 1)

    run = compiled(fn)
    for _ in range(3):
        run(torch.ones(2))
    assert LOG == [4.0, 4.0, 4.0]


def test_effects_are_not_repeated_by_the_backward(compiled: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.pycompiler_effects.note(x.exp())
        return x.exp().sin().sum()

    run = compiled(fn)
    run(torch.zeros(2, requires_grad=True)).backward()
    assert LOG == [2.0]


def test_in_inference_mode_tensors_count_no_versions(compiled: Any) -> None:
    def fn(x: torch.Tensor) -> None:
        x.add_(1)

    with torch.inference_mode():
        x = torch.zeros(3)
        run = compiled(fn)
        run(x)
        run(x)
        torch.testing.assert_close(x, torch.full((3,), 2.0))


def test_dropped_random_numbers_are_drawn(compiled: Any) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.nn.functional.dropout(x, 0.5)
        torch.rand(3)
        torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return torch.rand(2)

    x = torch.ones(1, 2, 2)
    torch.manual_seed(0)
    expected = fn(x)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(fn)(x), expected)


SINGULAR = torch.zeros(3, 3)
NEGATIVE = -torch.eye(3)


def unused(fn: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        fn(x)
        return x + 1

    return program


def asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "not positive")
    return x + 1


RAISING: list[tuple[Callable[..., Any], torch.Tensor]] = [
    (torch.linalg.inv, SINGULAR),
    (unused(torch.linalg.inv), SINGULAR),
    (lambda x: torch.linalg.solve(x, x) * 2, SINGULAR),
    (lambda x: torch.linalg.cholesky(x) * 0, NEGATIVE),
    (unused(torch.linalg.cholesky), NEGATIVE),
    (asserted, NEGATIVE),
    (unused(lambda x: x[torch.full((2,), 7)]), NEGATIVE),
]


@pytest.mark.parametrize("number", range(len(RAISING)))
@pytest.mark.parametrize("grad", [False, True])
def test_errors_that_depend_on_data(number: int, grad: bool, compiled: Any) -> None:
    fn, bad = RAISING[number]
    run = compiled(fn)
    good = torch.eye(3) * 2 if fn is not asserted else torch.ones(3)
    if number < len(RAISING) - 1:
        run(good.requires_grad_(grad))
        bad = bad if fn is not asserted else bad[0]
    bad = bad.clone().requires_grad_(grad)
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        fn(bad)
    with pytest.raises(type(theirs.value)) as ours:
        run(bad)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


@pytest.mark.parametrize("on", [False, True])
def test_grad_mode_that_ends_otherwise(on: bool, compiled: Any) -> None:
    def fn(x: torch.Tensor) -> Any:
        before = x * 2
        torch.set_grad_enabled(on)
        return before, x * 3

    x = torch.ones(3, requires_grad=True)
    run = compiled(fn)
    for start in (True, False, True):
        found = []
        for call in (fn, run):
            with torch.set_grad_enabled(start):
                outs = call(x)
                found.append([torch.is_grad_enabled(), *(o.requires_grad for o in outs)])
        assert found[0] == found[1]
