"""Triton source → importable module, cached on disk as built libraries are.

In: the text of a module (`codegen.triton`).  Out: `BuiltLibrary` whose path is the module's file; `load` imports it and
gives its launchers.  Triton compiles a kernel at its first launch and keeps the binary in its own cache.
"""

from __future__ import annotations

import functools
import linecache
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

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
def load(path: str) -> types.ModuleType:
    """The module at `path`; its name tells the cache entry.

    Triton reads a kernel's source through `inspect`, which looks into no file that is named like a library: the code
    carries a name of its own, under which `linecache` has the text.
    """
    name, file, source = f"pycompiler_triton_{Path(path).parent.name}", f"{path}.py", Path(path).read_text()
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[name] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def launcher(path: str, symbol: str) -> Callable[..., None]:
    """The function that launches kernel `symbol` on tensors."""
    return getattr(load(path), symbol)  # type: ignore[no-any-return]
