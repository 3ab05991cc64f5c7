"""`x[i]` with a tensor `i`: eager reads the number and returns a view; the graph may copy where the alias is not observable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


def suppression(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    best = scores.argmax()
    left = torch.maximum(boxes[best, 0], boxes[:, 0])
    area = (boxes[best][2] - boxes[best][0]) * (boxes[0, best] + boxes[-1:, :][0, best])
    return left * area + boxes[best, 1:3].sum()


def trellis(scores: torch.Tensor) -> torch.Tensor:
    best, back = scores[0], []
    for row in scores[1:]:
        best, at = (best[:, None] + row[None]).max(0)
        back.append(at)
    path = [best.argmax()]
    for at in reversed(back):
        path.append(at[path[-1]])
    return torch.stack(path[::-1])


def from_the_end(x: torch.Tensor) -> torch.Tensor:
    i = torch.tensor(-1)
    return x[i] * x[i, i] + x[i.to(torch.int16)].sum()


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_one_graph(backend: str) -> None:
    torch.manual_seed(0)
    for fn, make in (
        (suppression, lambda n: (torch.rand(n, 4, requires_grad=True), torch.rand(n))),
        (trellis, lambda n: (torch.randn(n, 3),)),
        (from_the_end, lambda n: (torch.randn(n, 3, requires_grad=True),)),
    ):
        compiled: Any = pycompiler.compile(fn, backend=backend, fullgraph=True)
        for n in (4, 5, 6):
            args = make(n)  # type: ignore[no-untyped-call]
            sides = []
            for call in (fn, compiled):
                given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
                made = call(*given)
                if made.requires_grad:
                    made.sum().backward()
                sides.append((made, [a.grad for a in given]))
            torch.testing.assert_close(sides[1], sides[0])
        assert compiled.counters()["eager_calls"] == 0


def leaves(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[i], x[i][1:]


def writes(x: torch.Tensor, i: torch.Tensor) -> Any:
    x[i].add_(1)
    return x * 1


def is_written(x: torch.Tensor, i: torch.Tensor) -> Any:
    row = x[i]
    x.mul_(2)
    return row + 1


def of_made(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x * 2
    row = y[i]
    row.zero_()
    return y


def asks(x: torch.Tensor, i: torch.Tensor) -> Any:
    row = x[i]
    return row + 1, row.untyped_storage().nbytes(), row.storage_offset() > 0, row._version


def column(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[:, i] * 2, x.t()[i] * 2, x[:, i].stride()


def byte(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[i.to(torch.uint8) > 0] * 2


@pytest.mark.parametrize("fn", [leaves, writes, is_written, of_made, asks, column, byte])
def test_what_shows_a_view_is_eagers(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn)
    for k in (1, 2, 0):
        seen = []
        for call in (fn, compiled):
            x = torch.arange(12.0).reshape(3, 4)
            made = call(x, torch.tensor(k))
            first = made[0] if isinstance(made, tuple) else made
            first.add_(10)  # shows shared memory
            seen.append((made, x))
        torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_an_index_that_there_is_not(backend: str) -> None:
    compiled = pycompiler.compile(lambda x, i: x[i] * 2, backend=backend)
    for k in (2, 3, -4, 0):
        told = []
        for call in (lambda x, i: x[i] * 2, compiled):
            try:
                told.append(call(torch.arange(3.0), torch.tensor(k)).item())
            except IndexError as error:
                told.append(str(error))
        assert told[0] == told[1]
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
def test_the_index_is_written_before_the_backward(backend: str) -> None:
    """Eager keeps the number: `table[self.position]`, where each call advances the position, inside the frame or outside."""

    def moves(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x[i].sin() * x[i]
        i += 1
        return y

    compiled = pycompiler.compile(moves, backend=backend, fullgraph=True)
    found = []
    for call in (moves, compiled):
        for dtype in (torch.int64, torch.int16):
            x, i = torch.arange(12.0).view(4, 3).requires_grad_(), torch.tensor(0, dtype=dtype)
            made = [call(x, i) for _ in range(3)]
            i.zero_()
            torch.stack(made).sum().backward()
            found.append((made, x.grad))
    torch.testing.assert_close(found[2:], found[:2])
    assert compiled.counters()["compiles"] == 2
