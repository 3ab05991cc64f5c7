"""The kernels of this process as bytes, and back into the kernel cache of another machine.

In: the cache entries that this process has used.  Out: bytes; `unpack` writes them into the folder of the cache.

An entry's key has the compiler, its flags, the CPU and the kernels' source: a bundle from elsewhere is not used.
Damaged bytes are refused with a log line, since a cache only saves time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import marshal
from dataclasses import dataclass, field
from pathlib import Path

from pycompiler.runtime import disk_cache
from pycompiler.runtime.disk_cache import KEY, LIBRARY, SOURCE

MAGIC = b"pycompiler kernels 1\n"
KERNELS = "kernels"
log = logging.getLogger("pycompiler.runtime")


@dataclass
class CacheInfo:
    """The result of `save_cache_artifacts` and `load_cache_artifacts`.

    Attributes:
        artifacts: Keys of the kernel cache, under the name "kernels".
    """

    artifacts: dict[str, list[str]] = field(default_factory=dict)

    def empty(self) -> bool:
        """Whether there are none.

        Returns:
            bool: True without artifacts.
        """
        return not any(self.artifacts.values())


def pack() -> tuple[bytes, CacheInfo] | None:
    """The entries that this process has built or found, or None."""
    found: dict[str, tuple[bytes, bytes]] = {}
    for key, folder in sorted(disk_cache.fetched.items()):
        if disk_cache.verified(folder, key):  # it may have been removed meanwhile
            with contextlib.suppress(OSError):
                found[key] = (folder / LIBRARY).read_bytes(), (folder / SOURCE).read_bytes()
    if not found:
        return None
    body = marshal.dumps(found)
    return MAGIC + hashlib.sha256(body).digest() + body, CacheInfo({KERNELS: list(found)})


def unpack(data: bytes) -> CacheInfo | None:
    """Write the entries into the kernel cache; None if the bytes are no bundle, or the cache cannot be used."""
    entries = _entries(data)
    if entries is None:
        return None
    root = disk_cache.open_root()
    for key, (library, source) in entries.items():

        def fill(folder: Path, library: bytes = library, source: bytes = source) -> None:
            (folder / LIBRARY).write_bytes(library)
            (folder / SOURCE).write_bytes(source)

        try:
            disk_cache.fetch(root, key, fill)
        except OSError as error:
            log.warning("cache artifacts are not used: %s", error)
            return None
    return CacheInfo({KERNELS: list(entries)})


def _entries(data: bytes) -> dict[str, tuple[bytes, bytes]] | None:
    head = len(MAGIC) + 32
    try:
        if not data.startswith(MAGIC):
            raise ValueError("they do not begin as save_cache_artifacts writes them")
        if hashlib.sha256(memoryview(data)[head:]).digest() != data[len(MAGIC) : head]:
            raise ValueError("they do not have the recorded sha256")
        found = marshal.loads(memoryview(data)[head:])
        for key, (library, source) in found.items():
            if not KEY.fullmatch(key) or type(library) is not bytes or type(source) is not bytes:
                raise ValueError("an entry is malformed")
    except (ValueError, TypeError, EOFError, AttributeError) as error:
        log.warning("cache artifacts are not used: %s; save them again", error)
        return None
    entries: dict[str, tuple[bytes, bytes]] = found
    return entries
