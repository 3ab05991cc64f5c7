"""The origin of an entry of the kernel cache: written with the entry, shown by `cache ls`, never needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.__main__ import main
from pycompiler.runtime import disk_cache, entry_origin
from pycompiler.runtime.entry_origin import Origin
from tests import children

PROGRAM = """\
import torch, pycompiler

@pycompiler.compile
def step(x):
    y = (x.sin() * 2).sum()
    print("a break")
    return y.exp() + 1

step(torch.ones(4, 4, requires_grad=True)).backward()
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    with config.patch(cache_dir=str(folder)):
        yield folder


def run(program: Path, cache: Path) -> None:
    environ = {**os.environ, "PYCOMPILER_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    subprocess.run([children.python(), str(program)], env=environ, check=True, timeout=300)


def test_the_program_and_line_of_each_entry(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second program uses the same entries; the first one made them."""
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    for program in (first, second):
        program.write_text(PROGRAM)
        run(program, cache)
    assert main(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    told = sorted(re.sub(r".*days ago  ", "", line) for line in lines)
    assert told == [
        f"[0/0/backward] step#0.backward at first.py:3, made by {first}",
        f"[0/0/forward] step#0.forward at first.py:3, made by {first}",
        f"[1/0/backward] step@6#0.backward at first.py:6, made by {first}",
        f"[1/0/forward] step@6#0.forward at first.py:6, made by {first}",
    ]
    assert main(["cache", "ls", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["origin"]["line"] for row in data} == {3, 6} and {row["origin"]["file"] for row in data} == {str(first)}
    assert all(row["kernels"] == 1 and len(row["key"]) == 64 for row in data)
    assert all((cache / row["key"] / entry_origin.FILE).stat().st_mode & 0o777 == 0o600 for row in data)


DAMAGES = {
    "none, as in earlier versions": lambda file: file.unlink(),
    "half of a file": lambda file: os.truncate(file, 20),
    "other JSON": lambda file: file.write_text("[1, 2]"),
    "another type": lambda file: file.write_text('{"program": 1, "compile": "", "file": "", "line": 0}'),
    "no text": lambda file: file.write_bytes(b"\xff\xfe"),
    "deep": lambda file: file.write_text("[" * 50_000),
    "a link": lambda file: (file.unlink(), file.symlink_to("/etc/hostname")),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_entry_without_an_origin_is_valid(name: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pycompiler.compile(lambda x: x.sin() + 1)(torch.ones(3))
    (entry,) = cache.iterdir()
    DAMAGES[name](entry / entry_origin.FILE)
    assert entry_origin.read(entry) is None
    assert disk_cache.verified(entry, entry.name)
    assert main(["cache", "ls"]) == 0 and "made by an unknown program" in capsys.readouterr().out
    assert main(["cache", "ls", "--json"]) == 0 and json.loads(capsys.readouterr().out)[0]["origin"] is None
    assert main(["cache", "verify"]) == 0
    assert main(["cache", "rm", "--all"]) == 0 and not any(cache.iterdir())


def test_an_origin_that_cannot_be_written_does_not_matter(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entry_origin, "program", lambda: os.stat("/nowhere") and "")
    assert pycompiler.compile(lambda x: x.sin() + 1)(torch.zeros(3)).tolist() == [1, 1, 1]
    (entry,) = cache.iterdir()
    assert entry_origin.read(entry) is None and not caplog.records


def test_an_entry_that_no_compile_built(tmp_path: Path) -> None:
    entry_origin.write(tmp_path)
    found = entry_origin.read(tmp_path)
    assert found == Origin(entry_origin.program())
    assert str(found) == f"made by {entry_origin.program()}"


def test_codes_of_terminals_are_not_printed() -> None:
    assert str(Origin("/tmp/\x1b[2J\n.py")) == "made by /tmp/?[2J?.py"
