"""Strided views (`as_strided`): offsets count from the start of the storage, across views and for any offset of an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

BACKENDS = ("eager", "aot_eager", "native")


def of_a_part(x: torch.Tensor) -> Any:
    y = x * 2
    return y[2:].as_strided((2, 3), (3, 1), 1) + 1, y.t()[1:].as_strided((4,), (2,), 0) * y.as_strided((4,), (1,), 3)


def of_a_view_by_strides(x: torch.Tensor) -> Any:
    t = x.as_strided((3, 2, 2), (3, 2, 1), 1)
    return t * 2, t.as_strided((2, 4, 1), (2, 0, 2), 0) * 2, t[1:].as_strided((2, 2), (1, 2)) * 2


def of_a_result_seen_by_strides(x: torch.Tensor) -> Any:
    y = (x * 2).t().expand(3, 2, 6)
    t = y.as_strided((2, 2), (5, 1), 3)
    return t + 1, t[1:].as_strided((3, 3), (1, 2), 0) + 1, t[:, 1].as_strided((3,), (2,)) + 1


def twice_from_where_it_is(x: torch.Tensor) -> Any:
    t = x[1:].as_strided((2, 2), (2, 1))
    return t.as_strided((4,), (2,)) * 3, (x + 1)[2:].as_strided((4,), (1,)).as_strided((2,), (3,)) * 2


def of_a_written_input(x: torch.Tensor) -> Any:
    x.detach()[1:].mul_(3)
    return x.as_strided((2, 2), (2, 1), 7) * 2


def written_by_strides(x: torch.Tensor) -> Any:
    x.detach().as_strided((2, 2), (2, 1), 7).mul_(2)
    return x + 1


def scattered(x: torch.Tensor) -> Any:
    return torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (2, 1), 7) + 1


def beside_the_input(x: torch.Tensor) -> Any:
    return (x[:2].as_strided((14,), (1,), 1) + 1).exp()


def written_beside_the_input(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.as_strided((14,), (1,)).mul_(3)
    return x + 1


def moved_beside(x: torch.Tensor) -> Any:
    with torch.no_grad():
        first, second = x.as_strided((12,), (1,)), x.as_strided((14,), (1,))
        first.add_(1)
    return x + second[:12].view(6, 2), x.sum() * second


def written_and_seen_beside(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
        second = x.as_strided((14,), (1,)) * 1
    return x.sum() * second


PROGRAMS: list[Callable[..., Any]] = [
    of_a_part, of_a_view_by_strides, of_a_result_seen_by_strides, twice_from_where_it_is, of_a_written_input,
    written_by_strides, scattered, beside_the_input, written_beside_the_input, moved_beside, written_and_seen_beside,
]  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_where_elements_are_counted_from(fn: Callable[..., Any], backend: str, grad: bool) -> None:
    """One compile serves inputs that start anywhere in their storage."""
    compiled = pycompiler.compile(fn, backend=backend)
    for start in (0, 6, 3):
        seen = []
        for run in (fn, compiled):
            memory = torch.arange(40.0).div(40)
            x = memory[start : start + 12].view(6, 2).requires_grad_(grad)
            results = run(x)
            results = results if isinstance(results, tuple) else (results,)
            if grad:
                torch.autograd.backward([r.square().sum() for r in results])
            seen.append((*[r.detach() for r in results], memory.detach(), *([x.grad] if grad else [])))
        torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_many_elements_beside_a_part_as_a_number_says(backend: str) -> None:
    """A write through a strided view goes to memory, not only to the input's own elements."""

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        x.as_strided((n,), (1,)).fill_(3)
        return x + 1

    compiled = pycompiler.compile(fn, backend=backend)
    for n in (2, 3, 4, 7, 9, 5):
        memories = [torch.arange(12.0) for _ in range(2)]
        assert torch.equal(compiled(memories[0][2:6], n), fn(memories[1][2:6], n))
        assert torch.equal(*memories)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("start", [0, 5])
def test_what_lies_beside_an_input_is_saved(backend: str, start: int) -> None:
    """A small input is saved for the backward as a copy, which has no neighbouring memory."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3, 3), (3, 1), 2).t() * w

    made = []
    for run in (fn, pycompiler.compile(fn, backend=backend)):
        memory, w = torch.arange(40.0), torch.ones(3, 3, requires_grad=True)
        run(memory[start : start + 2], w).sum().backward()
        made.append(w.grad)
    assert torch.equal(made[0], made[1])


def test_strides_of_memory_of_another_type() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (x * 2)[1:].view(torch.int32).as_strided((2, 2), (2, 1), 0) + 1

    x = torch.arange(12.0).view(6, 2)
    assert torch.equal(pycompiler.compile(fn)(x), fn(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_is_a_view_of_what_it_was_made_of(backend: str) -> None:
    """The gradient of a strided view covers the elements of its argument only."""

    def fn(x: torch.Tensor) -> Any:
        v = (x * 3)[2:]
        return v.as_strided((2, 2), (2, 1), 1), v.as_strided((2, 2), (1, 2), 5), v

    made = []
    for run in (fn, pycompiler.compile(fn, backend=backend)):
        x = torch.arange(10.0).view(5, 2).requires_grad_()
        results = run(x)
        torch.autograd.backward([r.square().sum() for r in results])
        made.append((*[r.detach() for r in results], x.grad))
    torch.testing.assert_close(made[1], made[0])
