"""Stress of the cache on disk: kills, many processes at once, broken folders and compilers.

Everything runs in forks of one process that has imported torch, each with an environment of its own. A fork answers
with JSON: whether its values are right, seconds, libraries built and found, and the warnings that it logged.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import pycompiler
from pycompiler.runtime import build, disk_cache, toolchain

LIMIT_S = 120.0  # a fork that takes longer counts as hanging


def program(factor: float, grad: bool) -> dict[str, Any]:
    """Compiles a program that depends on `factor`, and its backward on request, through the whole compiler."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("pycompiler").addHandler(handler)
    begin = time.perf_counter()

    def loss(x: Any) -> Any:
        return ((x * factor).sin() * x).sum()

    x = torch.linspace(-1, 1, 64).requires_grad_(grad)
    y = x.detach().clone().requires_grad_(grad)
    made = pycompiler.compile(loss)
    have, want = made(x), loss(y)
    right = torch.allclose(have, want)
    if grad:
        have.backward()
        want.backward()
        right = right and torch.allclose(x.grad, y.grad)  # type: ignore[arg-type]
    return {"right": right, "seconds": time.perf_counter() - begin, **build.counters, "lines": lines}


@functools.cache
def warm_up() -> None:
    """Imports all modules of a compile, which forks without rights could not read."""
    with pycompiler.config.patch(disk_cache=False):
        assert program(50.0, grad=False)["right"]  # a parent that ran a backward could not fork children that do
    build.counters.update(builds=0, hits=0)


class Fork:
    """A child process that runs `prepare(); program(factor, grad)`."""

    def __init__(self, prepare: Callable[[], None], factor: float, grad: bool = False) -> None:
        warm_up()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            self.pipe = read
            return
        code = 1
        try:
            os.close(read)
            disk_cache.temporary_root.cache_clear()
            prepare()
            os.write(write, b"start\n")
            os.write(write, json.dumps(program(factor, grad)).encode())
            code = 0
        except BaseException:
            with contextlib.suppress(OSError):
                os.write(write, json.dumps({"right": False, "lines": [traceback.format_exc()]}).encode())
        finally:
            if disk_cache.temporary_root.cache_info().currsize:
                shutil.rmtree(disk_cache.temporary_root(), ignore_errors=True)
            os._exit(code)

    def wait_for_start(self) -> None:
        assert os.read(self.pipe, 6) == b"start\n"

    def answer(self) -> dict[str, Any]:
        """The child's answer; fails if none arrives in time."""
        data, end = b"", time.monotonic() + LIMIT_S
        while True:
            if not select.select([self.pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                self.kill()
                raise AssertionError(f"hang: a process did not end within {LIMIT_S:.0f} s")
            chunk = os.read(self.pipe, 1 << 16)
            if not chunk:
                break
            data += chunk
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        assert os.WIFEXITED(status), f"the process died of signal {os.WTERMSIG(status)}"
        return json.loads(data.removeprefix(b"start\n"))  # type: ignore[no-any-return]

    def children(self) -> list[int]:
        """The processes that it started (a C++ compiler, and its own children)."""
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    todo += map(int, (task / "children").read_text().split())
            found.append(pid)
        return found[1:]

    def kill(self, children: bool = False) -> None:
        """kill -9, on request also of the compilers that it started."""
        below = self.children() if children else []
        for pid in (self.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(self.pipe)
        os.waitpid(self.pid, 0)


def use(folder: Path | str) -> Callable[[], None]:
    return lambda: setattr(pycompiler.config, "cache_dir", str(folder))


# kills ----------------------------------------------------------------------------------------------------------
def kills(count: int, seed: int = 0) -> dict[str, Any]:
    """kill -9 at `count` random moments of a compile; after each, another process must soon give the right result.

    Moments are uniform over the duration of a compile; every second kill takes the C++ compiler with it.
    """
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    try:
        duration = max(Fork(use(folder), 100.0 + i).answer()["seconds"] for i in range(3))
        with_compiler = slowest = rebuilt = 0.0
        lines: set[str] = set()
        for i in range(count):
            child = Fork(use(folder), factor := 1.0 + i / 1024)
            child.wait_for_start()
            time.sleep(rng.uniform(0, duration))
            with_compiler += bool(child.children())
            child.kill(children=bool(i % 2))
            answer = Fork(use(folder), factor).answer()
            assert answer["right"], answer
            slowest, rebuilt = max(slowest, answer["seconds"]), rebuilt + (answer["builds"] > 0)
            lines.update(answer["lines"])
            assert not list(folder.glob("tmp-*")), "a killed process's work folder is still there"
        return {"kills": count, "while the C++ compiler ran": int(with_compiler), "compile_s": round(duration, 3),
                "slowest_next_s": round(slowest, 3), "had to build": int(rebuilt), "lines": sorted(lines)}  # fmt: skip
    finally:
        shutil.rmtree(folder)


# many at once ---------------------------------------------------------------------------------------------------
def processes(count: int = 8, rounds: int = 1) -> dict[str, Any]:
    """`count` processes at once on one empty directory: all right, and each library is built once."""
    slowest = 0.0
    for i in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="stress-"))
        try:
            children = [Fork(use(folder / "cache"), 2.0 + i) for _ in range(count)]
            answers = [child.answer() for child in children]
            assert all(a["right"] for a in answers), answers
            entries = [p for p in (folder / "cache").iterdir() if p.is_dir()]
            assert sum(a["builds"] for a in answers) == len(entries), (answers, entries)
            assert not list((folder / "cache").glob("tmp-*"))
            slowest = max(slowest, *(a["seconds"] for a in answers))
        finally:
            shutil.rmtree(folder)
    return {"processes": count, "rounds": rounds, "slowest_s": round(slowest, 3)}


# broken folders and compilers -----------------------------------------------------------------------------------
@dataclass
class Row:
    """`prepare(folder)` runs in the child. `line`: the log line (None: none); `kernels`: whether kernels run."""

    prepare: Callable[[Path], None]
    line: str | None
    kernels: bool = True
    root: bool = False  # needs the rights of root


ROWS: dict[str, Row] = {}


def row(name: str, line: str | None, kernels: bool = True, root: bool = False) -> Any:
    def register(prepare: Callable[[Path], None]) -> Callable[[Path], None]:
        assert name not in ROWS, name
        ROWS[name] = Row(prepare, line, kernels, root)
        return prepare

    return register


def cache_at(name: str | bytes) -> Callable[[Path], None]:
    return lambda folder: use(folder / os.fsdecode(name))()


NOT_USED = "kernel cache not used"
for label, odd in {
    "spaces and quotes": "a b 'c' \"d\" `e`", "unicode": "k\u00e4che \u6f22 \U0001f40d", "newline": "a\nb\n", "tab": "a\tb",
    "dollar": "$HOME ${X} $(id)", "leading dash": "-o x", "at sign": "@file", "backslash": "a\\b\\", "percent": "%s%n%{x}",
    "globs": "*?[a]", "semicolon and ampersand": "a;b&c|d>e<f", "hash and bang": "#!x", "colon and comma": "a:b,c=d",
    "250 bytes": "n" * 250, "not UTF-8": b"\xff\xfe\x80", "control characters": "a\x01\x7f\x1b[31m", "deep": "d/" * 200,
    "dots": "a/../b/./c", "tilde inside": "a~b/~",
}.items():  # fmt: skip
    row(f"path: {label}", None)(cache_at(odd))
for label, odd in {"$LIB": "x/$LIB/y", "${ORIGIN}": "${ORIGIN}"}.items():
    row(f"path: {label}", "the loader of libraries would rewrite")(cache_at(odd))
row("path: a name of 300 bytes", NOT_USED)(cache_at("n" * 300))
row("path: 5000 bytes", NOT_USED)(cache_at("d/" * 2500))
row("path: relative", None)(lambda f: (os.chdir(f), use("sub/cache")()))  # type: ignore[arg-type,return-value]
row("path: empty", None)(lambda f: (use("")(), pycompiler.config.__setattr__("cache_dir", str(f / "c"))))  # type: ignore[arg-type,return-value]
row("path: tilde without a home", "no home folder")(lambda f: use("~nobody_there/x")())
row("path: device", NOT_USED)(lambda f: use("/dev/null")())
row("path: below a device", NOT_USED)(lambda f: use("/dev/null/x")())
row("path: /proc", NOT_USED)(lambda f: use("/proc/self/cache")())
row("knob disk_cache off", None)(lambda f: (use(f / "c")(), pycompiler.config.__setattr__("disk_cache", False)))  # type: ignore[arg-type,return-value]


@row("others may write to it", "may be written by others")
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").mkdir()
    (folder / "c").chmod(0o777)


@row("the group may write to it", "may be written by others")
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").mkdir()
    (folder / "c").chmod(0o770)


@row("everybody may move it", "above c, may be written by everybody")
def _(folder: Path) -> None:
    use(folder / "c")()
    folder.chmod(0o777)


@row("it belongs to somebody else", "belongs to user 65534", root=True)
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").mkdir()
    os.chown(folder / "c", 65534, 65534)


@row("a file in its place", NOT_USED)
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").write_text("not a folder")


@row("a link to a private folder", None)
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "real").mkdir(mode=0o700)
    (folder / "c").symlink_to("real")


@row("a link to a folder that others may write", "may be written by others")
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "real").mkdir()
    (folder / "real").chmod(0o777)
    (folder / "c").symlink_to("real")


@row("a link to nothing", NOT_USED)
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").symlink_to("nowhere")


@row("a link to itself", NOT_USED)
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").symlink_to("c")


def without_rights(folder: Path) -> None:
    """Continue as a user without a name and without a home."""
    tempfile.tempdir = str(folder / "tmp")
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(54321, 54321, 54321)
        os.setresuid(54321, 54321, 54321)


@row("read-only", NOT_USED)
def _(folder: Path) -> None:
    use(folder / "c")()
    (folder / "c").mkdir()
    if os.geteuid() == 0:
        os.chown(folder / "c", 54321, 54321)
    (folder / "c").chmod(0o500)
    folder.chmod(0o755)
    without_rights(folder)


@row("not readable", NOT_USED)
def _(folder: Path) -> None:
    use(folder / "c" / "d")()
    (folder / "c").mkdir(mode=0o700)
    (folder / "c").chmod(0o000)
    folder.chmod(0o755)
    without_rights(folder)


@row("no HOME", "no home folder: kernels are kept in")
def _(folder: Path) -> None:
    from pycompiler.config import _default_cache_dir

    for name in ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"):
        os.environ.pop(name, None)
    folder.chmod(0o755)
    without_rights(folder)
    pycompiler.config.cache_dir = _default_cache_dir()


@row("HOME that does not exist and may not be made", NOT_USED)
def _(folder: Path) -> None:
    from pycompiler.config import _default_cache_dir

    os.environ["HOME"] = "/proc/no-home"
    pycompiler.config.cache_dir = _default_cache_dir()


@row("no cache folder and no temporary folder", "runs through ATen", kernels=False)
def _(folder: Path) -> None:
    use("/proc/nowhere")()
    folder.chmod(0o555)
    os.chdir("/proc")
    tempfile.tempdir = "/proc/nowhere"


@row("the working directory is gone, the path relative", NOT_USED)
def _(folder: Path) -> None:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    use("cache")()


def limited(size: int, kernels: bool = True) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        import resource

        use(folder / "c")()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return prepare


# Largest file size in bytes: too small for the source, the compiler's temporary files, the library, or the manifest.
for size in (0, 100, 2_000, 6_000, 12_000):
    row(f"files of at most {size} bytes", "runs through ATen", kernels=False)(limited(size))


def full(kilobytes: int) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        use(folder / "disk" / "c")()
        (folder / "disk").mkdir(mode=0o700)
        mount(folder / "disk", f"size={kilobytes}k,mode=700")

    return prepare


def mount(folder: Path, options: str) -> None:
    """A file system in memory, in a namespace that ends with this process."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None):  # CLONE_NEWNS; MS_REC | MS_PRIVATE
        raise OSError(ctypes.get_errno(), "unshare")
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")


for kilobytes in (4, 8, 12, 16, 20, 24):
    row(f"full disk: {kilobytes} KiB", "No space left on device", root=True)(full(kilobytes))


@row("full disk: no inode left", "No space left on device", root=True)
def _(folder: Path) -> None:
    use(folder / "disk" / "c")()
    (folder / "disk").mkdir(mode=0o700)
    mount(folder / "disk", "nr_inodes=4,mode=700")


def script(text: str, line: str) -> Callable[[Path], None]:
    """A C++ compiler that is this shell script."""

    def prepare(folder: Path) -> None:
        use(folder / "c")()
        path = folder / "cxx"
        path.write_text(text)
        path.chmod(0o700)
        os.environ["CXX"] = str(path)
        pycompiler.config.cxx_timeout = 3.0

    return prepare


OUTPUT = 'while [ "$1" != -o ]; do shift; done; '
for label, (text, line) in {
    "fails": ("#!/bin/sh\nexit 1\n", "exited with 1"),
    "writes nothing": ("#!/bin/sh\nexit 0\n", "not a library with the kernels"),
    "writes rubbish": (f'#!/bin/sh\n{OUTPUT} echo rubbish > "$2"\n', "not a library with the kernels"),
    "writes an empty file": (f'#!/bin/sh\n{OUTPUT} : > "$2"\n', "not a library with the kernels"),
    "writes another library": (f'#!/bin/sh\n{OUTPUT} echo "int x;" | cc -shared -fPIC -x c -o "$2" -\n',
                               "not a library with the kernels"),
    "crashes": ("#!/bin/sh\nkill -SEGV $$\n", "exited with -11"),
    "crashes after half of the library": (f'#!/bin/sh\n{OUTPUT} head -c 999 /bin/sh > "$2"; kill -ABRT $$\n',
                                          "exited with -6"),
    "hangs": ("#!/bin/sh\nexec sleep 1000\n", "did not end within 3 s"),
    "hangs with children": ("#!/bin/sh\nsleep 1000 & sleep 1000\n", "did not end within 3 s"),
    "hangs and ignores signals": ("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 1; done\n", "did not end within"),
    "says rubbish": ("#!/bin/sh\nhead -c 100000 /dev/urandom >&2; exit 3\n", "exited with 3"),
    "is no program": ("rubbish that no kernel can start\n", "cannot be started|exited with 127"),
    "has a missing interpreter": ("#!/no/such/shell\n", "cannot be started"),
}.items():  # fmt: skip
    row(f"compiler: {label}", line, kernels=False)(script(text, line))


def cxx(value: str, path: str | None = None) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        use(folder / "c")()
        os.environ["CXX"] = value
        if path is not None:
            os.environ["PATH"] = path

    return prepare


row("compiler: none", "graphs run through ATen: no C\\+\\+ compiler found", kernels=False)(cxx("", "/nowhere"))
row("compiler: CXX is not there, nor another", "no C\\+\\+ compiler found", kernels=False)(cxx("nope", "/nowhere"))
row("compiler: CXX is not there", "CXX=/no/such/cxx was not found: using")(cxx("/no/such/cxx"))
row("compiler: CXX is a folder", "was not found: using")(cxx("/usr"))
row("compiler: CXX is false", "exited with 1", kernels=False)(cxx("false"))
row("compiler: CXX has an open quote", "not a valid shell command", kernels=False)(cxx("g++ 'x"))
row("compiler: CXX with words", None)(cxx("c++ -DX='a b'"))
row("compiler: CXX is blank", None)(cxx("   "))
row("compiler: unknown flag", "unrecognized|unknown argument", kernels=False)(cxx("c++ --no-such-flag"))


def run_row(name: str) -> dict[str, Any]:
    """Runs one row; fails unless the result matches the row."""
    expected = ROWS[name]
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    folder.chmod(0o711)

    def prepare() -> None:
        toolchain._find.cache_clear()
        disk_cache._warned.clear()
        expected.prepare(folder)

    try:
        answer = Fork(prepare, 3.0).answer()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = "\n".join(answer["lines"])
    assert answer["right"], f"{name}: {text}"
    if expected.line is None:
        assert not answer["lines"], f"{name}: expected no warning, got {text}"
    else:
        assert re.search(expected.line, text), f"{name}: expected {expected.line!r} in {text!r}"
    assert (answer["builds"] > 0) == expected.kernels, f"{name}: {answer}"
    return answer


def places(only: str = "") -> dict[str, Any]:
    """All rows whose name the expression `only` matches; rows that need root are skipped without it."""
    wrong, skipped, done = [], [], 0
    for name, expected in ROWS.items():
        if not re.search(only, name):
            continue
        if expected.root and os.geteuid() != 0:
            skipped.append(name)
            continue
        try:
            run_row(name)
            done += 1
        except (AssertionError, ValueError) as error:
            wrong.append(str(error))
            print(error, file=sys.stderr)
    assert not wrong, "\n\n".join(wrong)
    return {"rows": done, "skipped (not root)": skipped}


# damage ---------------------------------------------------------------------------------------------------------
def damage(count: int, seed: int = 0) -> dict[str, Any]:
    """One random damage to an entry before each process: bytes flipped; files cut, swapped, emptied, removed,
    extended."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    noticed = 0
    try:
        for factor in (2.0, 3.0):
            Fork(use(folder), factor).answer()
        for _ in range(count):
            hurt(folder, rng)
            there = sum(len(p.name) == 64 and p.is_dir() for p in folder.iterdir())
            for factor in (2.0, 3.0):
                answer = Fork(use(folder), factor).answer()
                assert answer["right"], answer
                assert bool(answer["builds"]) == bool(answer["lines"]) or there < 2, answer  # replacements are logged
                noticed += answer["builds"]
        for factor in (2.0, 3.0):
            answer = Fork(use(folder), factor).answer()
            assert answer["right"] and not answer["builds"] and not answer["lines"], answer
        return {"damages": count, "libraries built again": noticed}
    finally:
        shutil.rmtree(folder)


def hurt(folder: Path, rng: random.Random) -> None:
    entries = sorted(p for p in folder.iterdir() if p.is_dir() and len(p.name) == 64)
    path = rng.choice(entries) / rng.choice((disk_cache.LIBRARY, disk_cache.SOURCE, disk_cache.MANIFEST))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))

    def swap() -> None:
        a, b, spare = entries[0], entries[1], folder / "spare"
        a.rename(spare)
        b.rename(a)
        spare.rename(b)

    def other_file() -> None:
        other = next(e for e in entries if e != path.parent) / path.name
        path.write_bytes(other.read_bytes())

    def flip() -> None:
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

    def in_its_place() -> None:
        path.unlink()
        path.mkdir()

    rng.choice([
        flip, flip, swap, other_file, in_its_place,
        lambda: path.write_bytes(data[:at]),
        lambda: path.write_bytes(bytes(data) + b"\0"),
        lambda: path.unlink(),
        lambda: path.chmod(0o666),
        lambda: shutil.rmtree(path.parent),
        lambda: (path.unlink(), path.symlink_to("/etc/passwd")),
        lambda: path.write_bytes(b"[" * 100_000),
    ])()  # fmt: skip
