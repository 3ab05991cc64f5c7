"""Compiled libraries on disk, safe to share between the processes of one user.

In: a key (hex digest) and a function that fills a fresh folder.  Out: the folder of a verified entry: `<root>/<key>/`
with `kernels.so`, `kernels.cpp` and `manifest.json` (sha256 of each file), and `origin.json` (`entry_origin.py`).

Invariants:

- The root belongs to this user, and no other user may write to it or move it (`private_files.py`); otherwise it is not
  used. The checked path contains no link, and the same path is used.
- An entry appears by renaming a finished folder.
- Owner, mode and sha256 are checked before a file is loaded.  An entry that fails is replaced.  (Files are not synced
  to disk, so a crash of the machine can damage an entry.)
- Locks are the kernel's (flock): a killed process leaves none behind.  The holder of a lock removes its file, and a
  lock on a removed file does not count.
- A lock in a work folder shows that its owner is alive.  The next builder removes work folders and key locks of dead
  processes, and nothing else.
- No data are unpickled.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pycompiler import config
from pycompiler.runtime import entry_origin
from pycompiler.runtime.private_files import Unsafe, check_above, check_private
from pycompiler.torch_compat import interrupts

__all__ = ["Unsafe", "check_above", "check_private"]

log = logging.getLogger("pycompiler.runtime")

FORMAT = 1
LIBRARY, SOURCE, MANIFEST = "kernels.so", "kernels.cpp", "manifest.json"
LOCK_TIMEOUT_S = 60.0  # after this time the other process is assumed to hang, and this one builds on its own
LOCK_NOTICE_S = 5.0  # a wait that is longer is logged
LOCK_POLL_S = 0.05
LEFTOVER_AGE_S = 3600.0  # of a work folder without a lock file: its owner was killed before it could create one
LOCK = ".lock"  # suffix of a key: its holder builds the entry
KEY = re.compile(r"[0-9a-f]{64}")
ALIVE = "alive"  # in a work folder: locked while its owner lives
TEMPORARY = "pycompiler-tmp-"


def check_loadable(path: Path) -> None:
    """Raise if the loader would rewrite the path: it replaces words after a `$` (dlopen(3), "dynamic string tokens")."""
    if TOKENS.search(str(path)):
        raise OSError(f"the loader of libraries would rewrite {str(path)!r}: it holds $ORIGIN, $LIB or $PLATFORM")


TOKENS = re.compile(r"\$\{?(ORIGIN|LIB|PLATFORM)")


def wanted_root() -> Path:
    return Path(config.cache_dir)


_warned: set[str] = set()


def warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


@functools.cache
def temporary_root() -> Path:
    """A folder of this process alone, removed at its end."""
    clean_folders(Path(tempfile.gettempdir()), TEMPORARY, math.inf)
    path = Path(tempfile.mkdtemp(prefix=TEMPORARY))
    owner = os.getpid()
    lock = lock_alive(path)

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)
            if lock is not None:
                os.close(lock)

    atexit.register(remove)
    return path


def checked_root() -> Path:
    """The cache folder, created if needed, by a path without links.  OSError if it cannot be used."""
    root = wanted_root()
    if str(root).startswith("~"):
        raise OSError(f"no home folder ({root})")
    root = root.absolute()
    if not root.is_dir():
        missing = [folder for folder in root.parents if not folder.is_dir()]
        for folder, mode in (*((folder, 0o755) for folder in reversed(missing)), (root, 0o700)):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode)  # independent of the umask: a group-writable parent is rejected below
    real = Path(os.path.realpath(root, strict=True))
    check_loadable(real)
    check_private(real, folder=True)
    check_above(real)
    return real


def open_root() -> Path:
    """The cache folder, or a temporary one (with one warning) when it cannot be used."""
    if not config.disk_cache:
        return temporary_root()
    try:
        root = checked_root()
    except OSError as error:
        return fall_back(error)
    if root == Path(tempfile.gettempdir(), f"pycompiler-{os.getuid()}").resolve():  # the default without a home folder
        warn_once(f"no home folder: kernels are kept in {root}, which a restart may empty (set PYCOMPILER_CACHE_DIR)")
    return root


def fall_back(error: OSError) -> Path:
    warn_once(f"kernel cache not used: {error}; kernels are kept in a temporary folder and built again next time "
              "(set PYCOMPILER_CACHE_DIR to a private folder)")  # fmt: skip
    return temporary_root()


def digest(*parts: str) -> str:
    h = hashlib.sha256(f"pycompiler cache {FORMAT}".encode())
    for part in parts:
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_damage(entry: Path, key: str) -> str:
    """The damage of an existing entry, "" if there is none."""
    try:
        check_private(entry / MANIFEST, folder=False)
        manifest = json.loads((entry / MANIFEST).read_bytes())
        if manifest["key"] != key:
            raise ValueError(f"its manifest belongs to another entry ({str(manifest['key'])[:12]})")
        for name in (LIBRARY, SOURCE):
            check_private(entry / name, folder=False)
            if file_digest(entry / name) != manifest["sha256"][name]:
                raise ValueError(f"{name} does not have the recorded sha256")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return str(error)
    return ""


def verified(entry: Path, key: str) -> bool:
    """Whether the entry exists and may be loaded.  Logs the damage of an entry that may not."""
    try:
        check_private(entry, folder=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        warn_once(f"kernel cache entry not used: {error}")
        return False
    if wrong := find_damage(entry, key):
        warn_once(f"kernel cache entry {entry} is damaged ({wrong}): built again")
    return not wrong


def _publish(work: Path, entry: Path, key: str) -> None:
    """Rename a filled folder to its entry; a valid entry that exists already wins."""
    names = (LIBRARY, SOURCE)
    for name in names:
        os.chmod(work / name, 0o700 if name == LIBRARY else 0o600)
    manifest = {"format": FORMAT, "key": key, "sha256": {n: file_digest(work / n) for n in names}}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1))
    os.chmod(work / MANIFEST, 0o600)
    entry_origin.write(work)
    for _ in range(8):
        try:
            os.rename(work, entry)
            with contextlib.suppress(OSError):
                os.unlink(entry / ALIVE)
            return
        except OSError:
            if not os.path.lexists(entry):
                raise
        if verified(entry, key):
            return
        aside = Path(tempfile.mkdtemp(prefix="tmp-", dir=entry.parent))
        with contextlib.suppress(OSError):
            os.rename(entry, aside / "old")
        shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"cannot replace the damaged entry {entry}")


def lock_alive(folder: Path) -> int | None:
    """Locks ALIVE in a new work folder; the lock lasts until the descriptor is closed or the process dies."""
    handle = None
    try:
        handle = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(folder / "new", folder / ALIVE)  # it appears locked
    except OSError as error:  # a file system without locks: the folder's age must decide
        log.info("no lock in %s: %s", folder, error)
        if handle is not None:
            os.close(handle)
        return None
    return handle


def lock_file(path: Path, flags: int = 0) -> io.FileIO | None:
    """The file `path`, locked until it is closed or garbage collected; None while another process holds the lock."""
    always = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    file = io.FileIO(path, "r+", opener=lambda p, _: os.open(p, always | flags, 0o600))
    try:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            raise Unsafe(f"{path} is not a plain file of this user")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass  # held, or removed by its holder since it was opened
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def unlock(file: io.FileIO) -> None:
    """Free the lock for all processes that share the open file: a process forked meanwhile holds it too."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
    file.close()


def is_abandoned(folder: Path, age: float) -> bool:
    """Whether the owner of a work folder is dead: its lock is free, or it has none and is older than `age`."""
    try:
        file = lock_file(folder / ALIVE)
    except FileNotFoundError:
        return os.lstat(folder).st_mtime < time.time() - age
    if file is not None:
        unlock(file)
    return file is not None


def clean_leftovers(root: Path) -> None:
    """Remove the work folders and lock files that killed processes left in a cache folder."""
    clean_folders(root, "tmp-", LEFTOVER_AGE_S)
    for path in root.glob(f"*{LOCK}"):
        with contextlib.suppress(OSError):
            if KEY.fullmatch(path.name.removesuffix(LOCK)) and (file := lock_file(path)) is not None:
                remove_lock(path, file)


def clean_folders(place: Path, prefix: str, age: float) -> None:
    """Remove this user's work folders whose owners are dead; `place` may be a shared folder."""
    for path in place.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            check_private(path, folder=True)
            if is_abandoned(path, age):
                dead = path.with_name(f"{path.name}-dead")  # the killed process's compiler may still write to `path`
                os.rename(path, dead)
                shutil.rmtree(dead, ignore_errors=True)


def remove_lock(path: Path, file: io.FileIO) -> None:
    """The last act of a lock's holder, so that no file stays; waiting processes create a new one."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    unlock(file)


def wait_for_lock(path: Path) -> io.FileIO:
    """The lock file, created if needed.  Raises TimeoutError after LOCK_TIMEOUT_S."""
    begin, noticed = time.monotonic(), False
    while (file := lock_file(path, os.O_CREAT)) is None:
        waited = time.monotonic() - begin
        if waited > LOCK_TIMEOUT_S:
            raise TimeoutError(f"{path.name} is held by another process")
        if waited > LOCK_NOTICE_S and not noticed:
            noticed = True
            log.warning("another process builds the same kernels: waiting for it, up to %.0f s", LOCK_TIMEOUT_S)
        interrupts.check()
        time.sleep(LOCK_POLL_S)
    return file


@contextlib.contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """One builder per key; the others wait and find the result.  If the lock is not available, build without it."""
    path, file = root / f"{key}{LOCK}", None
    try:
        file = wait_for_lock(path)
    except OSError as error:
        log.warning("no lock on the kernel cache (%s): building without it", error)
    try:
        yield
    finally:
        if file is not None:
            remove_lock(path, file)


fetched: dict[str, Path] = {}  # key → folder of each entry that this process has used


def find(root: Path, key: str) -> Path | None:
    """The folder of an entry that exists and may be loaded."""
    if not verified(root / key, key):
        return None
    fetched[key] = root / key
    return root / key


def fetch(root: Path, key: str, fill: Callable[[Path], None]) -> tuple[Path, bool]:
    """(folder of the entry, whether it was built now).  `fill(folder)` writes LIBRARY and SOURCE."""
    found, built = _fetch(root, key, fill)
    fetched[key] = found
    return found, built


def _fetch(root: Path, key: str, fill: Callable[[Path], None]) -> tuple[Path, bool]:
    entry = root / key
    if verified(entry, key):
        return entry, False
    with locked(root, key):
        if verified(entry, key):
            return entry, False
        clean_leftovers(root)
        work = Path(tempfile.mkdtemp(prefix="tmp-", dir=root))
        lock = lock_alive(work)
        try:
            fill(work)
            _publish(work, entry, key)
        finally:
            if work.exists():
                shutil.rmtree(work, ignore_errors=True)
            if lock is not None:
                os.close(lock)
    if not verified(entry, key):
        raise OSError(f"the new entry {entry} does not read back as written")
    return entry, True
