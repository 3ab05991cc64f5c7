"""The API page: it has each public name once, docstrings describe each parameter, and their examples run."""

from __future__ import annotations

import builtins
import inspect
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config, exc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
ENTRIES = re.findall(r"^::: pycompiler\.(\S+)$", PAGE, re.M)
FUNCTIONS = [name for name in pycompiler.__all__ if callable(getattr(pycompiler, name))]
OF_MODULES = ("config.patch", "config.snapshot", "config.describe", "precompile.capture", "precompile.load")
WITH_EXAMPLE = [*FUNCTIONS, "config", *OF_MODULES, "exc", "precompile"]
MARKS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def named(name: str) -> Any:
    found: Any = pycompiler
    for part in name.split("."):
        found = getattr(found, part)
    return found


def sections(value: Any) -> dict[str, str]:
    """The sections of a docstring (`Args`, `Returns`, `Raises`, `Example`); the text before them is ``."""
    parts = re.split(r"^(Args|Attributes|Returns|Raises|Example):\n", inspect.getdoc(value) or "", flags=re.M)
    return {"": parts[0], **{head: textwrap.dedent(text) for head, text in zip(parts[1::2], parts[2::2])}}


def items(section: str) -> list[str]:
    """The names that a section's items begin with."""
    return re.findall(r"^(\*{0,2}[\w.]+)(?: \(.+?\))?: \S", section, re.M)


def test_each_public_name_is_there_once() -> None:
    public = [name for name in ENTRIES if "." not in name]
    assert sorted(public) == sorted(pycompiler.__all__)
    assert len(set(ENTRIES)) == len(ENTRIES)


def test_each_error_is_there_once() -> None:
    shown = [name.removeprefix("exc.") for name in ENTRIES if name.startswith("exc.")]
    aliases = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|$", PAGE, re.M))
    assert sorted([*shown, *aliases]) == sorted(exc.__all__)
    assert all(getattr(exc, alias) is getattr(exc, name) for alias, name in aliases.items())


@pytest.mark.parametrize("name", [*FUNCTIONS, *OF_MODULES])
def test_each_parameter_is_described(name: str) -> None:
    value = named(name)
    found = sections(value)
    signature = inspect.signature(value)
    assert items(found.get("Args", "")) == [MARKS.get(p.kind, "") + p.name for p in signature.parameters.values()]
    returns = signature.return_annotation not in ("None", None, inspect.Signature.empty)
    assert ("Returns" in found) == (returns and not isinstance(value, type))
    assert found[""].strip()


@pytest.mark.parametrize("name", [*FUNCTIONS, *OF_MODULES])
def test_errors_are_errors(name: str) -> None:
    for error in items(sections(named(name)).get("Raises", "")):
        assert issubclass(getattr(exc, error, None) or getattr(builtins, error), Exception)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", sections(named(name))["Example"], re.S)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "example.py"
    path.write_text(program)
    module = types.ModuleType("example")
    module.__dict__.update(torch=torch, pycompiler=pycompiler)
    monkeypatch.setitem(sys.modules, "example", module)
    with config.patch(config.snapshot()):
        exec(compile(program, str(path), "exec"), module.__dict__)
