"""Folds over a middle dimension, scatters distributed by columns, tiled transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_harness import check, lowered

from pycompiler.codegen.cpp import generate
from pycompiler.codegen.cpp.nest import SUMMED
from pycompiler.ir.target import of_program
from pycompiler.scheduling import schedule
from pycompiler.scheduling.two_passes import TWO_PASSES


@pytest.mark.parametrize("shape", [(6, 20, 32), (2, 300, 1024), (3, 5, 7, 64), (1, 700, 96), (40, 9, 24)])
@pytest.mark.parametrize("kind", ["sum", "amax", "mean"])
def test_middle_fold(kind: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    s = check(lambda x: getattr(x, kind)(1), [x], rtol=1e-5, atol=1e-4)
    roles = {stage.role for k in s.kernels for stage in k.stages()}
    assert roles & {"column", "accumulate"}, s


def test_softmax_over_a_middle_dimension_is_one_kernel() -> None:
    check(lambda x: x.softmax(1), [torch.randn(16, 20, 32)], 1)


def test_fold_of_booleans_and_integers() -> None:
    x = torch.randint(-3, 3, (9, 30, 16))
    check(lambda x: ((x > 1).any(1), x.sum(1), (x > -3).all(1)), [x])


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_extremes_in_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of 2**31 numbers or more, whose positions do not fit the second pass's int32."""
    monkeypatch.delitem(TWO_PASSES, kind)
    x = torch.randn(9, 30, 16)
    check(lambda x: (getattr(x, kind)(1), getattr(x, kind)(), getattr(x.transpose(0, 2), kind)()), [x])


def test_norm_over_channels_last() -> None:
    x = torch.randn(4, 6, 6, 24)
    check(lambda x: (x - x.mean((0, 1, 2))) * (x.var((0, 1, 2)) + 1e-5).rsqrt(), [x], atol=1e-5)


@pytest.mark.parametrize("columns", [1, 7, 32, 100])
def test_embedding_gradient(columns: int) -> None:
    ids = torch.randint(0, 50, (4, 300))
    grad = torch.randn(4, 300, columns)
    check(lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 50, -1, False), [grad, ids], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(32, 32), (100, 70), (3, 65, 129), (70, 3, 66)])
def test_transposes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 3).to(dtype)
    check(lambda x: (x.transpose(-1, -2).contiguous(), x.permute(*reversed(range(x.dim()))).contiguous()), [x])
    if dtype.is_floating_point:
        y = torch.randn((*shape[:-2], shape[-1], shape[-2])).to(dtype)
        check(lambda x, y: (x.transpose(-1, -2) + y).exp(), [x, y])


def code(f: Callable[..., Any], *args: torch.Tensor) -> str:
    program = lowered(f, args)
    return generate(schedule(program, of_program(program))).text


def test_only_reads_across_a_tile_go_through_it() -> None:
    x, y = torch.randn(100, 70), torch.randn(70, 100)
    assert code(lambda x, y: x.t() * y, x, y).count("__builtin_prefetch") == 1
    assert code(lambda x, y: x * 2 + y.t(), x, y).count("__builtin_prefetch") == 1
    assert code(lambda x, y: x * y, x, x).count("__builtin_prefetch") == 0
    assert code(lambda x: x.permute(2, 1, 0).contiguous(), torch.randn(100, 3, 70)).count("__builtin_prefetch") == 1


def test_sums_of_doubles_are_made_of_chunks_where_they_are_long() -> None:
    def loops(columns: int) -> int:
        return code(lambda x: x.sum(1), torch.randn(64, columns, dtype=torch.float64)).count("for (")

    assert loops(SUMMED) == loops(8)
    assert loops(SUMMED + 1) == loops(8) + 1
    totals = [code(lambda x: x.sum(1), torch.randn(64, n)).count("double sum_") for n in (8, 20000)]
    assert totals == [0, 1]


def test_an_index_that_is_in_range_is_checked_once() -> None:
    text = code(lambda x, i: x[i] * 2, torch.randn(8, 16), torch.tensor([1, 2, -3]))
    assert (text.count("pyc_wrap_index("), text.count("pyc_checked(")) == (1, 0)


@pytest.mark.parametrize("index", [[0, 0, 0], [-1, 0, -1]])
def test_the_only_element_is_the_last_one_too(index: list[int]) -> None:
    check(lambda x, i: x[i] * 2, [torch.randn(1, 5), torch.tensor(index)])
    check(lambda x, i: x[:, i] * 2, [torch.randn(5, 1), torch.tensor(index)])
