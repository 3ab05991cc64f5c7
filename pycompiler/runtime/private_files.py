"""Files and folders that only this user can have written.

In: a path.  Out: nothing, or the file's bytes; Unsafe where somebody else could have written what lies there, or put something
else in its place.  Example: `read_file(Path("model.pyc"))` raises Unsafe for a file of mode 666, and for a pipe without
waiting for its other end.

Root counts as this user.  The rules for folders above are those of ssh (StrictModes): neither a group nor others may write
to them, unless their sticky bit keeps everybody from moving what is not his own (`/tmp`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

WRITERS = stat.S_IWGRP | stat.S_IWOTH


class Unsafe(OSError):
    """A folder or file that somebody else could have written."""


def check_private(path: Path, *, folder: bool) -> None:
    """Raises Unsafe unless `path` is a real folder/file of this user that nobody else may write to."""
    info = os.lstat(path)
    kind_ok = stat.S_ISDIR(info.st_mode) if folder else stat.S_ISREG(info.st_mode)
    if not kind_ok:
        raise Unsafe(f"{path} is not a plain {'folder' if folder else 'file'}")
    if info.st_uid != os.geteuid():
        raise Unsafe(f"{path} belongs to user {info.st_uid}, not to this one ({os.geteuid()})")
    if info.st_mode & WRITERS:
        raise Unsafe(f"{path} may be written by others (mode {stat.S_IMODE(info.st_mode):o}); chmod go-w to use it")


def check_above(path: Path) -> None:
    """Raises Unsafe when another user may move the folder `path`, a resolved path, away and put another one in its place."""
    for folder in path.parents:
        info = os.stat(folder)
        if info.st_uid not in (os.geteuid(), 0):
            raise Unsafe(
                f"{folder}, above {path.name}, belongs to user {info.st_uid}, not to this one ({os.geteuid()})"
            )
        if info.st_mode & WRITERS and not info.st_mode & stat.S_ISVTX:
            who = "everybody" if info.st_mode & stat.S_IWOTH else f"group {info.st_gid}"
            mode = stat.S_IMODE(info.st_mode)
            raise Unsafe(f"{folder}, above {path.name}, may be written by {who} (mode {mode:o}); chmod go-w to use it")


def read_file(path: Path, *, trust: bool = False) -> bytes:
    """The bytes of a plain file; Unsafe for others, and, unless `trust`, for one that others can have written."""
    # Neither a pipe nor a device is waited for.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise Unsafe(f"{path} is no plain file")
        if not trust and info.st_uid not in (os.geteuid(), 0):
            raise Unsafe(f"{path} belongs to user {info.st_uid}, not to this one ({os.geteuid()})")
        if not trust and info.st_mode & WRITERS:
            raise Unsafe(f"{path} may be written by others (mode {stat.S_IMODE(info.st_mode):o}; chmod go-w)")
        return file.read()
