"""Values that several kernels of a GPU compute again instead of storing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_harness import CPU, Body, buffer, flat, lowered, program
from torch.utils import _pytree as pytree

from pycompiler import config
from pycompiler.ir.interpret_schedule import interpret_schedule
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.loops import Buffer, Loop, Reduction
from pycompiler.ir.target import H200, cpu
from pycompiler.scheduling import rules, schedule
from pycompiler.scheduling.placement import memory_of
from pycompiler.scheduling.simplify import CHEAP
from pycompiler.symbolic.expr import Expr
from tests.harness.compare import assert_same

SHAPE = (64, 32, 64)


def made(f: Callable[..., Any], *arguments: torch.Tensor, on_gpu: bool = True) -> Schedule:
    """A legal schedule with eager's values, also where buffers share memory."""
    given = [a.clone() for a in arguments]
    found = schedule(lowered(f, arguments), H200 if on_gpu else cpu())
    rules.check_schedule(found)
    got = interpret_schedule(found, given, share=True)
    wanted = pytree.tree_leaves(f(*arguments))
    for a, b in zip([*got, *given], [*wanted, *arguments], strict=True):
        assert_same(a, b, tolerance=2e-2 if b.dtype == torch.bfloat16 else 1e-3, history=False)
    return found


def stored(found: Schedule, dtype: torch.dtype = torch.float32) -> int:
    """Buffers as large as the arguments that kernels write."""
    names = {n for k in found.kernels for nest in k.nests for s in nest.stages for n in memory_of(s)}
    shapes = [tuple(map(int, map(str, b.shape))) for n in names if (b := found.buffers[n]).dtype == dtype]
    return sum(torch.Size(s).numel() == torch.Size(SHAPE).numel() for s in shapes)


def half() -> torch.Tensor:
    return torch.randn(SHAPE).bfloat16()


def normalised(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.float() - mean) * scale


def gradients(x: torch.Tensor, g: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> Any:
    z = normalised(x, mean, scale)
    return (g.float() - z * (g.float() * z).sum((0, 1))).bfloat16()


def arguments() -> list[torch.Tensor]:
    return [half(), half(), torch.randn(64), torch.randn(64)]


def test_a_value_of_half_precision_is_computed_again() -> None:
    found = made(gradients, *arguments())
    assert stored(found) == 0
    assert stored(found, torch.bfloat16) == 1  # the result
    x = next(b.name for b in found.program.inputs if b is not None)
    assert sum(x in k.reads for k in found.kernels) == 2


def test_a_cpu_stores_it() -> None:
    assert stored(made(gradients, *arguments(), on_gpu=False)) == 1


def test_a_value_that_takes_less_memory_than_its_sources_is_stored() -> None:
    def two_sources(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = x * y + w
        return z * z.sum((0, 1))

    large = [torch.randn(SHAPE) for _ in range(2)]
    assert stored(made(two_sources, *large, torch.randn(64))) == 2  # the value, and the result


def test_a_value_of_much_arithmetic_is_stored() -> None:
    def much(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        z = torch.erf(torch.exp(torch.sin(x.float() - mean)))
        return (z * z.sum((0, 1))).bfloat16()

    assert stored(made(much, half(), torch.randn(64))) == 1


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_value_of_small_sources_is_not_stored_on_a_gpu(on_gpu: bool) -> None:
    """The gradient of a loss: one number in each row, which the sum of the row and the result need."""

    def gradient(x: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        there = (torch.arange(x.shape[-1]) == labels[..., None]) & (labels[..., None] != 3)
        chosen = torch.where(there, scale, 0.0)
        return chosen - x * chosen.sum(-1, keepdim=True)

    found = made(gradient, torch.randn(SHAPE), torch.randint(0, 64, SHAPE[:2]), torch.randn(()), on_gpu=on_gpu)
    assert len(found.kernels) == 1
    text = str(found)
    assert text.count("where") == (2 if on_gpu else 1)


def test_a_value_that_a_reader_needs_many_times_is_stored() -> None:
    def distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sigmoid()[:, None] - y[None]).square().sum(-1)

    found = made(distances, torch.randn(300, 64), torch.randn(200, 64))
    assert len(found.kernels) == 2
    assert not any("sigmoid" in str(nest) and len(nest.dims) > 2 for k in found.kernels for nest in k.nests)


@pytest.mark.parametrize("knob", [{"fast_math": True}, {"emulate_precision_casts": False}])
def test_a_value_is_stored_if_kernels_may_compute_other_bits(knob: dict[str, bool]) -> None:
    with config.patch(knob):
        found = schedule(lowered(gradients, arguments()), H200)
    assert stored(found) == 1


@pytest.mark.parametrize(
    ("hints", "is_stored"),
    [({"s": 512, "n": 512}, False), ({"s": 512, "n": 2048}, True), ({"s": 512}, True), ({}, True)],
)
def test_a_value_is_stored_if_its_source_is_larger_or_a_size_is_unknown(hints: dict[str, int], is_stored: bool) -> None:
    """The value has `s` rows, its source `n`."""
    s, i, j, k = map(Expr.sym, ("s", "i", "j", "k"))

    def rows(name: str, count: Expr) -> Buffer:
        return Buffer(name, torch.float32, (count, Expr.of(64)), (Expr.of(64), Expr.of(1)), CPU)

    x, v, o, t = rows("x", Expr.sym("n")), rows("v", s), rows("o", s), buffer("t", (64,))
    double, total, scale = Body(), Body(), Body()
    double.load(x, (i, j))
    for at in range(CHEAP + 1):
        double.op("add", at, at)
    total.load(v, (k, j))
    scale.op("mul", scale.load(v, (i, j)), scale.load(t, (j,)))
    sizes = (s, Expr.of(64))
    nodes = [
        Loop((v,), ("i", "j"), sizes, tuple(double.ops), (CHEAP + 1,), (flat(v, (i, j)),)),
        Loop((t,), ("j",), sizes[1:], tuple(total.ops), (0,), (j,), Reduction("sum", ("k",), (s,))),
        Loop((o,), ("i", "j"), sizes, tuple(scale.ops), (2,), (flat(o, (i, j)),)),
    ]
    made = program([x], nodes, [o, t])
    made.hints = hints
    names = {
        n for k in schedule(made, H200).kernels for nest in k.nests for stage in nest.stages for n in memory_of(stage)
    }
    assert ("v" in names) == is_stored


def test_an_input_is_still_written_in_place() -> None:
    def stepped(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        z = (x - v) * v
        total = z.sum((0, 1))
        x.copy_(z * total)
        return z.flip(0) * total

    assert made(stepped, torch.randn(SHAPE), torch.randn(64)).stores


def test_a_result_is_stored_and_not_computed_again() -> None:
    def returned(x: torch.Tensor, g: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> Any:
        return normalised(x, mean, scale), gradients(x, g, mean, scale)

    assert stored(made(returned, *arguments())) == 1


def test_a_source_is_read_before_it_is_written() -> None:
    def written(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        z = (x.float() - mean) * 3
        total = z.sum((0, 1))
        x.copy_((z * total).bfloat16())
        return (z * total.cos()).sum((0, 1))

    assert stored(made(written, half(), torch.randn(64)), torch.bfloat16) == 1  # the new value, copied at the end


def test_a_group_that_nobody_needs_any_more_is_dropped() -> None:
    def spread(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> Any:
        z = normalised(x, mean, scale)
        return z.sum((0, 1)), z.amax(-1)

    found = made(spread, half(), torch.randn(64), torch.randn(64))
    assert stored(found) == 0
    assert all(k.writes for k in found.kernels)
