"""`one_hot` in a graph: eager's kernel reads the smallest and the largest class, and the graph does not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler

W = torch.linspace(-1, 1, 10).view(5, 2)


def program(i: torch.Tensor, w: torch.Tensor) -> Any:
    return F.one_hot(i, 5), F.one_hot(i, num_classes=5).float() @ w


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0)], ids=str)
def test_values_and_gradients(shape: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    compiled = pycompiler.compile(program, fullgraph=True)
    i = torch.arange(torch.Size(shape).numel()).view(shape) % 5
    found = []
    with caplog.at_level(logging.WARNING):
        for fn in (program, compiled):
            w = W.clone().requires_grad_()
            rows, made = fn(i, w)
            made.sum().backward()
            found.append((rows, made, w.grad))
    torch.testing.assert_close(found[1], found[0])
    assert not caplog.records


@pytest.mark.parametrize("bad", [5, -1])
def test_classes_that_are_none(bad: int) -> None:
    compiled = pycompiler.compile(lambda i: F.one_hot(i, 5) + 1, fullgraph=True)
    assert compiled(torch.tensor([4, 0])).tolist() == [[1, 1, 1, 1, 2], [2, 1, 1, 1, 1]]
    with pytest.raises(RuntimeError):
        compiled(torch.tensor([1, bad]))


def test_sizes_that_change() -> None:
    compiled = pycompiler.compile(lambda i: F.one_hot(i, 3) * 2)
    for n in (2, 3, 5, 7):
        i = torch.arange(n) % 3
        assert torch.equal(compiled(i), F.one_hot(i, 3) * 2)
    made = pycompiler.compile(lambda i, n: F.one_hot(i, n) * 2)
    for classes in (3, 4, 5, 6):
        assert torch.equal(made(torch.arange(3), classes), F.one_hot(torch.arange(3), classes) * 2)
