"""Forms of loops that depend on size and context: parts of one buffer, tiles, blocks, sines near and far, groups of
bf16 roundings. Values are compared with eager, and the source must use the form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernel_harness import check, compile_plan, lowered, run_plan

import pycompiler
from pycompiler.codegen.cpp import generate
from pycompiler.ir.target import cpu, of_program
from pycompiler.scheduling import schedule


def text(f: Callable[..., Any], *args: torch.Tensor) -> str:
    program = lowered(f, args)
    return generate(schedule(program, of_program(program))).text


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("widths", [(40, 40), (40, 24, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_row_share_its_loop(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = [random(300, w, dtype=dtype) for w in widths]

    def cat(*xs: torch.Tensor) -> torch.Tensor:
        return torch.cat(xs, -1)

    assert text(cat, *parts).count("i0 < 300") == 1
    check(cat, parts)


def test_parts_beyond_a_bundle_share_its_loop() -> None:
    x = random(1100, 2048, dtype=torch.bfloat16)
    made = text(lambda x: torch.cat((x, x), -1), x)
    assert made.count("i0 < 1100") == 1
    assert 0 < made.index("#pragma omp parallel") < made.index(": cat\n")


@pytest.mark.parametrize("shape", [(64, 64), (321, 130), (130, 321), (600, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check(lambda x, y: x.t() + y, [random(*shape, dtype=dtype), random(*shape[::-1], dtype=dtype)])


@pytest.mark.parametrize("size", [128, 4096, 4224, 16384, 16448, 16400])
def test_blocks(size: int) -> None:
    x, block = random(size), cpu().block
    assert (f"block[{block}]" in text(torch.relu, x)) == (size % block == 0)
    check(torch.relu, [x])


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sines_near_and_far(far: bool, dtype: torch.dtype) -> None:
    x = torch.linspace(-3e4, 3e4, 9001)
    x[:4] = torch.tensor([0.0, -0.0, float("nan"), float("inf")])
    if far:
        x[5000:5003] = torch.tensor([1e5, -3e9, 1e30])
    x = x.to(dtype)
    check(lambda x: (torch.sin(x), torch.cos(x * 0.5) + torch.sin(x), torch.sin(torch.sin(x))), [x])
    for n in (9001, 4096):
        assert ("pyc_sin_near" in text(torch.sin, x[:n].clone())) == (dtype != torch.float64)


def test_sines_do_not_depend_on_their_neighbours() -> None:
    x = torch.linspace(-9999, 9999, 4096)
    y = x.clone()
    y[7] = 3e4
    compiled = pycompiler.compile(lambda x: (x.sin(), x.cos(), x.sin().sin()))
    for one, other in zip(compiled(x), compiled(y), strict=True):
        assert torch.equal(one[8:], other[8:])


@pytest.mark.parametrize("f", [F.gelu, lambda x: torch.log(x.abs()), torch.sin, torch.cos])
def test_every_bf16_number(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """At most one place further from the true value than eager's (gelu's tail has no correct digit left in either)."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    x = x[x.isfinite()]
    got, eager, want = (y.view(torch.int16).int() for y in (run_one(f, x), f(x), f(x.double()).bfloat16()))
    assert ((got - want).abs() <= (eager - want).abs() + 1).all()


def run_one(f: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    plan, _ = compile_plan(lowered(f, [x]))
    result = run_plan(plan, [x])[0]
    assert isinstance(result, torch.Tensor)
    return result
