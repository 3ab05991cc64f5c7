"""The build and its disk cache: hits without a compiler, damage, foreign folders, no compiler, processes at once."""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pycompiler import config
from pycompiler.runtime import build as build_module
from pycompiler.runtime import disk_cache, toolchain
from pycompiler.runtime.build import BuildFailed, NoCompiler, build, has_compiler

SOURCE = '#include "pyc_prelude.h"\nextern "C" PYC_EXPORT int64_t answer() { return 42; }\n'
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, with odd characters in its path."""
    folder = tmp_path / "a 'cache', with \u00e4 $odd: name"
    monkeypatch.setattr(config, "cache_dir", str(folder))
    disk_cache._warned.clear()
    return folder


def answer(path: str) -> int:
    return int(ctypes.CDLL(path).answer())


def entry_of(cache: Path) -> Path:
    (entry,) = [p for p in cache.iterdir() if p.is_dir()]
    return entry


def test_built_once_then_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(SOURCE, ("answer",))
    assert first.built
    assert answer(first.path) == 42
    assert first.symbols == ("answer",)
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a hit ran the compiler"))
    second = build(SOURCE, ("answer",))
    assert not second.built
    assert second.path == first.path
    assert oct(cache.stat().st_mode & 0o777) == "0o700"
    assert not list(cache.glob("tmp-*"))


def test_the_key_covers_source_flags_and_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = toolchain.find_toolchain()
    key = build_module.cache_key(SOURCE, tool)
    assert key != build_module.cache_key(SOURCE + " ", tool)
    commented = f"// graph\n{SOURCE}    // b0: add_7\n"
    assert key == build_module.cache_key(commented, tool), "equal kernels, whatever their nodes are called"
    assert key != build_module.cache_key(SOURCE, toolchain.Toolchain(tool.command, tool.identity + "x"))
    monkeypatch.setattr(build_module, "FLAGS", (*toolchain.FLAGS, "-O1"))
    build_module._environment_key.cache_clear()
    assert key != build_module.cache_key(SOURCE, tool)
    build_module._environment_key.cache_clear()


@pytest.mark.parametrize("name", [disk_cache.LIBRARY, disk_cache.SOURCE, disk_cache.MANIFEST])
@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_a_damaged_entry_is_built_again(cache: Path, name: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(build(SOURCE).path).parent / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x41
    path.chmod(0o600)
    {"flip": lambda: path.write_bytes(data), "truncate": lambda: path.write_bytes(data[:10]), "remove": path.unlink}[
        how
    ]()
    with caplog.at_level(logging.WARNING):
        again = build(SOURCE)
    assert again.built
    assert answer(again.path) == 42
    assert "damaged" in caplog.text
    assert not build(SOURCE).built


def test_swapped_entries_are_noticed(cache: Path) -> None:
    a = Path(build(SOURCE).path).parent
    b = Path(build(SOURCE.replace("42", "43")).path).parent
    spare = cache / "spare"
    a.rename(spare), b.rename(a), spare.rename(b)
    assert answer(build(SOURCE).path) == 42
    assert answer(build(SOURCE.replace("42", "43")).path) == 43


def test_a_folder_that_others_may_write_is_refused(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        library = build(SOURCE)
    assert not library.path.startswith(str(cache))
    assert answer(library.path) == 42
    assert "may be written by others" in caplog.text
    assert not list(cache.iterdir())


def test_the_path_that_was_checked_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that others may replace is followed once."""
    real, shared = tmp_path / "home" / "cache", tmp_path / "shared"
    real.mkdir(parents=True, mode=0o700)
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(real)
    monkeypatch.setattr(config, "cache_dir", str(shared / "link"))
    assert disk_cache.checked_root() == real.resolve()
    assert Path(build(SOURCE).path).is_relative_to(real.resolve())


def test_folders_above_are_made_so_that_no_group_may_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "a" / "b" / "c"))
    before = os.umask(0o002)
    try:
        root = disk_cache.checked_root()
    finally:
        os.umask(before)
    assert [oct(p.stat().st_mode & 0o777) for p in (root, *root.parents[:2])] == ["0o700", "0o755", "0o755"]


def test_a_writable_entry_is_not_loaded(cache: Path) -> None:
    library = Path(build(SOURCE).path)
    library.chmod(0o777)
    again = build(SOURCE)
    assert again.built
    assert oct(Path(again.path).stat().st_mode & 0o777) == "0o700"


def test_a_file_in_the_folders_place(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        assert answer(build(SOURCE).path) == 42
    assert "kernel cache not used" in caplog.text


def test_full_disk_falls_back(cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = build_module.compile_into

    def full(folder: Path, *rest: Any) -> None:
        if str(folder).startswith(str(cache)):
            raise OSError(28, "No space left on device", str(folder))
        real(folder, *rest)

    monkeypatch.setattr(build_module, "compile_into", full)
    with caplog.at_level(logging.WARNING):
        assert answer(build(SOURCE).path) == 42
    assert "No space left" in caplog.text


def test_wrong_source_says_what_the_compiler_said(cache: Path) -> None:
    with pytest.raises(BuildFailed, match="no_such_thing"):
        build("int f() { return no_such_thing; }")
    assert not [p for p in cache.iterdir() if p.is_dir()]


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert not has_compiler()
    with pytest.raises(NoCompiler, match="install g"):
        build(SOURCE)


def test_cxx_chooses_the_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -DANSWER=7")
    assert toolchain.find_toolchain().command[1:] == ("-DANSWER=7",)
    assert answer(build(SOURCE.replace("42", "ANSWER")).path) == 7


def test_the_knob_chooses_the_compiler_before_cxx(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -DANSWER=7")
    with config.patch(cxx="g++ -DANSWER=8", cxx_flags="-DOTHER=1"):
        assert toolchain.find_toolchain().command[1:] == ("-DANSWER=8", "-DOTHER=1")
        assert answer(build(SOURCE.replace("42", "ANSWER + OTHER")).path) == 9


CHILD = """
import sys, ctypes
from pycompiler.runtime.build import build, counters
library = build(sys.argv[1])
print(ctypes.CDLL(library.path).answer(), counters["builds"])
"""


def child(cache: Path, source: str = SOURCE) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYCOMPILER_CACHE_DIR": str(cache)}
    return subprocess.Popen([sys.executable, "-c", CHILD, source], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def test_processes_at_once_build_once(cache: Path) -> None:
    children = [child(cache) for _ in range(4)]
    out = [c.communicate(timeout=400) for c in children]
    assert all(o.startswith("42") for o, _ in out), out
    assert sum(int(o.split()[1]) for o, _ in out) == 1


def test_killed_in_the_middle(cache: Path) -> None:
    """kill -9 at several moments: the next build is right and does not wait."""
    source = SOURCE + "\n".join(f"static float f{k}(float x) {{ return pyc_exp(x) + {k}; }}" for k in range(200))
    for delay in (0.15, 0.3, 0.5):
        c = child(cache, source)
        time.sleep(delay)
        c.send_signal(signal.SIGKILL)
        c.communicate()
    begin = time.perf_counter()
    library = build(source)
    assert answer(library.path) == 42
    assert time.perf_counter() - begin < 60
    assert not list(cache.glob("tmp-*"))


def test_a_lock_is_held_by_one_and_its_file_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes add one to a number under a lock whose file each of them removes."""
    monkeypatch.setattr(disk_cache, "LOCK_POLL_S", 0.0)
    number, processes, turns = tmp_path / "number", 6, 100
    number.write_text("0")

    def work() -> None:
        for _ in range(turns):
            with disk_cache.locked(tmp_path, "key"):
                before = number.read_text()
                time.sleep(0.0002)
                number.write_text(str(int(before) + 1))

    children = []
    for _ in range(processes):
        if (pid := os.fork()) == 0:
            try:
                work()
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert int(number.read_text()) == processes * turns
    assert list(tmp_path.iterdir()) == [number]


def test_lock_files_of_the_dead_are_removed(cache: Path) -> None:
    """Only lock files of keys are removed; files of other programs and special files stay."""
    cache.mkdir(parents=True, mode=0o700)
    held, left, pipe = (cache / f"{digit * 64}.lock" for digit in "abc")
    others = [cache / name for name in ("other.lock", ".hidden.lock", f"{'a' * 63}.lock", f"{'A' * 64}.lock")]
    for path in (left, *others):
        path.touch()
    os.mkfifo(pipe)
    file = disk_cache.wait_for_lock(held)
    assert build(SOURCE).built
    assert sorted(cache.glob("*.lock")) == sorted([held, pipe, *others])
    assert disk_cache.lock_file(held) is None
    disk_cache.remove_lock(held, file)
    assert sorted(cache.glob("*.lock")) == sorted([pipe, *others])


def test_what_is_no_file_of_this_user_is_no_lock(tmp_path: Path) -> None:
    """A pipe must not block the build."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(disk_cache.Unsafe, match="not a plain file of this user"):
        disk_cache.lock_file(tmp_path / "pipe")
    with pytest.raises(OSError):
        disk_cache.lock_file(tmp_path / "link")


def test_a_lock_that_cannot_be_had_is_done_without(cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(disk_cache, "LOCK_NOTICE_S", 0.05)
    monkeypatch.setattr(disk_cache, "LOCK_TIMEOUT_S", 0.2)
    cache.mkdir(parents=True, mode=0o700)
    key = build_module.cache_key(SOURCE, toolchain.find_toolchain())
    with disk_cache.locked(cache, key), caplog.at_level("WARNING", logger="pycompiler"):
        assert answer(build(SOURCE).path) == 42
    assert [r.message.partition(":")[0] for r in caplog.records] == [
        "another process builds the same kernels", f"no lock on the kernel cache ({key}.lock is held by another process)"
    ]  # fmt: skip


WORKS = """
import os, sys, tempfile, time
from pathlib import Path
from pycompiler.runtime import disk_cache
folder = Path(tempfile.mkdtemp(prefix="tmp-", dir=sys.argv[1]))
lock = disk_cache.lock_alive(folder)
print(folder, flush=True)
time.sleep(60)
"""


def test_work_folders_of_the_dead_are_removed_and_of_the_living_are_not(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    children = [
        subprocess.Popen([sys.executable, "-c", WORKS, str(cache)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    try:
        dead, alive = (Path(c.stdout.readline().strip()) for c in children)  # type: ignore[union-attr]
        for folder in (dead, alive):
            os.utime(folder, (0, 0))  # age does not matter if there is a lock
        disk_cache.clean_leftovers(cache)
        assert dead.is_dir()
        children[0].kill()
        children[0].wait()
        young, old = cache / "tmp-young", cache / "tmp-old"
        for folder in (young, old):
            folder.mkdir()
        os.utime(old, (0, 0))
        assert build(SOURCE).built  # the next build cleans
        assert sorted(cache.glob("tmp-*")) == sorted([alive, young])
        assert not (entry_of_key(cache) / disk_cache.ALIVE).exists()
    finally:
        for c in children:
            c.kill()
            c.communicate()


def entry_of_key(cache: Path) -> Path:
    (entry,) = [p for p in cache.iterdir() if p.is_dir() and not p.name.startswith("tmp-")]
    return entry


def test_an_interrupt_while_the_compiler_starts_ends_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal arrives when Popen has started the process but has not returned."""
    started: list[subprocess.Popen[str]] = []
    original = subprocess.Popen

    class Interrupted(original):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(["sleep", "60"], **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    build_module.find_toolchain()
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(SOURCE)
    [process] = started
    assert process.poll() == -signal.SIGKILL
    assert not list(cache.glob("tmp-*"))


def test_temporary_caches_of_the_dead_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = tmp_path / f"{disk_cache.TEMPORARY}dead"
    other = tmp_path / f"{disk_cache.TEMPORARY}without a lock"
    for folder in (dead, other):
        folder.mkdir(mode=0o700)
    others = [tmp_path / name for name in ("other.lock", f"{'a' * 64}.lock", ".hidden.lock")]
    for path in others:
        path.write_text("of another program")
    target = tmp_path / "target"
    (target / "kept").mkdir(parents=True)
    link = tmp_path / f"{disk_cache.TEMPORARY}link"
    link.symlink_to(target)
    lock = disk_cache.lock_alive(dead)
    assert lock is not None
    os.close(lock)
    disk_cache.temporary_root.cache_clear()
    try:
        root = disk_cache.temporary_root()
        assert {*tmp_path.iterdir()} == {root, other, link, target, *others}
        disk_cache.clean_folders(tmp_path, disk_cache.TEMPORARY, math.inf)
        assert root.is_dir()
        assert (target / "kept").is_dir()
    finally:
        disk_cache.temporary_root.cache_clear()


def test_manifest_is_json(cache: Path) -> None:
    build(SOURCE)
    manifest = json.loads((entry_of(cache) / disk_cache.MANIFEST).read_text())
    assert set(manifest["sha256"]) == {disk_cache.LIBRARY, disk_cache.SOURCE}
