"""`_native.pyi` lists exactly the names of the extension."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import pycompiler
from pycompiler import _native

STUB = ast.parse((Path(_native.__file__).parent / "_native.pyi").read_text())


def names_of(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def public(thing: Any) -> set[str]:
    return {n for n in vars(thing) if not n.startswith("_")}


def test_module() -> None:
    assert {n for n in names_of(STUB.body) if not n.startswith("_")} == public(_native)


IN_DICT = {"_pycompiler_family", "_orig_mod"}  # attributes that Python adds to instances


def test_what_python_puts_into_instances() -> None:
    assert vars(pycompiler.compile(lambda x: x)).keys() >= IN_DICT


CLASSES = [node for node in STUB.body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("node", CLASSES, ids=[node.name for node in CLASSES])
def test_class(node: ast.ClassDef) -> None:
    cls = getattr(_native, node.name)
    declared = names_of(node.body)
    assert {n for n in declared if not n.startswith("_")} == public(cls)
    for name in declared - IN_DICT:
        assert hasattr(cls, name), name
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in member.decorator_list)
            assert is_property != callable(getattr(cls, member.name)), member.name
