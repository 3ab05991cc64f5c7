"""Damaged, foreign or stale files are refused with a reason; values that guards read are compiled anew."""

from __future__ import annotations

import errno
import hashlib
import json
import marshal
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.artefacts import file
from pycompiler.exc import ArgumentError, ArtefactError

HEAD = len(file.MAGIC) + 32


def half(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).relu() * 0.5


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "half"
    compiled = pycompiler.compile(half)
    compiled(torch.ones(3))
    assert pycompiler.save(compiled, path).left_out == ()
    return path.read_bytes()


def test_the_good_one(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "half").write_bytes(good)
    loaded = pycompiler.load(tmp_path / "half", half)
    assert torch.equal(loaded(torch.ones(3)), half(torch.ones(3)))
    assert pycompiler.counters(loaded)["compiles"] == 0 and pycompiler.counters(loaded)["hits"] == 1


# damaged --------------------------------------------------------------------------------------------------------------
def flipped(place: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = int(place * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    return change


def cut(place: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(place * len(data))]


def signed(rest: bytes) -> bytes:
    return file.MAGIC + hashlib.sha256(rest).digest() + rest


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    rest = data[HEAD:]
    (length,) = struct.unpack_from("<Q", rest)
    return json.loads(rest[8 : 8 + length]), rest[8 + length :]


def joined(header: bytes, body: bytes) -> bytes:
    return signed(struct.pack("<Q", len(header)) + header + body)


def with_body(body: Any) -> Callable[[bytes], bytes]:
    return lambda data: joined(
        json.dumps(parts(data)[0]).encode(), body if isinstance(body, bytes) else marshal.dumps(body)
    )


def without(fact: str) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        header, body = parts(data)
        return joined(json.dumps({k: v for k, v in header.items() if k != fact}).encode(), body)

    return change


def with_header(text: bytes) -> Callable[[bytes], bytes]:
    return lambda data: joined(text, parts(data)[1])


def zipped(data: bytes) -> bytes:
    import io

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        z.writestr("artefact", data)
    return buffer.getvalue()


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "not an artefact"),
    "a text": (lambda data: b"hello\n", "not an artefact"),
    "a pickle": (lambda data: pickle.dumps(data), "not an artefact"),
    "a zip": (zipped, "not an artefact"),
    "a library": (lambda data: b"\x7fELF" + data, "not an artefact"),
    "magic of another version": (lambda data: data.replace(file.MAGIC, b"pycompiler artefacT\n", 1), "not an artefact"),
    "ends in the magic": (lambda data: data[:7], "not an artefact"),
    "ends after the magic": (lambda data: data[: len(file.MAGIC)], "ends after"),
    "ends in the digest": (lambda data: data[: len(file.MAGIC) + 9], "ends after"),
    "ends in the header": (lambda data: data[: HEAD + 40], "sha256"),
    "ends in the middle": (cut(0.5), "sha256"),
    "lacks a byte": (lambda data: data[:-1], "sha256"),
    "has a byte more": (lambda data: data + b"\0", "sha256"),
    "zeros at the end, as after a crash": (lambda data: data[:-500] + bytes(500), "sha256"),
    "digest of nothing": (lambda data: data[: len(file.MAGIC)] + bytes(32) + data[HEAD:], "sha256"),
    "twice": (lambda data: data + data, "sha256"),
    **{f"a bit at {p:.2f}": (flipped(p), "sha256") for p in (0.03, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)},
    "header is no JSON": (with_header(b"{]"), "damaged"),
    "header is no text": (with_header(b"\xff\xfe"), "damaged"),
    "header is a list": (with_header(b"[]"), "not a table"),
    "header is empty": (with_header(b"{}"), "written elsewhere"),
    "header nests deep": (with_header(b"[" * 100_000), "damaged"),
    "header's packages are a text": (with_header(b'{"packages": "torch"}'), "damaged"),
    "header without settings": (without("settings"), "has no settings"),
    "header too long": (lambda data: signed(struct.pack("<Q", 1 << 40) + data[HEAD + 8 :]), "damaged"),
    "body is empty": (with_body(b""), "damaged"),
    "body is a pickle": (with_body(pickle.dumps([1])), "damaged"),
    "body is short": (with_body((1, 2)), "damaged"),
    "body is a number": (with_body(5), "damaged"),
    "records of another kind": (with_body(([], [("unknown",)], None, [])), "damaged"),
    "records that refer ahead": (with_body(([], [("tuple", ((7,),))], (0,), [])), "damaged"),
    "a record that lacks a part": (with_body(([], [("guard", "id_is")], (0,), [])), "damaged"),
    "top is no callable": (with_body(([], [("tuple", ())], (0,), [])), "damaged"),
}


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.captures_nothing(
    "the file is refused before a call",
    "records of another kind",
    "records that refer ahead",
    "a record that lacks a part",
    "top is no callable",
)
def test_damaged(good: bytes, tmp_path: Path, how: str) -> None:
    change, reason = DAMAGED[how]
    path = tmp_path / "artefact"
    path.write_bytes(change(good))
    with pytest.raises(ArtefactError, match=reason):
        pycompiler.load(path, half)


# from elsewhere -------------------------------------------------------------------------------------------------------
ELSEWHERE: dict[str, tuple[str, Any]] = {
    "format": ("format", 0),
    "Python": ("python", "cpython 3.10.1"),
    "another Python": ("python", "pypy 3.11.7"),
    "bytecode": ("bytecode", "00000000"),
    "torch": ("torch", "1.0.0"),
    "pycompiler": ("pycompiler", "0.0.0"),
    "sources": ("sources", "0" * 64),
    "machine": ("machine", "riscv64"),
    "libc": ("libc", "glibc 9.99"),
    "a GPU": ("cuda", not torch.cuda.is_available()),
    "CPU": ("cpu", f"{file.cpu_identity()} avx1024"),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_elsewhere(good: bytes, tmp_path: Path, what: str) -> None:
    fact, value = ELSEWHERE[what]
    header, body = parts(good)
    assert fact in header
    path = tmp_path / "artefact"
    path.write_bytes(joined(json.dumps({**header, fact: value}).encode(), body))
    with pytest.raises(ArtefactError, match=f"written elsewhere(.|\n)*{fact}: "):
        pycompiler.load(path, half)


def test_a_smaller_cpu_wrote_it(good: bytes, tmp_path: Path) -> None:
    header, body = parts(good)
    fewer = " ".join(header["cpu"].split()[:-1])
    path = tmp_path / "artefact"
    path.write_bytes(joined(json.dumps({**header, "cpu": fewer}).encode(), body))
    assert torch.equal(pycompiler.load(path, half)(torch.ones(3)), half(torch.ones(3)))


def test_another_version_of_a_package(tmp_path: Path, program: Any) -> None:
    version = '__version__ = "1.0"\n'
    module = program(version + STALE["the function"][0])
    path = saved(module, tmp_path)
    module.__version__ = "1.1"
    with pytest.raises(ArtefactError, match="artefact_program: written with 1.0, this is 1.1"):
        pycompiler.load(path, module.run)


@pytest.mark.captures_nothing("the file is refused before a call")
def test_kernels_that_cannot_be_loaded(good: bytes, tmp_path: Path) -> None:
    header, body = parts(good)
    names, records, top, libraries = marshal.loads(body)
    assert len(libraries) == 1
    path = tmp_path / "artefact"
    path.write_bytes(with_body((names, records, top, [b"\x7fELF and then nothing"]))(good))
    with pytest.raises(ArtefactError, match="kernels of graph .* cannot be loaded"):
        pycompiler.load(path, half)


# owner of the file --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_others_may_write_it(good: bytes, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "artefact"
    path.write_bytes(good)
    path.chmod(mode)
    with pytest.raises(ArtefactError, match="may be written by others .*trust=True"):
        pycompiler.load(path, half)
    assert torch.equal(pycompiler.load(path, half, trust=True)(torch.ones(3)), half(torch.ones(3)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_of_another_user(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "artefact"
    path.write_bytes(good)
    os.chown(path, 54321, -1)
    with pytest.raises(ArtefactError, match="belongs to user 54321"):
        pycompiler.load(path, half)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="cannot be read: No such file"):
        pycompiler.load(tmp_path / "none", half)
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(ArtefactError, match="not a plain file"):
            pycompiler.load(path, half)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtefactError, match="not a plain file"):  # at once
        pycompiler.load(tmp_path / "pipe", half, trust=True)
    with pytest.raises(ArgumentError, match="function or nn.Module"):
        pycompiler.load(tmp_path / "none", 5)  # type: ignore[arg-type]


# writing --------------------------------------------------------------------------------------------------------------
def test_a_full_disk_leaves_what_was(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(half)
    compiled(torch.ones(3))
    path = tmp_path / "artefact"
    path.write_bytes(b"before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtefactError, match="cannot be written: No space left"):
        pycompiler.save(compiled, path)
    assert path.read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["artefact"]


def test_no_folder(tmp_path: Path) -> None:
    compiled = pycompiler.compile(half)
    compiled(torch.ones(3))
    with pytest.raises(ArtefactError, match="cannot be written: No such file"):
        pycompiler.save(compiled, tmp_path / "none" / "artefact")


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="call the compiled callable first"):
        pycompiler.save(pycompiler.compile(half), tmp_path / "artefact")
    with pytest.raises(ArtefactError, match="takes a result of pycompiler.compile"):
        pycompiler.save(half, tmp_path / "artefact")
    users = pycompiler.compile(half, backend=lambda gm, inputs: gm.forward)
    users(torch.ones(3))
    with pytest.raises(ArtefactError, match="backend '<lambda>'"):
        pycompiler.save(users, tmp_path / "artefact")
    assert not list(tmp_path.iterdir())


# stale ----------------------------------------------------------------------------------------------------------------
START = "import enum, functools, torch\nfrom typing import NamedTuple\nfrom torch import Tensor, nn\n"
HELPER = "def helper(x):\n    return x + 1\n"
MODEL = """class Part(nn.Module):
    def forward(self, x):
        return x.abs()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x):
        return self.part(x) * 2
run = Model()
"""
TUPLE = "class P(NamedTuple):\n    a: int\n    b: int\np = P(2, 3)\ndef run(x):\n    return x * p.a\n"
ENUM = "class E(int, enum.Enum):\n    A = 1\n    B = 2\nT = E.B\ndef run(x):\n    return x * E.A if T is E.B else x\n"
BASES = """class Base:
    k = 2
class Other:
    pass
class C(Base):
    def __init__(self):
        self.n = 3
c = C()
def run(x):
    return x * c.n * (5 if isinstance(c, Base) else 7)
"""
WRAPS = """def plus(fn):
    @functools.wraps(fn)
    def inner(x):
        return fn(x) + 1
    return inner
@plus
def helper(x):
    return x * 2
def run(x):
    return helper(x)
"""
BREAKS = """import pycompiler
def tail(x):
    return x * 3
def run(x):
    y = x + 1
    pycompiler.graph_break()
    return tail(y)
"""

# The saved program, the part to replace, its replacement, and a name in the refusal.
STALE: dict[str, tuple[str, str, str, str]] = {
    "the function": ("def run(x):\n    return x + 1\n", "x + 1", "x + 2", "run"),
    "a constant in it": ("def run(x):\n    return x * 0.5\n", "0.5", "0.25", "run"),
    "its lines": ("def run(x):\n    return x + 1\n", "def run", "\n\ndef run", "run"),
    "a helper": (HELPER + "def run(x):\n    return helper(x)\n", "x + 1", "x - 1", "helper"),
    "a helper of a helper": (
        HELPER + "def middle(x):\n    return helper(x)\ndef run(x):\n    return middle(x)\n", "x + 1", "x - 1", "helper",
    ),
    "a helper is gone": (HELPER + "def run(x):\n    return helper(x)\n", HELPER, "", "helper"),
    "a helper's inner function": (
        "def helper(x):\n    def inner(y):\n        return y + 1\n    return inner(x)\ndef run(x):\n    return helper(x)\n",
        "y + 1", "y * 5", "helper",
    ),
    "a lambda": ("ACT = lambda x: x.abs()\ndef run(x):\n    return ACT(x)\n", "x.abs()", "x.neg()", "ACT"),
    "a decorated function": (WRAPS, "x * 2", "x * 4", "changed"),
    "a decorator": (WRAPS, "fn(x) + 1", "fn(x) - 1", "changed"),
    "forward of a part": (MODEL, "x.abs()", "x.neg()", "Part"),
    "forward of the module": (MODEL, "* 2", "* 3", "Model"),
    "the class of a part": (MODEL, "class Part(nn.Module)", "class Part(nn.Identity)", "Part"),
    "fields in another order": (TUPLE, "    a: int\n    b: int\n", "    b: int\n    a: int\n", "P"),
    "a member's value": (ENUM, "A = 1", "A = 7", "E"),
    "a member is gone": (ENUM, "    B = 2\nT = E.B", "    C = 2\nT = E.C", "E"),
    "the bases of a class": (BASES, "class C(Base)", "class C(Other)", "C"),
    "a class is gone": (
        BASES, "class C(Base):\n    def __init__(self):\n        self.n = 3\nc = C()",
        "class D(Base):\n    def __init__(self):\n        self.n = 3\nc = D()", "C",
    ),
    "a function after a break": (BREAKS, "x * 3", "x * 4", "tail"),
    "code after a break": (BREAKS, "return tail(y)", "return tail(y) + 1", "run"),
    "an operator": (
        "lib = torch.library.Library('artefact_test', 'FRAGMENT')\nlib.define('twice(Tensor x) -> Tensor')\n"
        "lib.impl('twice', lambda x: x * 2, 'CompositeExplicitAutograd')\n"
        "lib.impl('twice', lambda x: torch.empty_like(x), 'Meta')\n"
        "def run(x):\n    return torch.ops.artefact_test.twice(x) + 1\n",
        "twice(Tensor x)", "twice(Tensor x, int n=1)", "twice",
    ),
}  # fmt: skip


def saved(module: ModuleType, folder: Path) -> Path:
    compiled = pycompiler.compile(module.run)
    with torch.no_grad():
        compiled(torch.ones(3))
    path = folder / "artefact"
    assert pycompiler.save(compiled, path).left_out == ()
    return path


def unload(module: ModuleType) -> None:
    if hasattr(module, "lib"):
        module.lib._destroy()


@pytest.mark.parametrize("what", STALE)
def test_stale(tmp_path: Path, program: Any, what: str) -> None:
    text, old, new, named = STALE[what]
    assert text.count(old) == 1
    module = program(START + text)
    path = saved(module, tmp_path)
    unload(module)
    same = program(START + text)  # the same sources, other objects
    with torch.no_grad():
        loaded = pycompiler.load(path, same.run)
        assert torch.equal(loaded(torch.ones(3)), same.run(torch.ones(3)))
        assert pycompiler.counters(loaded)["compiles"] == 0
    unload(same)
    changed = program(START + text.replace(old, new))
    with pytest.raises(ArtefactError, match=named):
        pycompiler.load(path, changed.run)


GUARDED: dict[str, tuple[str, str, str]] = {
    "a global": ("K = 2\ndef run(x):\n    return x * K\n", "K = 2", "K = 3"),
    "a default": ("def helper(x, k=2):\n    return x * k\ndef run(x):\n    return helper(x)\n", "k=2", "k=3"),
    "an attribute of an object": (BASES.replace("self.n = 3", "self.n = [3][0]"), "[3][0]", "[4][0]"),
    "an attribute of a class": ("class A:\n    k = 2\ndef run(x):\n    return x * A.k\n", "k = 2", "k = 3"),
    "a function under another name": (
        "def f(x):\n    return x + 1\ndef g(x):\n    return x + 2\nh = f\ndef run(x):\n    return h(x)\n", "h = f", "h = g",
    ),
    "the layers of a module": (
        "run = nn.Sequential(nn.ReLU(), nn.Identity(), nn.Sigmoid())\n", "nn.Identity(), nn.Sigmoid()",
        "nn.Sigmoid(), nn.Sigmoid()",
    ),
    "a global table": ("T = {'a': 2}\ndef run(x):\n    return x * T['a']\n", "'a': 2", "'a': 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", GUARDED)
def test_what_guards_look_at_is_compiled_anew(tmp_path: Path, program: Any, what: str) -> None:
    text, old, new = GUARDED[what]
    path = saved(program(START + text), tmp_path)
    changed = program(START + text.replace(old, new))
    try:
        loaded = pycompiler.load(path, changed.run)
    except ArtefactError:
        return  # a refusal is allowed, too
    with torch.no_grad():
        assert torch.equal(loaded(torch.ones(3)), changed.run(torch.ones(3)))
    assert pycompiler.counters(loaded)["compiles"] == 1


ABSTRACT = """import collections.abc
class C:
    pass
c = C()
def run(x):
    return x * 2 if isinstance(c, collections.abc.Sized) else x * 3
class D(C):
    pass
"""


LIKE = """import abc
class Like(abc.ABC):
    pass
class C:
    pass
Like.register(C)
c = C()
def run(x):
    return x * 2 if isinstance(c, Like) else x * 3
"""


def test_a_class_that_is_not_registered_any_more(tmp_path: Path, program: Any) -> None:
    path = saved(program(START + LIKE), tmp_path)
    assert pycompiler.counters(pycompiler.load(path, program(START + LIKE).run))["compiles"] == 0
    other = program(START + LIKE.replace("Like.register(C)", "_ = Like.register"))
    with pytest.raises(ArtefactError, match="C is no Like here"):
        pycompiler.load(path, other.run)


def test_a_class_that_was_registered_since(tmp_path: Path, program: Any) -> None:
    path = saved(program(START + ABSTRACT), tmp_path)
    other = program(START + ABSTRACT)
    other.collections.abc.Sized.register(other.C)
    with pytest.raises(ArtefactError, match="C is a Sized here"):
        pycompiler.load(path, other.run)


@pytest.mark.captures_nothing("the file is refused before a call")
def test_another_function(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "artefact").write_bytes(good)
    with pytest.raises(ArtefactError, match="was saved from half, whose code differs"):
        pycompiler.load(tmp_path / "artefact", lambda x: x)
    with pytest.raises(ArtefactError, match="was saved from half, not from torch.nn.modules.activation.ReLU"):
        pycompiler.load(tmp_path / "artefact", torch.nn.ReLU())
