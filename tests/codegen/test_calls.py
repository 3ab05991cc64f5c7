"""Consecutive equal nests: one function, called in a loop over a table of pointers."""

from __future__ import annotations

import pytest
import torch
from kernel_harness import compile_plan, lowered, run_plan

from pycompiler.codegen.cpp.generate import PartCall, join_calls
from tests.harness.compare import assert_same

LAYERS = 6


def values(f, args, looped: str) -> None:  # type: ignore[no-untyped-def]
    plan, _ = compile_plan(lowered(f, args))
    assert plan.source.count(looped) == 1, plan.source
    assert_same(run_plan(plan, args), [*f(*args)])


def test_a_chain_of_equal_layers() -> None:
    def layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for w in weights:
            x = torch.nn.functional.linear(x, w)
        return (x,)

    values(layers, [torch.rand(8, 8) for _ in range(LAYERS + 1)], f"k < {LAYERS}; k++")


def test_equal_nests_that_threads_share() -> None:
    def updates(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(a - 0.1 * torch.sin(b) for a, b in zip(tensors[::2], tensors[1::2], strict=True))

    values(updates, [torch.rand(160, 130) for _ in range(2 * LAYERS)], f"k < {LAYERS}; k++")


def test_parts_that_take_turns_keep_their_order() -> None:
    """Two parts in turns, then a run of one part: one table has all calls, in order."""

    def layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for w in weights[:4]:
            x = torch.nn.functional.linear(x, w).softmax(1)
        for w in weights[4:]:
            x = torch.nn.functional.linear(x, w)
        return (x,)

    values(layers, [torch.rand(8, 8) for _ in range(4 + LAYERS + 1)], "case 0: part0(")


@pytest.mark.parametrize("rows", [8, 160, 900], ids=["alone", "whole nests to threads", "teams"])
def test_equal_sums_over_rows_are_one_function(rows: int) -> None:
    """Column sums and whole sums at once, in one thread, several nests per thread, several threads per nest."""

    def sums(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(out for t in tensors for out in (t.sum(0), (t * t).amax()))

    args = [torch.randn(rows, 130, dtype=torch.float64) for _ in range(LAYERS)]
    plan, _ = compile_plan(lowered(sums, args))
    assert plan.source.count("static PYC_PART void part") <= 2, plan.source
    for threads in (1, 2, 3):
        for ours, eager in zip(run_plan(plan, args, threads=threads), sums(*args), strict=True):
            torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("width", [32, 48])
def test_the_code_of_equal_blocks_does_not_grow(width: int) -> None:
    """Only the table of calls grows: one row and its pointers' descriptions per block."""

    def code(blocks: int) -> int:
        def backward(g: torch.Tensor, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            sums = []
            for x, w in zip(xs[::2], xs[1::2], strict=True):
                g = g * x.softmax(1) - (g * x).sum(1, keepdim=True)
                sums += [g.sum(0)]
                g = g @ w
            return (g, *sums)

        shapes = [(4, width), *[(4, width), (width, width)] * blocks]
        plan, _ = compile_plan(lowered(backward, [torch.randn(s) for s in shapes]))
        lines = [line for line in plan.source.splitlines() if not line.lstrip().startswith(("//", "{"))]
        return sum("for (int64_t" in line for line in lines)

    assert code(6) == code(18)


def test_what_is_added_waits_for_what_it_is_added_to() -> None:
    """Threads share the columns of a scatter; one thread may finish its part of the fill before the other."""

    def scatter(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.sin().index_put((i,), v, accumulate=True),)

    i = torch.arange(65536) % 128
    args = [torch.rand(128, 8, dtype=torch.float64), i, torch.rand(128, 8, dtype=torch.float64)[i]]
    plan, _ = compile_plan(lowered(scatter, args))
    assert plan.source.count("#pragma omp for") == 1
    assert "#pragma omp single" not in plan.source  # the fill, in the region of the threads that add
    for _ in range(20):
        for ours, eager in zip(run_plan(plan, args, threads=2), scatter(*args), strict=True):
            torch.testing.assert_close(ours, eager)


def test_threads_share_the_calls_of_each_part() -> None:
    """A part that one thread runs whole stands beside a part whose loop all threads share."""
    whole, shared = (PartCall.of(part, ["float*"], ["p0"], ["error"], part == "part0") for part in ("part0", "part1"))
    alone = ["#pragma omp single nowait", whole]
    assert join_calls([whole, whole, shared, whole], parallel=True) == [*alone, *alone, shared, *alone]
    assert join_calls([whole, shared], parallel=False) == [whole, shared]
