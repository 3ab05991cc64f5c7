"""Names of compiles in logs, events and debug folders: `[frame/entry]` and a readable name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config, logs
from pycompiler.ir import compile_names


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.t()).relu()


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("a break")
    return y.cos()


def run() -> None:
    net = pycompiler.compile(Net(), dynamic=False)
    for n in (2, 3):
        net(torch.ones(n, 4, requires_grad=True)).sum().backward()
    pycompiler.compile(breaks, backend="aot_eager")(torch.ones(3))


NAMES = ["Net#0", "Net#0.forward", "Net#0.backward", "Net#1", "Net#1.forward", "Net#1.backward", "breaks#0"]


def test_lines_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("dynamo,fusion,aot_graphs,recompiles")
    try:
        run()
    finally:
        logs.reset_logs()
    text = capsys.readouterr().err
    told = re.findall(r"^. \S+ pycompiler\.\S+\] (?:\[(\d+)/(\d+)\] (\S+): )?", text, re.M)
    assert all(name for *_, name in told), text
    assert list(dict.fromkeys(name for *_, name in told if not name.startswith("breaks"))) == NAMES[:-1]
    frames = {name.partition("#")[0]: frame for frame, _, name in told}
    assert len(set(frames.values())) == len(frames) == 3 and {"Net", "breaks"} < set(frames)
    assert "Step 1: torchdynamo start tracing forward (" in text and "start tracing _wrapped_call_impl" not in text
    assert all(entry == name.partition("#")[2].partition(".")[0] for _, entry, name in told)


def test_events_and_folders(tmp_path: Path) -> None:
    with (
        config.patch(trace_dir=str(tmp_path / "traces"), debug_dir_root=str(tmp_path)),
        config.patch({"trace.enabled": True}),
    ):
        run()
    [file] = (tmp_path / "traces").glob("*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    of: dict[str, list[Any]] = {}
    for event in events:
        of.setdefault(event["event"], []).append(event)
    assert [e["title"] for e in of["graph"]][:4] == [n for n in NAMES if "." in n]
    assert [e["title"] for e in of["recompile"]] == ["Net#1"] and of["recompile"][0]["function"] == "Net.forward"
    assert [(e["title"], e["function"]) for e in of["frame"]][:3] == [
        ("Net#0", "Net.forward"), ("Net#1", "Net.forward"), ("breaks#0", "breaks")
    ]  # fmt: skip
    assert all(
        re.fullmatch(r"\[\d+/\d+\]", e["id"]) for kind in ("frame", "graph", "phase", "recompile") for e in of[kind]
    )
    [names] = tmp_path.glob("run_*/torchinductor/names.txt")
    rows = [line.split("\t") for line in names.read_text().splitlines()]
    assert [title.partition("] ")[2] for _, title, _ in rows][:4] == [n for n in NAMES if "." in n]
    assert all((names.parent / folder).is_dir() for folder, *_ in rows)
    assert rows[0][2] == f"Net.forward (test_compile_names.py:{Net.forward.__code__.co_firstlineno})"


def test_a_thread_that_compiles_nothing_has_no_title() -> None:
    assert compile_names.current() is None and compile_names.log_prefix() == ""
    with compile_names.named_graph("forward"):
        assert compile_names.current() is None
