"""Entries of the kernel cache: listed, verified, removed.

In: the configured cache folder.  Out: `Entry`s.  `remove` renames an entry first, as a builder does, so that no process
finds half an entry.  Loaded libraries stay loaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pycompiler.runtime import disk_cache, entry_origin
from pycompiler.runtime.entry_origin import Origin


@dataclass(frozen=True)
class Entry:
    """An entry of the cache: a folder under a key, possibly damaged.

    `used`: the time when its library was last read, as far as the file system records it.
    """

    folder: Path
    bytes: int
    used: float
    kernels: int

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def age_days(self) -> float:
        return max(0.0, time.time() - self.used) / 86400

    @property
    def origin(self) -> Origin | None:
        """The program and the compile that built the entry, if known."""
        return entry_origin.read(self.folder)

    def damage(self) -> str:
        """The damage of the entry, "" if there is none."""
        try:
            disk_cache.check_private(self.folder, folder=True)
        except OSError as error:
            return str(error)
        return disk_cache.find_damage(self.folder, self.key)


def entries(root: Path) -> list[Entry]:
    """The entries of the cache, most recently used first."""
    return sorted(_entries(root), key=lambda e: -e.used)


def _entries(root: Path) -> Iterator[Entry]:
    for folder in root.iterdir() if root.is_dir() else ():
        if not disk_cache.KEY.fullmatch(folder.name):
            continue
        with contextlib.suppress(OSError):  # removed meanwhile
            stats, used = _stats(folder), folder.lstat().st_mtime
            with contextlib.suppress(OSError):
                used = max(used, (folder / disk_cache.LIBRARY).stat().st_atime)
            used = max([used, *(s.st_mtime for s in stats)])
            yield Entry(folder, sum(s.st_size for s in stats), used, _kernels(folder))


def _stats(folder: Path) -> list[os.stat_result]:
    """The stat results of the files in a folder; [] if it is no readable folder."""
    try:
        return [path.lstat() for path in folder.iterdir()]
    except OSError:
        return []


def _kernels(folder: Path) -> int:
    try:
        text = (folder / disk_cache.SOURCE).read_text(errors="replace")
    except OSError:
        return 0
    return text.count('extern "C"') or text.count("@triton.jit")


def remove(found: Iterable[Entry]) -> int:
    """Remove entries; returns the number of removed ones."""
    count = 0
    for entry in found:
        with contextlib.suppress(OSError):
            aside = Path(tempfile.mkdtemp(prefix="tmp-", dir=entry.folder.parent))
            os.rename(entry.folder, aside / "old")  # at once, to a name that no process looks up
            shutil.rmtree(aside, ignore_errors=True)
            count += 1
    return count
