"""Shared set-up: the examples' models are importable as `models`, threads are few, GPU tests need a GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PYCOMPILER_VERIFY_IR", "1")  # read at import; processes that tests start inherit it

import numpy
import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import backends
from pycompiler.ir import phases
from pycompiler.ir.guards import GLOBAL_STATE_FIELDS, global_state
from pycompiler.pipeline import call_backend
from pycompiler.torch_compat.autocast_regions import autocast_nesting
from tests import proof, tiers
from tests.harness.built_plans import BuiltPlans
from tests.processes import Processes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
torch.set_num_threads(1)
torch.manual_seed(0)  # for numbers that modules of tests draw at import
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
pycompiler.config.raise_internal_errors = True  # tests expose bugs; for users the frame runs eagerly


def pytest_configure(config: pytest.Config) -> None:
    proof.configure(config)
    tiers.configure(config)


def pytest_addoption(parser: pytest.Parser) -> None:
    proof.addoption(parser)
    tiers.addoption(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from proof.call(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    made = yield
    proof.report(item, made)
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.modify(config, items)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Imported modules are not searched by the garbage collections of tests: a collection takes 20 milliseconds in place of 500."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test draws the same numbers in each run, alone or after others."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


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
def plans(monkeypatch: pytest.MonkeyPatch) -> BuiltPlans:
    """The plans that the test builds.  Equal graphs of other tests, which share their plans, are forgotten."""
    pycompiler.reset()
    made = BuiltPlans()
    monkeypatch.setattr(phases, "observers", [*phases.observers, made])
    return made


@pytest.fixture
def graphs_may_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fullgraph=True` requires one graph, whether it is compiled or runs as captured."""
    monkeypatch.setattr(call_backend, "FULLGRAPH", "one graph")


@pytest.fixture(scope="module", autouse=True)
def _frames_are_evaluated_by_python() -> Iterator[None]:
    """Quirk of torch.compile: after a backend raised, its frame evaluation stays installed; callers then hold their
    arguments longer. The frame hook of pycompiler must not stay."""
    yield
    interpreter = _python.PyInterpreterState_Get()
    left = _python._PyInterpreterState_GetEvalFrameFunc(interpreter)
    if left != _DEFAULT:
        assert "torch" in _library_of(left), _library_of(left)
        _python._PyInterpreterState_SetEvalFrameFunc(interpreter, _DEFAULT)


@pytest.fixture(scope="module", autouse=True)
def _modules_as_torch_makes_them() -> Iterator[None]:
    """torch.compile, used for comparison, leaves its own `__init__` in `nn.Module`, and distributions without checks
    of their arguments; the next file must see torch's originals."""
    checks = torch.distributions.Distribution._validate_args
    before = {name: nn.Module.__dict__.get(name) for name in ("__init__", "__setstate__")}
    yield
    for name, method in before.items():
        if nn.Module.__dict__.get(name) is not method:
            setattr(nn.Module, name, method)
    torch.distributions.Distribution.set_default_validate_args(checks)


@pytest.fixture(scope="module", autouse=True)
def _interrupts_as_they_were() -> Iterator[None]:
    """A handler left by a test would be called by the tests of interrupts, depending on the distribution of files."""
    before = signal.getsignal(signal.SIGINT)
    yield
    left = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert left is before, left


@pytest.fixture(scope="module", autouse=True)
def _torch_in_the_state_that_it_was() -> Iterator[None]:
    """Graphs are compiled for a global state of torch: a change left by a test would affect calls in the next file."""
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
def registry() -> Iterator[None]:
    """The registered backends and the default backend are restored afterwards."""
    tables: list[dict[str, Any]] = [backends.REGISTRY, backends.TAGS]  # type: ignore[list-item]
    saved = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, saved, strict=True):
        table.clear()
        table.update(rows)
    pycompiler.set_default_backend("native")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Start without compiled code, and remove it afterwards."""
    torch.set_num_threads(1)
    pycompiler.reset()
    yield
    pycompiler.reset()


@pytest.fixture
def warnings_of_graphs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level("WARNING"):
        yield caplog
