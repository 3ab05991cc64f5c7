"""Source text to a loadable library, through the disk cache.

In: C++ text (one translation unit) and its symbols.  Out: `BuiltLibrary(path, symbols)`.  A hit runs no compiler.

    library = build('extern "C" int64_t k(void** p, const int64_t* s, int32_t t) {...}', ("k",))
    library.path       # ~/.cache/pycompiler/<key>/kernels.so
"""

from __future__ import annotations

import _ctypes
import contextlib
import errno
import functools
import logging
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pycompiler import config
from pycompiler.ir import choices
from pycompiler.logs import artifact
from pycompiler.runtime import disk_cache
from pycompiler.runtime.toolchain import (
    DOUBLES,
    FLAGS,
    NARROWED,
    OPENMP,
    NoCompiler,
    Toolchain,
    find_toolchain,
    flags_for,
    has_compiler,
    prelude_dir,
    prelude_text,
)  # fmt: skip
from pycompiler.torch_compat.interrupts import check, deferred, stop_callbacks

__all__ = ["BuildFailed", "BuiltLibrary", "NoCompiler", "build", "counters", "has_compiler"]

log = logging.getLogger("pycompiler.runtime")
log_cache = artifact("cache")

ANSWER_S = 20.0  # a compiler that does not print its version in this time hangs
DISK_NEEDED = 1 << 20  # bytes: a failure with less free space is the disk's


class BuildFailed(RuntimeError):
    """The compiler rejected generated code (a bug in code generation) or could not run."""


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
    return disk_cache.digest(toolchain.identity, repr((FLAGS, DOUBLES, NARROWED.pattern, OPENMP)), prelude_text())


def cache_key(text: str, toolchain: Toolchain) -> str:
    """The cache key of a source.  Comment lines do not count, so equal kernels share a library whatever their nodes'
    names."""
    return disk_cache.digest(_COMMENTS.sub("", text), _environment_key(toolchain))


_COMMENTS = re.compile(r"^ *//.*\n", re.MULTILINE)


def compile_into(folder: Path, text: str, symbols: Sequence[str], toolchain: Toolchain) -> None:
    """Write the source and the library into `folder`.  Raises BuildFailed, or OSError if the disk is the cause."""
    source, library = folder / disk_cache.SOURCE, folder / disk_cache.LIBRARY
    source.write_text(text)
    failed = ""
    for openmp in OPENMP:
        flags = [*FLAGS, *flags_for(text), f"-I{prelude_dir()}"]
        command = [*toolchain.command, *flags, "-o", str(library), str(source), *openmp]
        code, said = run_compiler(command, folder, toolchain)
        if code == 0:
            check_loads(library, symbols, toolchain)
            return
        check_disk(folder, said)
        head = "".join(c if c.isprintable() or c == "\n" else "?" for c in "\n".join(said.splitlines()[:30])[:4000])
        failed = failed or f"{shlex.join(command)}\nexited with {code}:\n{head or '(no output)'}"
    raise BuildFailed(failed)


_hung: set[Toolchain] = set()
_running: set[subprocess.Popen[str]] = set()


def kill_running() -> None:
    """Kill all compilers that this process waits for."""
    for process in list(_running):
        kill_group(process, wait=False)


stop_callbacks.append(kill_running)


def run_compiler(command: list[str], folder: Path, toolchain: Toolchain) -> tuple[int, str]:
    """(exit status, error output).  The compiler and its children are killed at the time limit and on an interrupt."""
    if toolchain in _hung:
        raise BuildFailed(f"the compiler hung before, so it is not started again in this process: {command[0]}")
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    process = None
    try:
        with deferred():  # an interrupt between the start and the assignment would leave the compiler behind
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)  # fmt: skip
        _running.add(process)
        said = process.communicate(timeout=config.cxx_timeout)[1]
        check()
    except BaseException as error:
        if process is None:
            if isinstance(error, OSError):
                raise BuildFailed(f"the compiler cannot be started: {command[0]}: {error.strerror}; see CXX") from error
            raise
        kill_group(process)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        if not prints_version(toolchain):
            _hung.add(toolchain)
        raise BuildFailed(f"the compiler did not end within {config.cxx_timeout:g} s (config.cxx_timeout), and was "
                          f"killed: {command[0]}") from None  # fmt: skip
    finally:
        _running.discard(process)  # type: ignore[arg-type]
    return process.returncode, said


def kill_group(process: subprocess.Popen[str], *, wait: bool = True) -> None:
    """Kill a compiler and the processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if not wait:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)


def prints_version(toolchain: Toolchain) -> bool:
    """Whether the compiler prints its version; otherwise it hangs for any input."""
    try:
        process = subprocess.Popen([toolchain.command[0], "--version"], stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        process.wait(min(ANSWER_S, config.cxx_timeout))
    except OSError:
        return False
    except subprocess.TimeoutExpired:
        kill_group(process)
        return False
    return True


def check_disk(folder: Path, said: str) -> None:
    """Raise OSError if the compiler failed because of the disk; it may have been killed before it could print that."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < DISK_NEEDED:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
        if os.strerror(number) in said:
            raise OSError(number, os.strerror(number), str(folder))


def check_loads(library: Path, symbols: Sequence[str], toolchain: Toolchain) -> None:
    """Raise BuildFailed if the compiler's output is no library with these symbols: it must not enter the cache."""
    try:
        handle = _ctypes.dlopen(str(library), os.RTLD_NOW | os.RTLD_LOCAL)
        try:
            for symbol in symbols:
                _ctypes.dlsym(handle, symbol)
        finally:
            _ctypes.dlclose(handle)
    except OSError as error:
        check_disk(library.parent, "")
        raise BuildFailed(f"the compiler exited with 0, but its output is not a library with the kernels ({error}): "
                          f"{shlex.join(toolchain.command)}; see CXX") from error  # fmt: skip


def build(text: str, symbols: Sequence[str] = (), name: str = "graph") -> BuiltLibrary:
    """The library of `text`.  Raises NoCompiler or BuildFailed.

    If the cache cannot be used, a temporary folder replaces it, with a warning.
    """
    try:
        toolchain = find_toolchain()
    except NoCompiler as error:
        disk_cache.warn_once(f"graphs run through ATen: {error}")
        raise
    alone = choices.active and not choices.step_enabled("cache", lambda: f"{name}: {cache_key(text, toolchain)}")
    key = disk_cache.digest(text) if alone else cache_key(text, toolchain)
    begin = time.perf_counter()

    def attempt(root: Path) -> tuple[Path, bool]:
        return disk_cache.fetch(root, key, lambda folder: compile_into(folder, text, symbols, toolchain))

    try:
        entry, built = attempt(disk_cache.temporary_root() if alone else disk_cache.open_root())
    except OSError as error:
        try:
            entry, built = attempt(disk_cache.fall_back(error))
        except OSError as second:
            raise BuildFailed(f"no folder to build kernels in: {error}; {second}") from second
    seconds = time.perf_counter() - begin
    counters["builds" if built else "hits"] += 1
    log_cache("%s: %s %s", name, "miss, built" if built else "hit", entry)
    log.info("%s: %d kernels %s in %.3f s: %s", name, len(symbols), "built" if built else "found", seconds, entry)
    return BuiltLibrary(str(entry / disk_cache.LIBRARY), tuple(symbols), text, built, seconds)
