"""The C++ compiler of this machine: its command, its flags, and the state that its output depends on.

In: the environment (`CXX`, PATH).  Out: `Toolchain(command, identity)`.  `identity` changes whenever the compiler, the
flags or the CPU change, and is found without running the compiler.

    find_toolchain().command     # ("/usr/bin/g++",)
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pycompiler
from pycompiler import config

CANDIDATES = ("c++", "g++", "clang++")

X86 = platform.machine() in ("x86_64", "AMD64")
# One table of flags.  No -ffast-math: NaN, inf and signed zero keep their meaning.  No contraction: an operator rounds
# its result wherever it is computed, so equal operators give equal bits.
FLAGS: tuple[str, ...] = (
    "-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pipe", "-w",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-semantic-interposition",
    "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fvisibility=hidden",
    # gcc 12.2 aligns stack arrays of some leaf functions to 8 bytes, but stores 16 bytes to them as if aligned: a
    # segmentation fault (`tests/codegen/test_compilers.py`).  Functions without a red zone keep the ABI's alignment.
    *(("-mno-red-zone",) if X86 else ()),
    # gcc 13 reads the lanes of an `omp simd` reduction wrongly if only one side of a branch reads them.  Branches come
    # from selections of constants, and jump threading copies the code after them into both sides.  (clang ignores the
    # flag, but rejects `-fno-thread-jumps`.)
    "--param=max-jump-thread-duplication-stmts=0",
)  # fmt: skip
# gcc 12 permutes eight doubles of one register wrongly if the lower half takes elements from the upper one (it assumes
# that `vpermilpd` can).  With AVX-512, loops of a few elements get wrong elements.  Sources with buffers of doubles use
# vectors of four.  Sources that only add up doubles make no vectors of straight-line code
# (`tests/codegen/test_compilers.py`).
DOUBLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("double* PYC_RESTRICT", ("-mprefer-vector-width=256",) if X86 else ()),
    ("double", ("-fno-tree-slp-vectorize",) if X86 else ()),
)
# gcc 12's vectors of straight-line code omit a conversion of a double to float and back (the same tests).
NARROWED = re.compile(r"const float (\w+) = \(float\)\(?\w+\)?;(?s:.*?)\(double\)\(?\1\b")
OF_NARROWED = ("-fno-tree-slp-vectorize",)
# Tried in turn, behind the source.  The first names the libraries that kernels may need: reading libstdc++ would take
# half of the linker's time.  A clang has other libraries; without libomp it still has `omp simd`.
OPENMP: tuple[tuple[str, ...], ...] = (
    ("-fopenmp", "-nodefaultlibs", "-Wl,-z,defs,--as-needed", "-lgomp", "-lm", "-lc", "-lgcc"),
    ("-fopenmp",),
    ("-fopenmp-simd",),
)
# Flags of sources that contain PYC_FAST_MATH (`config.fast_math`).
FAST_MATH = ("-ffp-contract=fast",)


log = logging.getLogger("pycompiler.runtime")


class NoCompiler(RuntimeError):
    """This machine has no C++ compiler; graphs run through ATen."""


def flags_for(text: str) -> tuple[str, ...]:
    """Flags that a source needs in addition to FLAGS."""
    found: tuple[str, ...] = next((flags for word, flags in DOUBLES if word in text), ())
    if "double" in text and NARROWED.search(text):
        found += OF_NARROWED
    return (*found, *FAST_MATH) if "PYC_FAST_MATH" in text else found


@dataclass(frozen=True)
class Toolchain:
    command: tuple[str, ...]
    identity: str


def prelude_dir() -> Path:
    """The folder of the headers that generated code includes."""
    folder = Path(pycompiler.__file__).resolve().parent / "kernels" / "cpp"
    if not (folder / "pyc_prelude.h").is_file():
        raise FileNotFoundError(f"{folder / 'pyc_prelude.h'} is missing: reinstall pycompiler")
    return folder


@functools.cache
def prelude_text() -> str:
    """All headers in one text (part of the cache key)."""
    return "\n".join(p.read_text() for p in sorted(prelude_dir().glob("*.h")))


@functools.cache
def cpu_identity() -> str:
    """The instruction set that -march=native means here."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return platform.machine() + " " + " ".join(sorted(line.split(":", 1)[1].split()))
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()} {platform.node()}"


def libc_identity() -> str:
    """A library built against a newer libc does not load under an older one, on another machine with the same home."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:
        return platform.system()


def _words(text: str, what: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise NoCompiler(f"{what}={text!r} is not a valid shell command ({error}); correct it") from None


def _locate(text: str) -> tuple[str, ...] | None:
    words = _words(text, "CXX")
    path = shutil.which(words[0]) if words else None
    return (path, *words[1:]) if path else None


def find_toolchain() -> Toolchain:
    """The first compiler found; raises NoCompiler.  Searched again after a change of the configuration, CXX or PATH."""
    return _find((config.cxx or os.environ.get("CXX", "")).strip(), os.environ.get("PATH", ""), config.cxx_flags)


@functools.lru_cache(maxsize=8)
def _find(cxx: str, path: str, flags: str) -> Toolchain:
    missing: list[str] = []
    for text in (cxx, *CANDIDATES):
        command = _locate(text)
        if command is None:
            if text:
                missing.append(text)
            continue
        if cxx in missing:
            log.warning("the C++ compiler CXX=%s was not found: using %s", cxx, command[0])
        command = (*command, *_words(flags, "config.cxx_flags"))
        binary = Path(command[0]).resolve()
        stat = binary.stat()
        return Toolchain(
            command, f"{command} {binary} {stat.st_size} {stat.st_mtime_ns} {libc_identity()} {cpu_identity()}"
        )
    tried = ", ".join(filter(None, (f"$CXX={cxx}" if cxx else "$CXX (not set)", *CANDIDATES)))
    raise NoCompiler(f"no C++ compiler found (tried {tried}); install g++ or set CXX")


def has_compiler() -> bool:
    try:
        find_toolchain()
    except NoCompiler:
        return False
    return True
