"""The C++ of a model of equal blocks has as many functions and loops as the C++ of a few blocks, at every layer width."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import graphs
from pycompiler.runtime.toolchain import NoCompiler


def code(width: int, blocks: int) -> list[tuple[int, int]]:
    """(functions, loops) of each graph's C++."""
    found = []

    def build(text: str, *args: Any) -> NoReturn:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
        functions = sum("PYC_PART" in line or 'extern "C"' in line for line in lines)
        found.append((functions, sum("for (int64_t" in line for line in lines)))
        raise NoCompiler("this test reads what would be compiled")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.build, "build", build)
        block = (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Softmax(-1))
        model = nn.Sequential(*(nn.Sequential(*block) for _ in range(blocks)))
        pycompiler.compile(model)(torch.randn(8, width)).sum().backward()
    return found


def test_each_call_of_many_parts_is_found_at_once() -> None:
    """A chain of comparisons per call would take quadratic time in the 100 calls, to compile and to run."""
    texts: list[str] = []

    def build(text: str, *args: Any) -> NoReturn:
        texts.append(text)
        raise NoCompiler("this test reads what would be compiled")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.build, "build", build)
        pycompiler.compile(lambda x: [x + i for i in range(100)])(torch.ones(1))
    [text] = texts
    assert text.count("switch (at[k][0])") == 1
    assert text.count("case ") == 100
    assert "if (at[k]" not in text


@pytest.mark.parametrize("width", [16, 32, 48, 64])
def test_code_does_not_grow_with_blocks(width: int) -> None:
    few, many = code(width, 3), code(width, 6)
    assert len(few) == len(many) == 2
    assert all(b <= a for fs, ms in zip(few, many, strict=True) for a, b in zip(fs, ms, strict=True)), (few, many)
