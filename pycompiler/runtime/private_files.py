"""Files and folders that only this user can have written.

In: a path.  Out: nothing, or the file's bytes.  Raises Unsafe if another user could have written the file, or replaced
it.
Example: `read_file(Path("model.pyc"))` raises Unsafe for a file of mode 666.  For a pipe it raises without waiting for
the other end.

Root counts as this user.  For folders above, the rules of ssh apply (StrictModes): neither a group nor others may
write to them, unless their sticky bit prevents users from moving files of others (`/tmp`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

WRITERS = stat.S_IWGRP | stat.S_IWOTH


class Unsafe(OSError):
    """A folder or file that another user could have written."""


def check_private(path: Path, *, folder: bool) -> None:
    """Raise Unsafe unless `path` is a real folder/file of this user that no other user may write to."""
    info = os.lstat(path)
    kind_ok = stat.S_ISDIR(info.st_mode) if folder else stat.S_ISREG(info.st_mode)
    if not kind_ok:
        raise Unsafe(f"{path} is not a plain {'folder' if folder else 'file'}")
    if info.st_uid != os.geteuid():
        raise Unsafe(f"{path} belongs to user {info.st_uid}, not to the current user ({os.geteuid()})")
    if info.st_mode & WRITERS:
        raise Unsafe(f"{path} may be written by others (mode {stat.S_IMODE(info.st_mode):o}); chmod go-w to use it")


def check_above(path: Path) -> None:
    """Raise Unsafe if another user may replace the folder `path`, a resolved path."""
    for folder in path.parents:
        info = os.stat(folder)
        if info.st_uid not in (os.geteuid(), 0):
            raise Unsafe(
                f"{folder}, above {path.name}, belongs to user {info.st_uid}, not to the current user ({os.geteuid()})"
            )
        if info.st_mode & WRITERS and not info.st_mode & stat.S_ISVTX:
            who = "everybody" if info.st_mode & stat.S_IWOTH else f"group {info.st_gid}"
            mode = stat.S_IMODE(info.st_mode)
            raise Unsafe(f"{folder}, above {path.name}, may be written by {who} (mode {mode:o}); chmod go-w to use it")


def read_file(path: Path, *, trust: bool = False) -> bytes:
    """The bytes of a plain file.  Unsafe for other kinds of files, and, unless `trust`, if another user can have
    written it."""
    with open_file(path, trust=trust) as file:
        return file.read()


def open_file(path: Path, *, trust: bool = False) -> BinaryIO:
    """A plain file, open for reading.  Unsafe as in `read_file`, without waiting for a pipe or device."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        check_open(handle, os.fspath(path), trust=trust)
    except BaseException:
        os.close(handle)
        raise
    return open(handle, "rb")


def check_open(handle: int, name: str, *, trust: bool = False) -> None:
    """Raise Unsafe unless an open file is a plain one, and, unless `trust`, one that no other user can have written."""
    info = os.fstat(handle)
    if not stat.S_ISREG(info.st_mode):
        raise Unsafe(f"{name} is not a plain file")
    if not trust and info.st_uid not in (os.geteuid(), 0):
        raise Unsafe(f"{name} belongs to user {info.st_uid}, not to the current user ({os.geteuid()})")
    if not trust and info.st_mode & WRITERS:
        raise Unsafe(f"{name} may be written by others (mode {stat.S_IMODE(info.st_mode):o}; chmod go-w)")
