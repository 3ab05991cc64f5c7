"""Source text to a loadable library, through the disk cache.

In: C++ text (one translation unit) and its symbols.  Out: `BuiltLibrary(path, symbols)`.  A hit runs no compiler.

    library = build('extern "C" int64_t k(void** p, const int64_t* s, int32_t t) {...}', ("k",))
    library.path       # ~/.cache/pycompiler/<key>/kernels.so
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pycompiler.runtime import disk_cache
from pycompiler.runtime.toolchain import (
    FLAGS,
    OPENMP,
    NoCompiler,
    Toolchain,
    find_toolchain,
    has_compiler,
    prelude_dir,
    prelude_text,
)  # fmt: skip

__all__ = ["BuildFailed", "BuiltLibrary", "NoCompiler", "build", "counters", "has_compiler"]

log = logging.getLogger("pycompiler.runtime")

COMPILE_TIMEOUT_S = 900.0


class BuildFailed(RuntimeError):
    """The compiler rejected generated code (a bug of ours) or could not run."""


@dataclass(frozen=True)
class BuiltLibrary:
    path: str
    symbols: tuple[str, ...]
    source: str
    built: bool  # False: found in the cache
    seconds: float = 0.0


counters = {"builds": 0, "hits": 0}


@functools.lru_cache(maxsize=8)
def _environment_key(toolchain: Toolchain) -> str:
    return disk_cache.digest(toolchain.identity, repr((FLAGS, OPENMP)), prelude_text())


def cache_key(text: str, toolchain: Toolchain) -> str:
    return disk_cache.digest(text, _environment_key(toolchain))


def compile_into(folder: Path, text: str, toolchain: Toolchain) -> None:
    """Writes the source and the library into `folder`.  Raises BuildFailed, or OSError when the disk is the reason."""
    source, library = folder / disk_cache.SOURCE, folder / disk_cache.LIBRARY
    source.write_text(text)
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    failed: tuple[list[str], subprocess.CompletedProcess[str]] | None = None
    for openmp in OPENMP:
        command = [*toolchain.command, *FLAGS, *openmp, f"-I{prelude_dir()}", "-o", str(library), str(source)]
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=COMPILE_TIMEOUT_S)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildFailed(f"the compiler did not end within {COMPILE_TIMEOUT_S:.0f} s: {command[0]}") from error
        if done.returncode == 0:
            return
        if "No space left on device" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        failed = failed or (command, done)
    assert failed is not None
    command, done = failed
    head = "\n".join(done.stderr.splitlines()[:30])
    raise BuildFailed(f"{' '.join(command)}\nexited with {done.returncode}:\n{head}")


def build(text: str, symbols: Sequence[str] = (), name: str = "graph") -> BuiltLibrary:
    """The library of `text`.  Raises NoCompiler or BuildFailed; every trouble with the cache falls back to a temporary
    folder with a warning."""
    try:
        toolchain = find_toolchain()
    except NoCompiler as error:
        disk_cache.warn_once(f"graphs run through ATen: {error}")
        raise
    key = cache_key(text, toolchain)
    begin = time.perf_counter()

    def attempt(root: Path) -> tuple[Path, bool]:
        return disk_cache.fetch(root, key, lambda folder: compile_into(folder, text, toolchain))

    try:
        entry, built = attempt(disk_cache.open_root())
    except OSError as error:
        try:
            entry, built = attempt(disk_cache.fall_back(error))
        except OSError as second:
            raise BuildFailed(f"no folder to build kernels in: {error}; {second}") from second
    seconds = time.perf_counter() - begin
    counters["builds" if built else "hits"] += 1
    log.info("%s: %d kernels %s in %.3f s: %s", name, len(symbols), "built" if built else "found", seconds, entry)
    return BuiltLibrary(str(entry / disk_cache.LIBRARY), tuple(symbols), text, built, seconds)
