"""Queries about sizes (`guard_or_false` and its kin) in captured code, with numbers and with symbols."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental import symbolic_shapes as shapes

import pycompiler
from tests.harness.compare import assert_same

QUERIES: dict[str, Callable[[Any, Any], Any]] = {
    "guard_or_false": lambda n, m: shapes.guard_or_false(n == m),
    "guard_or_true": lambda n, m: shapes.guard_or_true(n < m),
    "guard_size_oblivious": lambda n, m: shapes.guard_size_oblivious(n == 1),
    "statically_known_true": lambda n, m: shapes.statically_known_true(True),
    "sym_and": lambda n, m: shapes.sym_and(n < m, n > 1),
    "sym_or": lambda n, m: shapes.sym_or(n > m, m == 5),
    "sym_eq": lambda n, m: shapes.sym_eq((n, m), (2, 3)),
    "is_nested_int": lambda n, m: shapes.is_nested_int(n),
    "guard_int": lambda n, m: shapes.guard_int(n) + m,
    "guarding_hint_or_throw": lambda n, m: shapes.guarding_hint_or_throw(n) * 2,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [name for name in QUERIES if hasattr(shapes, name)])
def test_answers_are_eagers(name: str, dynamic: bool) -> None:
    """Each size gives eager's answer, also where an entry of another size exists."""
    query = QUERIES[name]

    def program(x: torch.Tensor) -> Any:
        return x * 2, query(x.shape[0], x.shape[1])

    compiled = pycompiler.compile(program, dynamic=dynamic, fullgraph=True, backend="eager")
    for size in ((2, 3), (3, 3), (4, 2), (2, 5), (2, 3)):
        x = torch.ones(size)
        assert_same(compiled(x), program(x))


def test_the_module_is_imported_by_a_function_of_torch() -> None:
    """In eager, too, the function's call is the first import of the module."""
    program = """
import sys, torch, pycompiler
from torch._prims_common import is_non_overlapping_and_dense_or_false as dense
assert "torch.fx.experimental.symbolic_shapes" not in sys.modules
compiled = pycompiler.compile(lambda x: (x + 1, dense(x)), fullgraph=True, backend="eager")
x = torch.ones(2, 3).t()
print(compiled(x)[1], dense(x))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "True True\n"
