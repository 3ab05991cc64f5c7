"""The file format, and the facts that must be equal to read a file.

Layout: MAGIC, sha256 of all that follows, length of the header, header (JSON), body (`marshal`: names, records, top,
libraries).  In: header and body.  Out: a complete file, or none.  `marshal` and generated code belong to one version
of Python, kernels to a CPU, guards and dispatch keys to one torch.  The header records all of these.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import hashlib
import importlib.util
import json
import marshal
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import pycompiler
from pycompiler import _native
from pycompiler.artefacts.data import FORMAT
from pycompiler.errors import ArtefactError
from pycompiler.ir.persistent_names import VERSIONED
from pycompiler.runtime import private_files
from pycompiler.runtime.toolchain import cpu_identity, libc_identity

MAGIC = b"pycompiler artefact\n"
_LENGTH = struct.Struct("<Q")
_HEAD = len(MAGIC) + 32 + _LENGTH.size


# facts that must be equal ---------------------------------------------------------------------------------------
@functools.cache
def own_sources() -> str:
    """A digest of this package's sources: the version alone does not change with each edit.

    An installed wheel has the digest of each file in its RECORD
    (https://packaging.python.org/en/latest/specifications/recording-installed-packages).  They are used unless a file
    was changed after the installation: reading 500 files takes longer than the rest of a load.
    """
    root = Path(pycompiler.__file__).parent
    files = dict(sorted(_sources(str(root), root.name)))
    known = recorded(root.parent, files) or {name: _digest(root.parent / name) for name in files}
    return hashlib.sha256("".join(f"{name} {known[name]}\n" for name in files).encode()).hexdigest()


def _sources(folder: str, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """The sources below a folder that is called `name`, and the engine: their paths and states."""
    engine = os.path.basename(_native.__file__)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".h")) or entry.name == engine:
                yield f"{name}/{entry.name}", entry.stat()
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path, f"{name}/{entry.name}")


def _digest(path: Path) -> str:
    """The SHA-256 of a file, as a RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def recorded(folder: Path, files: Mapping[str, os.stat_result]) -> dict[str, str] | None:
    """The digests of `files` in the RECORD of the wheel that was installed in `folder`.

    None if there is no RECORD, or if it lacks a file, is older than one, or has another size for it.
    """
    found = list(folder.glob(f"torch_pycompiler-{pycompiler.__version__}.dist-info/RECORD"))
    if len(found) != 1:
        return None
    written = found[0].stat().st_mtime_ns
    rows = csv.reader(found[0].read_text(encoding="utf-8").splitlines())
    known = {row[0]: (row[1].removeprefix("sha256="), row[2]) for row in rows if len(row) == 3}
    for name, state in files.items():
        digest, size = known.get(name, ("", ""))
        if not digest or size != str(state.st_size) or state.st_mtime_ns > written:
            return None
    return {name: known[name][0] for name in files}


FACTS: dict[str, Callable[[], Any]] = {
    "format": lambda: FORMAT,
    "python": lambda: f"{sys.implementation.name} {platform.python_version()}",
    "bytecode": lambda: importlib.util.MAGIC_NUMBER.hex(),
    "torch": lambda: torch.__version__,
    "pycompiler": lambda: pycompiler.__version__,
    "sources": own_sources,
    "machine": platform.machine,
    "libc": libc_identity,
    "cuda": torch.cuda.is_available,
}
CPU, PACKAGES = "cpu", "packages"


def facts(modules: Iterable[str]) -> dict[str, Any]:
    """The facts of this process, as the header records them; `modules`: the modules of all names."""
    tops = {module.partition(".")[0] for module in modules}
    return {
        **{fact: tell() for fact, tell in FACTS.items()},
        CPU: cpu_identity(),
        PACKAGES: {top: v for top in sorted(tops - VERSIONED) if (v := _version(top)) is not None},
    }


def _version(package: str) -> str | None:
    version = getattr(sys.modules.get(package), "__version__", None)
    return version if isinstance(version, str) else None


def check(header: dict[str, Any]) -> None:
    """Raise ArtefactError, with one line per fact, if the file was written under other facts."""
    wrong = []
    for fact, tell in FACTS.items():
        if header.get(fact) != (here := tell()):
            wrong.append(f"{fact}: written with {header.get(fact)}, this is {here}")
    missing = sorted(set(str(header.get(CPU, "")).split()) - set(cpu_identity().split()))
    if missing:
        wrong.append(f"cpu: the kernels may use {', '.join(missing[:8])}, which this one lacks")
    for package, version in header.get(PACKAGES, {}).items():
        if (here := _version(package)) is not None and here != version:
            wrong.append(f"{package}: written with {version}, this is {here}")
    if wrong:
        raise ArtefactError("\n".join(["the artefact was written elsewhere; save it again here:", *wrong]))


# writing ----------------------------------------------------------------------------------------------------------
def write(path: Path, header: dict[str, Any], body: tuple[Any, ...]) -> int:
    """Write a temporary file beside `path`, then rename it; returns its size.  An OSError leaves no file behind."""
    text = json.dumps(header, sort_keys=True).encode()
    rest = _LENGTH.pack(len(text)) + text + marshal.dumps(body)
    data = MAGIC + hashlib.sha256(rest).digest() + rest
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return len(data)


# reading ----------------------------------------------------------------------------------------------------------
def open_safely(path: Path, trust: bool) -> bytes:
    """The file's bytes; ArtefactError if another user can have written them."""
    try:
        return private_files.read_file(path, trust=trust)
    except private_files.Unsafe as e:
        raise ArtefactError(
            f"{e}; an artefact holds native code: load(..., trust=True) if you know who wrote it"
        ) from None
    except (OSError, ValueError) as e:
        raise ArtefactError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None


def parse(data: bytes, what: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """(header, body); ArtefactError for a file that is no artefact, damaged, or from elsewhere.

    The body is read only after its digest and the header were checked.
    """
    if not data.startswith(MAGIC):
        raise ArtefactError(f"{what} is not an artefact of pycompiler")
    if len(data) < _HEAD:
        raise ArtefactError(f"{what} is damaged: it ends after {len(data)} bytes")
    rest = memoryview(data)[len(MAGIC) + 32 :]
    if hashlib.sha256(rest).digest() != data[len(MAGIC) : len(MAGIC) + 32]:
        raise ArtefactError(f"{what} is damaged: its contents do not have the recorded sha256")
    (length,) = _LENGTH.unpack_from(rest)
    try:
        header = json.loads(bytes(rest[_LENGTH.size : _LENGTH.size + length]))
        if not isinstance(header, dict) or not isinstance(header.get(PACKAGES, {}), dict):
            raise ValueError("its header is not a table")
    except (ValueError, RecursionError) as e:
        raise ArtefactError(f"{what} is damaged: {e}") from None
    check(header)
    if not isinstance(header.get("settings"), dict):
        raise ArtefactError(f"{what} is damaged: its header has no settings")
    try:
        body = marshal.loads(rest[_LENGTH.size + length :])
        names, records, top, libraries = body
    except (ValueError, EOFError, TypeError) as e:
        raise ArtefactError(f"{what} is damaged: {e}") from None
    return header, (names, records, top, libraries)
