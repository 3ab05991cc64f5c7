"""torch's names on our artefacts: `aot_compile`, `load_compiled_function`, `precompile`, cache artifacts."""

from __future__ import annotations

import io
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pycompiler
from pycompiler import precompile
from pycompiler.artefacts import cache_bundle
from pycompiler.exc import ArgumentError, ArtefactError, RecompileError, Unsupported
from pycompiler.runtime import build, disk_cache
from tests.children import python

ROOT = Path(__file__).resolve().parents[2]
CALLS: list[int] = []


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, *more: Tensor, scale: float = 2.0, **named: Tensor) -> Tensor:
        out: Tensor = self.layer(x) * scale
        return out + sum(more) + sum(named.values())


def step(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x.relu() * 2 if y is None else x * y


@pycompiler.compile(fullgraph=True)
def decorated(x: Tensor) -> Tensor:
    return x + 1


def predict(model: nn.Module, x: Tensor) -> Tensor:
    CALLS.append(1)
    return model(x).softmax(-1)


def hits(compiled: Any) -> int:
    found = pycompiler.counters(compiled)
    assert (found["compiles"], found["eager_calls"]) == (0, 0)
    return found["hits"]


# aot_compile ----------------------------------------------------------------------------------------------------------
def test_the_call_of_the_example_does_not_take_place() -> None:
    model = nn.BatchNorm1d(4)
    made = pycompiler.compile(model.forward, fullgraph=True).aot_compile(((torch.randn(3, 4),), {}))
    assert model.num_batches_tracked == 0
    x = torch.randn(3, 4)
    expected = nn.BatchNorm1d(4)(x)
    torch.testing.assert_close(made(model, x), expected)
    assert model.num_batches_tracked == 1 and hits(made) == 1


@pytest.mark.parametrize("which", ["method", "forward of the compiled module"])
def test_methods_take_their_instance(which: str, tmp_path: Path) -> None:
    model, x, y = Model(), torch.ones(3, 4), torch.ones(3, 2)
    compiled = pycompiler.compile(model.forward if which == "method" else model, fullgraph=True)
    method = compiled if which == "method" else compiled.forward
    made = method.aot_compile(((x, y), {"scale": 3.0, "other": y}))
    made.save_compiled_function(tmp_path / "a")
    with open(tmp_path / "a", "rb") as file:
        loaded = pycompiler.load_compiled_function(file)
    for compiled in (made, loaded):
        assert torch.equal(compiled(model, x, y, scale=3.0, other=y), model(x, y, scale=3.0, other=y))
        assert hits(compiled) == 1
        with pytest.raises(RecompileError, match=r"seen sizes \(2, 4\), expected \(3, 4\)"):
            compiled(model, torch.ones(2, 4), y, scale=3.0, other=y)


def test_gradients_of_a_loaded_function(tmp_path: Path) -> None:
    model, x = Model(), torch.ones(3, 4)
    pycompiler.compile(model.forward, fullgraph=True).aot_compile(((x,), {})).save_compiled_function(tmp_path / "a")
    loaded = pycompiler.load_compiled_function(io.BytesIO((tmp_path / "a").read_bytes()))
    found = torch.autograd.grad(loaded(model, x).sum(), model.layer.weight)
    assert torch.equal(*found, *torch.autograd.grad(model(x).sum(), model.layer.weight))
    assert hits(loaded) == 1


def test_the_compiled_function_keeps_its_own_entries() -> None:
    compiled = pycompiler.compile(step, fullgraph=True, background=True)
    made = compiled.aot_compile(((torch.ones(3),), {}))
    assert compiled.entries == [] and len(made.entries) == 1
    assert torch.equal(made(torch.ones(3)), step(torch.ones(3))) and hits(made) == 1


def test_a_decorated_function_and_globals(tmp_path: Path) -> None:
    decorated.aot_compile(([torch.ones(3)], {})).save_compiled_function(tmp_path / "a")
    for scope in (None, {}, {"decorated": decorated}):
        with open(tmp_path / "a", "rb") as file:
            loaded = pycompiler.load_compiled_function(file, f_globals=scope, external_data={} if scope else None)
        assert torch.equal(loaded(torch.ones(3)), torch.full((3,), 2.0)) and hits(loaded) == 1
    with open(tmp_path / "a", "rb") as file, pytest.raises(ArtefactError, match="whose code differs from"):
        pycompiler.load_compiled_function(file, f_globals={"decorated": step})
    with (
        open(tmp_path / "a", "rb") as file,
        pytest.raises(ArtefactError, match="function decorated, which is 3 of type int"),
    ):
        pycompiler.load_compiled_function(file, f_globals={"decorated": 3})


@pytest.mark.captures_nothing("arguments that are refused before a capture")
@pytest.mark.parametrize(
    ("made", "inputs", "says"),
    [
        (lambda: pycompiler.compile(step), ((), {}), "aot_compile() of step needs one graph: compile it with fullgraph=True"),
        (lambda: closure(), ((torch.ones(1),), {}), "uses y of the function around it: pass them as arguments"),
        (lambda: pycompiler.compile(step, fullgraph=True), torch.ones(3), "takes (args, kwargs), a tuple and a dict, got tensor"),
        (lambda: pycompiler.compile(step, fullgraph=True), ((), {}), "missing a required argument: 'x'; the instance of a"),
        (lambda: pycompiler.compile(step, fullgraph=True), ((), {"z": 1}), "aot_compile() of step: "),
    ],
    ids=["breaks", "closure", "no pair", "missing", "unknown"],
)  # fmt: skip
def test_refused_examples(made: Callable[[], Any], inputs: Any, says: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        made().aot_compile(inputs)
    assert says in str(raised.value)


def closure() -> Any:
    y = torch.ones(1)
    return pycompiler.compile(lambda x: x + y, fullgraph=True)


def printing(x: Tensor) -> Tensor:
    print("a break")
    return x + 1


def test_a_break_is_an_error() -> None:
    with pytest.raises(Unsupported):
        pycompiler.compile(printing, fullgraph=True).aot_compile(((torch.ones(2),), {}))


def test_a_function_without_a_name_cannot_be_saved(tmp_path: Path) -> None:
    local = pycompiler.compile(lambda x: x + 1, fullgraph=True).aot_compile(((torch.ones(2),), {}))
    with pytest.raises(ArtefactError, match=r"no name leads another process to .*<lambda>: define it at the top"):
        local.save_compiled_function(tmp_path / "a")
    with pytest.raises(ArgumentError, match="takes no external data: pass such objects as arguments"):
        local.save_compiled_function(tmp_path / "a", external_data={"a": 1})
    pycompiler.save(local, tmp_path / "a")
    with (
        open(tmp_path / "a", "rb") as file,
        pytest.raises(ArtefactError, match=r"does not tell where .* use pycompiler.load"),
    ):
        pycompiler.load_compiled_function(file)


def test_refused_files(tmp_path: Path) -> None:
    decorated.aot_compile(((torch.ones(3),), {})).save_compiled_function(tmp_path / "a")
    os.chmod(tmp_path / "a", 0o666)
    with (
        open(tmp_path / "a", "rb") as file,
        pytest.raises(ArtefactError, match=r"written by others .*trust=True\) takes it"),
    ):
        pycompiler.load_compiled_function(file)
    with pytest.raises(ArtefactError, match="the file is not an artefact"):
        pycompiler.load_compiled_function(io.BytesIO(b"no"))
    model = pycompiler.compile(Model())
    model(torch.ones(1, 4))
    pycompiler.save(model, tmp_path / "model")
    with (
        open(tmp_path / "model", "rb") as file,
        pytest.raises(ArtefactError, match=r"Model: pycompiler.load\(path, module\)"),
    ):
        pycompiler.load_compiled_function(file)


def test_a_name_that_is_gone(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    made = pycompiler.compile(program("def f(x): return x + 1").f, fullgraph=True).aot_compile(((torch.ones(2),), {}))
    made.save_compiled_function(tmp_path / "a")
    program("def g(x): return x + 1")
    with (
        open(tmp_path / "a", "rb") as file,
        pytest.raises(ArtefactError, match="from f, which is not found: artefact_program has no f"),
    ):
        pycompiler.load_compiled_function(file)


# precompile -----------------------------------------------------------------------------------------------------------
def test_capture_and_load(tmp_path: Path) -> None:
    model, other = Model(), Model()
    artifact, cache = tmp_path / "a", tmp_path / "cache"
    with precompile.capture(step, artifact_path=artifact, cache_path=cache) as captured:
        assert torch.equal(captured(torch.ones(3)), step(torch.ones(3)))
        captured(torch.ones(3), torch.ones(3))
        captured.save()
        assert artifact.stat().st_size and not cache.stat().st_size
        captured(torch.ones(3, dtype=torch.float64))
    loaded = precompile.load(artifact, cache)
    for arguments in ((torch.ones(3),), (torch.ones(3), torch.ones(3)), (torch.ones(3).double(),)):
        assert torch.equal(loaded(*arguments), step(*arguments))
    assert hits(loaded) == 3
    with pytest.raises(RecompileError, match="no entry fits this call"):
        loaded(torch.ones(3, dtype=torch.int32))
    with precompile.capture(predict, artifact_path=artifact, backend="eager") as captured:
        captured(model, torch.ones(1, 4))
    loaded = precompile.load(artifact, fn=predict)
    assert torch.equal(loaded(other, torch.ones(1, 4)), predict(other, torch.ones(1, 4))) and hits(loaded) == 1


def test_blocks_of_a_capture(tmp_path: Path) -> None:
    captured = precompile.capture(step, artifact_path=tmp_path / "a", tracer=object())
    with pytest.raises(
        precompile.PrecompileError, match="is called inside its block, and this one is before its block"
    ):
        captured(torch.ones(1))
    with (
        pytest.raises(precompile.PrecompileError, match="nothing was captured: call the capture inside its block"),
        captured,
    ):
        pass
    with pytest.raises(precompile.PrecompileError, match="this one is after its block: call capture"):
        captured.__enter__()
    with pytest.raises(ZeroDivisionError), precompile.capture(step, artifact_path=tmp_path / "a") as captured:
        captured(torch.ones(1))
        raise ZeroDivisionError
    assert not (tmp_path / "a").exists()


@pytest.mark.captures_nothing("functions that are refused before a capture")
def test_captures_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="takes a function, got Model"):
        precompile.capture(Model(), artifact_path=tmp_path / "a")
    with pytest.raises(precompile.PrecompileError, match="no name leads another process to"):
        precompile.capture(lambda x: x, artifact_path=tmp_path / "a")


# another process ------------------------------------------------------------------------------------------------------
SAVER = """
import torch, pycompiler
from pathlib import Path
from tests.artefacts import test_aot_compile as t

x = torch.ones(5, 4)
t.pycompiler.compile(t.Model().forward, fullgraph=True).aot_compile(((x,), {})).save_compiled_function("aot")
with pycompiler.precompile.capture(t.predict, artifact_path="captured", cache_path="cache") as captured:
    captured(t.Model(), x)
pycompiler.compile(t.step)(torch.ones(7))
data, info = pycompiler.save_cache_artifacts()
Path("kernels").write_bytes(data)
Path("keys").write_text("\\n".join(info.artifacts["kernels"]))
"""
LOADER = """
import json, torch, pycompiler
from pathlib import Path
from pycompiler.runtime import build
from tests.artefacts import test_aot_compile as t

x, model = torch.ones(5, 4), t.Model()
with open("aot", "rb") as file:
    aot = pycompiler.load_compiled_function(file)
captured = pycompiler.precompile.load("captured", "cache")
assert torch.equal(aot(model, x), model(x)) and torch.equal(captured(model, x), t.predict(model, x))
assert t.hits(aot) == t.hits(captured) == 1
info = pycompiler.load_cache_artifacts(Path("kernels").read_bytes())
assert info.artifacts["kernels"] == Path("keys").read_text().split()
step = pycompiler.compile(t.step)
assert torch.equal(step(torch.ones(7)), t.step(torch.ones(7)))
assert build.counters == {"builds": 0, "hits": 1} and pycompiler.counters(step)["compiles"] == 1
"""


@pytest.mark.captures_nothing("the captures are in other processes")
def test_in_another_process(tmp_path: Path) -> None:
    for name, text in (("save", SAVER), ("load", LOADER)):
        (cache := tmp_path / f"{name}-cache").mkdir(mode=0o700)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYCOMPILER_CACHE_DIR": str(cache)}
        done = subprocess.run(
            [python(), "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr


# cache artifacts ------------------------------------------------------------------------------------------------------
@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Kernels of one compile; the cache is another folder afterwards."""
    monkeypatch.setattr(disk_cache, "fetched", {})
    assert pycompiler.save_cache_artifacts() is None
    pycompiler.compile(step)(torch.ones(3))
    made = pycompiler.save_cache_artifacts()
    assert made is not None and not made[1].empty() and len(made[1].artifacts["kernels"]) == 1
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(pycompiler.config, "cache_dir", str(tmp_path / "cache"))
    return made[0]


def test_kernels_of_a_bundle_are_found(bundle: bytes, tmp_path: Path) -> None:
    info = pycompiler.load_cache_artifacts(bundle)
    assert info is not None
    assert [p.name for p in (tmp_path / "cache").iterdir()] == info.artifacts["kernels"]
    before = dict(build.counters)
    assert torch.equal(pycompiler.compile(step)(torch.ones(3)), step(torch.ones(3)))
    assert (build.counters["builds"], build.counters["hits"]) == (before["builds"], before["hits"] + 1)
    assert pycompiler.load_cache_artifacts(bundle) == info  # the entries exist


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: b"", "do not begin as save_cache_artifacts writes them"),
        (lambda data: data[:-1], "do not have the recorded sha256"),
        (lambda data: signed({"../outside": (b"", b"")}), "an entry is malformed"),
        (lambda data: signed({"0" * 64: (b"", 3)}), "an entry is malformed"),
        (lambda data: signed([1]), "save them again"),
    ],
    ids=["empty", "cut", "key", "bytes", "list"],
)
def test_damaged_bundles(
    bundle: bytes, tmp_path: Path, damage: Callable[[bytes], bytes], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pycompiler.runtime"):
        assert pycompiler.load_cache_artifacts(damage(bundle)) is None
    assert says in caplog.text and list((tmp_path / "cache").iterdir()) == []


def signed(value: Any) -> bytes:
    import hashlib
    import marshal

    body = marshal.dumps(value)
    return cache_bundle.MAGIC + hashlib.sha256(body).digest() + body


def test_an_entry_that_is_gone_is_left_out(bundle: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "fetched", {"0" * 64: Path("/nowhere"), **disk_cache.fetched})
    made = pycompiler.save_cache_artifacts()
    assert made is not None and "0" * 64 not in made[1].artifacts["kernels"]
