"""Lower a function, verify the program, interpret it, compare with eager: values, dtypes, shapes and strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from aten_graph import aten_graph
from torch.utils import _pytree as pytree

from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Extern, Program
from pycompiler.ir.verify import verify
from pycompiler.lowering import lower
from tests.harness.compare import assert_same


def lowered(f: Callable[..., Any], args: Sequence[Any]) -> Program:
    program = lower(aten_graph(f, args))
    verify(program)
    return program


def externs(program: Program) -> list[str]:
    return [str(n.op) for n in program.nodes if isinstance(n, Extern)]


def check(f: Callable[..., Any], args: Sequence[Any], *, native: bool | None = None,
          rtol: float | None = None, atol: float | None = None) -> Program:  # fmt: skip
    """native: whether there must be no Extern (None: either)."""
    program = lowered(f, args)
    if native is not None:
        assert (not externs(program)) == native, externs(program)
    with torch.no_grad():
        want = pytree.tree_leaves(f(*args))
    got = interpret(program, list(args))
    assert len(want) == len(got)
    for a, b in zip(got, want, strict=True):
        half = isinstance(b, torch.Tensor) and b.dtype in (torch.bfloat16, torch.float16)
        tolerance = 2e-2 if half and rtol is None else rtol
        assert_same(a, b, tolerance=tolerance, absolute=atol, strides=False)
        if isinstance(b, torch.Tensor):  # strides of dimensions of one element have no meaning
            strides = [(s, t) for s, t, n in zip(a.stride(), b.stride(), b.shape, strict=True) if n > 1 and b.numel()]
            assert all(s == t for s, t in strides), f"strides {a.stride()}, eager's {b.stride()}"
    return program


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + 31 * sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def ints(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + 7 * sum(shape))
    return torch.randint(low, high, shape, generator=g).to(dtype)


def bools(*shape: int, seed: int = 0) -> torch.Tensor:
    return randn(*shape, seed=seed + 5) > 0
