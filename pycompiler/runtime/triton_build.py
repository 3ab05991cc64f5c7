"""Triton source → importable module, cached on disk as built libraries are.

In: the text of a module (`codegen.triton`).  Out: `BuiltLibrary` whose path is the module's file; `load` imports it and
gives its launchers.  Triton compiles a kernel at its first launch and keeps the binary in its own cache.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pycompiler.runtime import disk_cache
from pycompiler.runtime.build import BuiltLibrary


def build(text: str, symbols: Sequence[str]) -> BuiltLibrary:
    """The module of `text` in the cache, or in a temporary folder when the cache cannot be used."""

    def fill(folder: Path) -> None:
        for name in (disk_cache.LIBRARY, disk_cache.SOURCE):
            (folder / name).write_text(text)

    key = disk_cache.digest("triton", torch.__version__, text)
    try:
        entry, built = disk_cache.fetch(disk_cache.open_root(), key, fill)
    except OSError as error:
        entry, built = disk_cache.fetch(disk_cache.fall_back(error), key, fill)
    return BuiltLibrary(str(entry / disk_cache.LIBRARY), tuple(symbols), text, built)


@functools.lru_cache(maxsize=1024)
def load(path: str) -> Any:
    """The imported module at `path` (its name tells the cache entry; Triton reads sources through it)."""
    name = f"pycompiler_triton_{Path(path).parent.name}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def launcher(path: str, symbol: str) -> Callable[..., None]:
    """The function that launches kernel `symbol` on tensors."""
    return getattr(load(path), symbol)  # type: ignore[no-any-return]
