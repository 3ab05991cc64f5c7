"""Shared set-up: the examples' models are importable as `models`, threads are few, GPU tests need a GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PYCOMPILER_VERIFY_IR", "1")  # read at import; processes that tests start have it as well

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler.ir.autocast import autocast_nesting
from pycompiler.ir.guards import GLOBAL_STATE_FIELDS, global_state
from pycompiler.pipeline import call_backend
from tests import proof
from tests.processes import Processes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
pycompiler.config.raise_internal_errors = True  # tests show bugs; for users the frame runs eagerly


pytest_addoption = proof.addoption
pytest_configure = proof.configure


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from proof.call(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    made = yield
    proof.report(item, made)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


_python = ctypes.pythonapi
_python.PyInterpreterState_Get.restype = ctypes.c_void_p
_python._PyInterpreterState_GetEvalFrameFunc.argtypes = [ctypes.c_void_p]
_python._PyInterpreterState_GetEvalFrameFunc.restype = ctypes.c_void_p
_python._PyInterpreterState_SetEvalFrameFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_DEFAULT = ctypes.cast(_python._PyEval_EvalFrameDefault, ctypes.c_void_p).value


def _library_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[-1]
    return "nowhere"


@pytest.fixture
def graphs_may_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fullgraph=True` asks for one graph, whether it is compiled or runs as it was captured."""
    monkeypatch.setattr(call_backend, "FULLGRAPH", "one graph")


@pytest.fixture(scope="module", autouse=True)
def _frames_are_evaluated_by_python() -> Iterator[None]:
    """torch.compile leaves its frame evaluation behind where a backend raised; callers then keep their arguments for longer.
    Ours may not stay."""
    yield
    interpreter = _python.PyInterpreterState_Get()
    left = _python._PyInterpreterState_GetEvalFrameFunc(interpreter)
    if left != _DEFAULT:
        assert "torch" in _library_of(left), _library_of(left)
        _python._PyInterpreterState_SetEvalFrameFunc(interpreter, _DEFAULT)


@pytest.fixture(scope="module", autouse=True)
def _modules_as_torch_makes_them() -> Iterator[None]:
    """torch.compile, the peer of some tests, leaves its own `__init__` in `nn.Module`, and distributions that no longer check
    their arguments; the next file is to see torch's."""
    checks = torch.distributions.Distribution._validate_args
    before = {name: nn.Module.__dict__.get(name) for name in ("__init__", "__setstate__")}
    yield
    for name, method in before.items():
        if nn.Module.__dict__.get(name) is not method:
            setattr(nn.Module, name, method)
    torch.distributions.Distribution.set_default_validate_args(checks)


@pytest.fixture(scope="module", autouse=True)
def _interrupts_as_they_were() -> Iterator[None]:
    """A handler that a test leaves behind is called by the tests of interrupts, which run after it or not, as files are dealt out."""
    before = signal.getsignal(signal.SIGINT)
    yield
    left = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert left is before, left


@pytest.fixture(scope="module", autouse=True)
def _torch_in_the_state_that_it_was() -> Iterator[None]:
    """Graphs are made for a state of torch: what a test leaves behind changes what the next file's calls find."""
    before, regions = global_state(), autocast_nesting()
    yield
    now = global_state()
    assert autocast_nesting() == regions, "a region of autocast was entered and not left"
    changed = [f"{name}: {b}, now {n}" for name, b, n in zip(GLOBAL_STATE_FIELDS, before, now, strict=True) if b != n]
    assert not changed, changed


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """Two processes of a group (gloo)."""
    made = Processes(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def three() -> Iterator[Processes]:
    """Three processes of a group (gloo)."""
    made = Processes(3)
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing was compiled before, and nothing stays."""
    torch.set_num_threads(1)
    pycompiler.reset()
    yield
    pycompiler.reset()


@pytest.fixture
def warnings_of_graphs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level("WARNING"):
        yield caplog
