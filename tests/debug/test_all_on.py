"""With every log, trace and file on, each stage of a compile does the same work once; only strings are produced in
addition."""

from __future__ import annotations

import gc
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config, logs
from pycompiler.debug import observer_switches
from pycompiler.debug.events import Recorder
from pycompiler.pipeline import compile_environment

PACKAGE = f"{Path(pycompiler.__file__).parent}/"
STAGES = ("capture", "pipeline", "autograd", "lowering", "scheduling", "codegen", "runtime", "graphs.py", "regions.py")
# Files and functions that only produce strings, or say why loops were not fused or guards failed.
TEXTS = re.compile(
    r"runtime/(output_code|plan_python)\.py |pipeline/reports\.py |scheduling/fuse\.py (_origins|_Fusion\.merge\.<locals>)"
    r"|capture/values/.*\.describe$|capture/values/tensor\.py TensorMethod\.python_type$"
    r"|capture/interpreter/evaluation\.py Frame\.(narrate|user_frame)$|capture/effects/side_effects\.py Effects\.__bool__$"
)

layer = torch.nn.Linear(4, 4)


def program(x: torch.Tensor, n: float) -> torch.Tensor:
    y = layer(x).sin() * n
    print("a break")
    if y.sum() > 0:
        return torch.nn.functional.softmax(y, -1).sum()
    return y.cos().sum()


def train() -> None:
    """Compile and call a program with breaks, a recompile, symbols and backwards."""
    compiled = pycompiler.compile(program)
    for size, n in ((2, 3), (3, 3), (5, 4.5)):
        compiled(torch.ones(size, 4), n).backward()


def calls() -> Counter[str]:
    """The number of calls of each function of the stages by `train`."""
    found = every_call()
    return Counter({name: n for name, n in found.items() if name.startswith(STAGES) and not TEXTS.match(name)})


def every_call() -> Counter[str]:
    """The number of calls of each function of the whole package."""
    found = Counter[str]()

    def look(frame: Any, event: str, arg: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            found[f"{path.removeprefix(PACKAGE)} {frame.f_code.co_qualname}"] += 1

    gc.collect()
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        train()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setattr(compile_environment, "traced_by_python", lambda: False)  # the compiler must be seen at work
    observer_switches._directory = None
    yield {
        "trace.enabled": True, "trace.graph_diagram": True, "trace.info_log": True, "debug_dir_root": str(tmp_path / "debug"),
        "trace_dir": str(tmp_path / "traces"), "replay_record_enabled": True,
    }  # fmt: skip
    observer_switches._directory = None
    logs.reset_logs()


def test_all_off_is_as_if_it_were_never_on(everything: dict[str, Any], tmp_path: Path) -> None:
    """The same functions run before and after a time with all switches on; of `debug/` only the check for a profiler
    runs."""
    with config.patch(share_regions=False, cache_dir=str(tmp_path)):
        train()
        train()
        before = every_call()
        handler = logging.NullHandler()
        logging.getLogger("pycompiler").addHandler(handler)
        try:
            logs.set_logs(f"+all,{','.join(logs.ARTIFACTS)}")
            with config.patch(everything), Recorder(lambda event: None, costs=True):
                assert sum(name.startswith("debug/") for name in every_call()) > 50
        finally:
            logging.getLogger("pycompiler").removeHandler(handler)
            logs.reset_logs()
        behind = every_call()
    looks = {"debug/ranges.py PhaseRanges.begin", "debug/ranges.py PhaseRanges.end"}  # at each phase, one word read
    assert {name for name in before if name.startswith("debug/")} == looks
    assert behind == before, {
        name: (before[name], behind[name]) for name in {*before, *behind} if before[name] != behind[name]
    }


def test_nothing_is_computed_twice(everything: dict[str, Any], tmp_path: Path) -> None:
    said: list[str] = []

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    with config.patch(share_regions=False, cache_dir=str(tmp_path)):
        train()  # builds the kernels
        train()
        off = calls()
        assert off == calls()
        handler = Hears()
        logging.getLogger("pycompiler").addHandler(handler)
        try:
            logs.set_logs(f"+all,{','.join(logs.ARTIFACTS)}")
            with config.patch(everything), Recorder(lambda event: None):
                on = calls()
        finally:
            logging.getLogger("pycompiler").removeHandler(handler)
    more = {name: (off[name], on[name]) for name in {*off, *on} if off[name] != on[name]}
    assert not more, "\n".join(f"{name} {n}" for name, n in more.items())
    assert sum(name.startswith("capture/") for name in off) > 100
    assert len(said) > 500
    assert len(list((tmp_path / "debug").rglob("output_code.py"))) >= 5
    assert list((tmp_path / "traces").glob("*.jsonl"))
