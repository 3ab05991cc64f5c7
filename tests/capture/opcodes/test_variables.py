"""`capture/opcodes/variables.py`: attribute stores, and imports within functions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.capture.opcodes import variables
from pycompiler.capture.opcodes.variables import importlib_resolve


@pytest.mark.parametrize("name", ["", "d", "d.e"])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_relative_names_are_importlibs(name: str, level: int) -> None:
    package = "a.b.c"
    assert importlib_resolve(name, package, level) == importlib.util.resolve_name("." * level + name, package)


def test_a_store_into_a_module_is_that_of_the_value_s_class() -> None:
    """The value decides where `nn.Module` stores it: a string in the instance dict, a parameter or module in a table."""

    def program(module: torch.nn.Module, x: torch.Tensor, value: Any) -> torch.Tensor:
        module.tag = value
        return x + 1

    compiled = pycompiler.compile(program, backend="eager")
    compiles = []
    for value in ("a", "b", torch.nn.Linear(1, 1), torch.nn.Parameter(torch.ones(1)), 1):
        module = torch.nn.Identity()
        compiled(module, torch.ones(2), value)
        tables = module.__dict__, module._modules, module._parameters
        assert [table.get("tag") is value for table in tables] == [
            not isinstance(value, (torch.nn.Module, torch.nn.Parameter)),
            isinstance(value, torch.nn.Module),
            isinstance(value, torch.nn.Parameter),
        ]
        compiles.append(compiled.counters()["compiles"])
    assert compiles == [1, 1, 2, 3, 4]


@pytest.mark.parametrize(("namespace", "breaks"), [("torch.made.here", 0), ("torchmade", 1)])
def test_torch_functions_import_what_torch_imports_at_a_call(
    namespace: str, breaks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "imported_at_a_call"
    (tmp_path / f"{name}.py").write_text("FACTOR = 3")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(variables, "IMPORTED_BY_TORCH", (name,))
    monkeypatch.setitem(sys.modules, name, None)  # restores the absence afterwards
    del sys.modules[name]
    scope: dict[str, Any] = {"__name__": namespace}
    exec(f"def program(x):\n    import {name}\n    return x * {name}.FACTOR", scope)
    report = pycompiler.explain(scope["program"])(torch.ones(2))
    assert report.graph_break_count == breaks
    assert report.result.tolist() == [3.0, 3.0]
