"""Names of compiles in logs, events and debug folders: `[frame/entry]` and a readable name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import pycompiler
from pycompiler import config, graphs, logs
from pycompiler.debug import number_format, observer_switches, trace
from pycompiler.debug.document import Document
from pycompiler.errors import InternalError
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
    told = re.findall(r"^. \S+ pycompiler\.\S+\] (?:\[(\d+)/(\d+)(?:/\S+)?\] (\S+): )?", text, re.M)
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
    assert all(re.fullmatch(r"\[\d+/\d+\]", e["id"]) for kind in ("frame", "recompile") for e in of[kind])
    assert all(re.fullmatch(r"\[\d+/\d+/\w+\]", e["id"]) for e in of["graph"])
    [names] = tmp_path.glob("run_*/torchinductor/names.txt")
    rows = [line.split("\t") for line in names.read_text().splitlines()]
    assert [title.partition("] ")[2] for _, title, _ in rows][:4] == [n for n in NAMES if "." in n]
    assert all((names.parent / folder).is_dir() for folder, *_ in rows)
    assert rows[0][2] == f"Net.forward (test_compile_names.py:{Net.forward.__code__.co_firstlineno})"


def test_a_thread_that_compiles_nothing_has_no_title() -> None:
    assert compile_names.current() is None and compile_names.log_prefix() == ""
    with compile_names.named_graph("forward"):
        assert compile_names.current() is None


def step(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x.sin() * n
    print("a break")
    return (y @ y.t()).relu()


def failing(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def refuse(*_: Any) -> Any:
    raise KeyError("no code generator")


TITLE = re.compile(r"\[(\d+/\d+(?:/[\w.]+)?)\] (\S+#\d+(?:\.\w+)*)")


def test_one_name_in_logs_events_ranges_folders_pages_and_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with a graph break, a recompile and a backward: the same ids and names in each place."""
    monkeypatch.setattr(observer_switches, "_directory", None)  # it keeps the folder of an earlier test
    logs.set_logs("+dynamo,+aot,+inductor,recompiles")
    knobs = {"trace.enabled": True, "trace_dir": str(tmp_path / "traces"), "debug_dir_root": str(tmp_path)}
    try:
        with config.patch(knobs), profile(activities=[ProfilerActivity.CPU]) as profiled:
            compiled = pycompiler.compile(step, dynamic=False)
            for n in (2, 3):
                compiled(torch.ones(n, 2, requires_grad=True), n).sum().backward()
            monkeypatch.setitem(graphs.TARGETS, "cpu", refuse)
            with config.patch(raise_internal_errors=True), pytest.raises(InternalError) as error:
                pycompiler.compile(failing)(torch.ones(3))
    finally:
        logs.reset_logs()
    [file] = (tmp_path / "traces").glob("*.jsonl")
    [names] = tmp_path.glob("run_*/torchinductor/names.txt")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert {e["event"] for e in events} >= {"frame", "graph", "recompile"}
    of_events = {(e["id"][1:-1], e["title"]) for e in events if e.get("id")}
    of_graphs = {(e["id"][1:-1], e["title"]) for e in events if e["event"] == "graph"}
    told = {title for _, title in of_events}
    for title in ("step#0", "step#1", f"step@{step.__code__.co_firstlineno + 2}#0"):
        assert {title, f"{title}.forward", f"{title}.backward"} <= told
    assert len({id for id, _ in of_graphs}) == len(of_graphs) == len({title for _, title in of_graphs})
    assert set(TITLE.findall(capsys.readouterr().err)) == of_events
    of_ranges = [e.name for e in profiled.events() if e.name.startswith("pycompiler: ")]
    assert set(TITLE.findall("\n".join(of_ranges))) == of_events
    run = set(TITLE.findall("\n".join(name for name in of_ranges if name.startswith("pycompiler: graph "))))
    assert run == {row for row in of_graphs if not row[1].startswith("failing")}
    assert set(TITLE.findall(names.read_text())) == of_graphs
    for folder, title, place in (line.split("\t") for line in names.read_text().splitlines()):
        code = (names.parent / folder / "fx_graph_readable.py").read_text()
        assert code.startswith(f"# {title}, {place}\n")
    document = Document.of(trace.read(tmp_path / "traces"))
    assert set(TITLE.findall("\n".join(map(number_format.name, document.graphs)))) == of_graphs
    [at] = TITLE.findall(str(error.value))
    assert at in of_graphs and at[1] == "failing#0.inference"


def test_errors_of_the_user_and_of_a_backward_have_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their messages stay; the traceback prints the name of the compile below them."""
    with pytest.raises(pycompiler.exc.Unsupported) as unsupported:
        pycompiler.compile(breaks, fullgraph=True)(torch.ones(3))
    assert re.fullmatch(r"pycompiler: in the compile \[\d+/0\] breaks#0", *unsupported.value.__notes__)
    made = pycompiler.compile(failing)(torch.ones(3, requires_grad=True))
    monkeypatch.setitem(graphs.TARGETS, "cpu", refuse)
    with config.patch(raise_internal_errors=True), pytest.raises(KeyError) as key:
        made.sum().backward()
    assert re.fullmatch(r"pycompiler: in the compile \[\d+/0/backward\] failing#0.backward", *key.value.__notes__)


def test_graphs_of_one_compile_have_names_of_their_own() -> None:
    known = compile_names.CompileName(2, 1, "step", step.__code__)
    found = []
    with compile_names.named_compile(known):
        for kind in ("forward", "forward"):
            with compile_names.named_model(), compile_names.named_graph(kind):
                found.append(str(compile_names.current()))
    assert found == ["[2/1/forward] step#1.forward", "[2/1/forward.1] step#1.forward.1"]
