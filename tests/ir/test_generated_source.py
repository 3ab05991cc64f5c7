"""Lifetime of generated source text: the text is dropped when its owner is freed."""

from __future__ import annotations

import gc
import linecache

import pytest
import torch
from torch.fx.graph_module import _loader

import pycompiler
from pycompiler.ir.generated_source import drop_source_when_freed, register_source


def texts() -> set[str]:
    gc.collect()
    return {name for name in (*linecache.cache, *_loader.eval_cache) if name.startswith("<")}


def test_kept_while_its_owner_lives() -> None:
    def owner() -> None: ...

    register_source(owner, "<kept>", "first\nsecond\n")
    assert linecache.getline("<kept>", 2) == "second\n"
    del owner
    assert "<kept>" not in texts()


def test_text_of_a_graph() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    gm(torch.ones(1))
    drop_source_when_freed(gm)
    name = type(gm).forward.__code__.co_filename
    assert name in texts()
    del gm
    assert name not in texts()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_compiles_leave_none(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin().sum()

    def cycle() -> None:
        compiled = pycompiler.compile(program, backend=backend)
        compiled(torch.ones(3, requires_grad=True)).backward()

    cycle()
    before = texts()
    for _ in range(3):
        cycle()
    assert texts() <= before
