"""Shuffles of channels: loops without divisions, with eager's values."""

from __future__ import annotations

import pytest
import torch
from kernel_harness import lowered

import pycompiler
from pycompiler.codegen.cpp import generate
from pycompiler.ir.target import of_program
from pycompiler.scheduling import schedule


def shuffled(x: torch.Tensor, groups: int) -> torch.Tensor:
    n, c, h, w = x.shape
    return (
        x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w).to(memory_format=torch.channels_last)
    )


def image(channels: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(2, channels, 5, 3).mul(100).to(dtype)
    return made.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
@pytest.mark.parametrize(("channels", "groups"), [(116, 2), (12, 3), (20, 4), (10, 5), (7, 1), (2, 2)])
def test_shuffles_of_channels(channels: int, groups: int, dtype: torch.dtype) -> None:
    x = image(channels, dtype)
    compiled = pycompiler.compile(lambda x: shuffled(x, groups), fullgraph=True)
    assert torch.equal(compiled(x), shuffled(x, groups))


def test_halves_of_shuffled_channels_and_their_sum() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = shuffled(torch.cat((x, y), 1), 2).chunk(2, 1)
        return a.contiguous(memory_format=torch.channels_last), b.relu() + x

    x, y = image(24), image(24)
    for have, wanted in zip(pycompiler.compile(program, fullgraph=True)(x, y), program(x, y), strict=True):
        assert torch.equal(have, wanted)


@pytest.mark.parametrize(("channels", "groups"), [(32, 2), (24, 3), (32, 4)])
def test_the_loop_divides_nothing(channels: int, groups: int) -> None:
    program = lowered(lambda x: shuffled(x, groups), (image(channels),))
    text = generate(schedule(program, of_program(program))).text
    assert "j0" in text and " % " not in text and " / " not in text
