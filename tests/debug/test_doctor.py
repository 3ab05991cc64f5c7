"""`python -m pycompiler`: doctor's findings on good and broken machines; the cache is listed, verified and cleaned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native, config
from pycompiler.__main__ import main
from pycompiler.debug import doctor
from pycompiler.debug.doctor import BAD, GOOD, NOTE
from pycompiler.runtime import toolchain


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    with config.patch(cache_dir=str(folder)):
        yield folder


def test_all_is_well_here(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") >= len(doctor.CHECKS)
    for part in (
        f"torch {torch.__version__}",
        "C++ compiler: /",
        "OpenMP: kernels run on",
        str(cache),
        "with eager's gradients",
    ):
        assert part in text
    assert BAD not in text


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    found = doctor.compiler()
    assert (found.state, "install g++ or set CXX" in found.text) == (BAD, True)
    assert "-> without one every graph runs through ATen" in str(found)
    assert doctor.openmp().state == NOTE


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no license >&2\nexit 3\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    found = doctor.compiler()
    assert found.state == BAD
    assert "exited with 3: no license" in found.text


def test_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "OPENMP", (("-lnothing_of_this_name",), ("-fopenmp-simd",)))
    found = doctor.openmp()
    assert (found.state, found.text) == (NOTE, "kernels run on one thread")


def test_cache_that_cannot_be_used(cache: Path) -> None:
    cache.chmod(0o777)
    found = doctor.cache()
    assert found.state == BAD
    assert "may be written by others" in found.text
    with config.patch(disk_cache=False):
        assert doctor.cache().state == NOTE


def test_slow_paths_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "set_fast_guards", lambda on: False)
    assert (doctor.fast_path().state, "off: " in doctor.fast_path().text) == (NOTE, True)
    probe = {**_native.tensor_probe(), "level": "slow"}
    monkeypatch.setattr(_native, "tensor_probe", lambda: probe)
    assert (doctor.tensors().state, "by slow" in doctor.tensors().text) == (NOTE, True)


def test_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.knobs().state == GOOD
    with config.patch(recompile_limit=3):
        assert "recompile_limit=3" in doctor.knobs().text
    with config.patch(disable=True):
        assert doctor.knobs().state == BAD
    monkeypatch.setenv("PYCOMPILER_RECOMPILE_LIMITS", "3")
    assert "did you mean PYCOMPILER_RECOMPILE_LIMIT" in doctor.knobs().text


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def surprise() -> doctor.Finding:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(doctor, "CHECKS", (surprise,))
    assert main(["doctor"]) == 1
    assert "BAD  surprise: the check failed: ZeroDivisionError: oh" in capsys.readouterr().out


# the cache --------------------------------------------------------------------------------------------------------
def filled() -> None:
    pycompiler.compile(lambda x: x.sin() + 1)(torch.ones(3))
    pycompiler.compile(lambda x: x.cos() * 2)(torch.ones(3))


def test_listed_and_verified(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled()
    assert main(["cache", "ls"]) == 0
    keys = sorted(p.name for p in cache.iterdir())
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines[:-1]) == [key[:12] for key in keys]
    assert lines[0].split()[3:5] == ["1", "kernels"]
    assert lines[-1].startswith(f"{cache}: 2 entries, ")
    assert main(["cache", "verify"]) == 0
    with open(cache / keys[0] / "kernels.so", "r+b") as file:
        file.write(b"\0\0\0\0")
    assert main(["cache", "verify", keys[1][:8]]) == 0
    capsys.readouterr()
    assert main(["cache", "verify"]) == 1
    assert f"{keys[0][:12]}  damaged: kernels.so does not have the recorded sha256" in capsys.readouterr().out


def test_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled()
    first, second = sorted(p.name for p in cache.iterdir())
    assert main(["cache", "rm"]) == 2  # no target was named
    assert main(["cache", "rm", "no such key"]) == 2
    assert main(["cache", "rm", "--older", "1"]) == 0
    assert {p.name for p in cache.iterdir()} == {first, second}
    assert main(["cache", "rm", first[:10]]) == 0
    assert [p.name for p in cache.iterdir()] == [second]
    (cache / "notes.txt").write_text("not ours")
    assert main(["cache", "rm", "--all"]) == 0
    assert [p.name for p in cache.iterdir()] == ["notes.txt"]
    filled()
    assert "0 entries removed" in capsys.readouterr().out
    assert len(list(cache.iterdir())) == 3


def shorten(path: Path) -> None:
    """Write a new file: the old one is mapped into this process."""
    text = path.read_bytes()
    path.unlink()
    path.write_bytes(text[:100])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {  # a damage to an entry, and the report of `verify`
    "a short library": (lambda entry: shorten(entry / "kernels.so"), "does not have the recorded sha256"),
    "an empty manifest": (lambda entry: os.truncate(entry / "manifest.json", 0), "Expecting value"),
    "no source": (lambda entry: (entry / "kernels.cpp").unlink(), "No such file"),
    "a folder as a file": (lambda entry: ((entry / "kernels.so").unlink(), (entry / "kernels.so").mkdir()), "not a plain file"),
    "a file as a folder": (lambda entry: (shutil.rmtree(entry), entry.write_text("?")), "not a plain folder"),
    "a link to nowhere": (lambda entry: (shutil.rmtree(entry), entry.symlink_to("/nowhere")), "not a plain folder"),
    "a library that others may write": (lambda entry: (entry / "kernels.so").chmod(0o666), "may be written by others"),
    "a folder that others may write": (lambda entry: entry.chmod(0o777), "may be written by others"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_listed_verified_and_removed(cache: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    do, said = DAMAGES[name]
    pycompiler.compile(lambda x: x.sin() + 1)(torch.ones(3))
    (entry,) = cache.iterdir()
    do(entry)
    assert main(["cache", "ls"]) == 0
    assert f"{entry.name[:12]} " in capsys.readouterr().out
    assert main(["cache", "verify"]) == 1
    assert said in capsys.readouterr().out
    assert main(["cache", "rm", entry.name[:12]]) == 0
    assert not any(cache.iterdir())


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_built_again_and_said_once(cache: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    pycompiler.compile(lambda x: x.sin() + 1)(torch.ones(3))
    (entry,) = cache.iterdir()
    DAMAGES[name][0](entry)
    assert pycompiler.compile(lambda x: x.sin() + 1)(torch.zeros(3)).tolist() == [1, 1, 1]
    assert sum("kernel cache entry" in r.getMessage() for r in caplog.records) == 1, caplog.text
    assert main(["cache", "verify"]) == 0


def test_no_cache_folder(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.chmod(0o777)
    assert main(["cache", "ls"]) == 2
    assert "may be written by others" in capsys.readouterr().out
