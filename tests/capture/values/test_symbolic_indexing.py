"""Indices that change from call to call: one graph serves all, and values and gradients match eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler


def _stored(a: Any, n: int) -> Any:
    b = a.clone()
    b[:, n - 1] = a[0, 0]
    b[n - 2] = torch.ones(1, a.shape[1])
    b[..., n - 1, None] = 3.0
    return b


READS: dict[str, Callable[[Any, int], Any]] = {
    "row": lambda a, n: a[n - 1],
    "column": lambda a, n: a[:, n - 2],
    "from behind": lambda a, n: a[-n],
    "last": lambda a, n: a[..., n - 1],
    "both": lambda a, n: a[n - 1, n - 2],
    "new axes": lambda a, n: a[None, n - 1, None, 1:, None],
    "after a number": lambda a, n: a[1, ..., n - 1],
    "stored": _stored,
}


@pytest.mark.parametrize("name", READS)
def test_one_graph_for_all_indices(name: str) -> None:
    def program(a: Any, b: Any) -> Any:
        return READS[name](a, b.size(0)) * 2

    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    for n in range(3, 8):
        inputs = [torch.randn(8, 9).requires_grad_()]
        inputs.append(inputs[0].detach().clone().requires_grad_())
        made = [fn(x, torch.ones(n)) for fn, x in zip((program, compiled), inputs, strict=True)]
        assert torch.equal(*made)
        for out in made:
            out.square().sum().backward()
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    assert compiled.counters()["compiles"] == 2


def test_an_index_that_does_not_fit() -> None:
    """The error is eager's, in whichever call it comes."""

    def program(a: Any, b: Any) -> Any:
        return a[b.size(0)].clone()

    compiled = pycompiler.compile(program, backend="aot_eager")
    for n in (3, 4, 8, 5, 9):
        a, b = torch.randn(8), torch.ones(n)
        try:
            expected = program(a, b)
        except IndexError as e:
            with pytest.raises(IndexError) as found:
                compiled(a, b)
            assert str(found.value) == str(e)
        else:
            assert torch.equal(compiled(a, b), expected)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_number_in_a_tensor_is_an_index_where_it_is_checked(backend: str) -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        i = index.item()
        torch._check(i >= 0)
        torch._check(i + 1 < x.size(0))
        x = x * 2
        x[i + 1] = 5
        x[i, 1:].add_(1)
        return x[i].sin() + x[:, i + 1].sum() + x

    x = torch.arange(12.0).reshape(3, 4)
    with pycompiler.config.patch(capture_scalar_outputs=True):
        compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
        for i in (1, 0, 1, 0):
            torch.testing.assert_close(compiled(x, torch.tensor(i)), program(x, torch.tensor(i)))
        for i in (2, -1, 7):
            with pytest.raises(RuntimeError, match="Expected cond"):
                compiled(x, torch.tensor(i))
    assert compiled.counters()["compiles"] == 1


def test_a_number_in_a_tensor_that_nothing_is_known_of() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index.item()] * 2

    x = torch.arange(12.0).reshape(3, 4)
    with pycompiler.config.patch(capture_scalar_outputs=True):
        compiled = pycompiler.compile(program, backend="eager")
        for i in (1, 0, -1, -3, 2):
            assert torch.equal(compiled(x, torch.tensor(i)), program(x, torch.tensor(i)))
        for i in (3, -4):
            with pytest.raises(IndexError):
                compiled(x, torch.tensor(i))
