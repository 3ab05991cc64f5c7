"""Results that share memory but are no views of one another for autograd: detached pieces, `.data`, and views of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


def pieces(x: torch.Tensor) -> Any:
    a, b = (x * 2).chunk(2)
    return a, b, a.detach()


def data_of_a_piece(x: torch.Tensor) -> Any:
    v = x + 1
    p = v[:1]
    return p, p.data, v.t()


def twice(x: torch.Tensor) -> Any:
    a = x.clone().detach()[:1]
    return a[:, :1].detach()[:, 0], a


def views_of_one(x: torch.Tensor) -> Any:
    v = x * 2
    b = v[:1].detach()
    return b[:1], b[1:], v


def expanded(x: torch.Tensor) -> Any:
    v = x.expand(2, *x.shape)
    p = v.detach().unbind(0)
    return p[1], v, p[0]


def several(x: torch.Tensor) -> Any:
    v = x.unsqueeze(0)
    p = v.data.tensor_split((0, 2), 1)
    return p[1], p[2], p[0], v


def data_of_an_expanded(x: torch.Tensor) -> Any:
    w = x.expand(2, *x.shape)
    return (w * w.data).sum(), w.data


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [pieces, data_of_a_piece, twice, views_of_one, expanded, several, data_of_an_expanded])
def test_pieces_that_are_cut_off(fn: Callable[[torch.Tensor], Any], grad: bool, backend: str) -> None:
    sides = []
    for run in (fn, pycompiler.compile(fn, backend=backend)):
        x = torch.arange(12.0).view(4, 3).requires_grad_(grad)
        results = run(x * 1 if grad else x)
        facts: list[Any] = [(r.tolist(), r.stride(), r.requires_grad) for r in results]
        if grad and any(r.requires_grad for r in results):
            torch.stack([r.sum() for r in results if r.requires_grad]).sum().backward()
            facts.append(None if x.grad is None else x.grad.tolist())
        with torch.no_grad():
            results[0].add_(1)
        facts.append([r.tolist() for r in results])
        sides.append(facts)
    assert sides[0] == sides[1]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("make", [lambda w: w.t(), lambda w: (w * 1).split(1)[0], lambda w: w])
def test_a_write_that_autograd_refuses_is_refused_before_those_behind_it(
    make: Callable[..., Any], backend: str
) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> None:
        y.mul_(2)
        x.add_(1)

    compiled = pycompiler.compile(program, backend=backend)
    for _ in range(2):
        texts = []
        for run in (program, compiled):
            x, y = torch.ones(2, 2), make(torch.ones(2, 2, requires_grad=True))
            with pytest.raises(RuntimeError) as e:
                run(x, y)
            texts.append(str(e.value))
            assert x.tolist() == [[1, 1], [1, 1]]
        assert texts[0] == texts[1]


def test_a_written_view_leaves_in_inference_mode() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.t()

    for backend in ("aot_eager", "native"):
        x = torch.randn(3, 4, requires_grad=True) * 1
        want = (x * 2).t()
        with torch.inference_mode():
            assert torch.equal(pycompiler.compile(program, backend=backend)(x), want)
        assert torch.equal(x, want.t())
