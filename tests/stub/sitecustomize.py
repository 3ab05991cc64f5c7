"""In processes that tests start under `--stub-compile`: `pycompiler.compile` returns its argument."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


def compile(model: Any = None, **settings: Any) -> Any:
    return (lambda fn: fn) if model is None else model


class Stubbing(importlib.abc.MetaPathFinder):
    """Import hook that finds `pycompiler.api` in the usual way, and replaces its `compile` after loading."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "pycompiler.api":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            module.compile = compile  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Stubbing())
