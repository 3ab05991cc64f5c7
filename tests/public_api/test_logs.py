"""Logs: settings, levels, artefacts, Step lines."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pycompiler
from pycompiler import logs
from pycompiler.errors import UserError


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    logs.reset_logs()
    yield
    logs.reset_logs()


def test_levels_of_a_setting() -> None:
    logs.set_logs("+dynamo,aot,-inductor")
    assert logs.stage("dynamo").getEffectiveLevel() == logging.DEBUG
    assert logs.stage("aot").getEffectiveLevel() == logging.INFO
    assert logs.stage("inductor").getEffectiveLevel() == logging.ERROR
    assert logs.stage("runtime").getEffectiveLevel() == logging.WARNING


def test_all_is_weaker_than_a_named_stage() -> None:
    logs.set_logs("-dynamo,+all")
    assert logs.stage("capture").getEffectiveLevel() == logging.ERROR
    assert logs.stage("autograd").getEffectiveLevel() == logging.DEBUG


def test_artifact_is_off_until_named(capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.artifact("guards")
    log("hidden")
    logs.set_logs("guards")
    assert log.enabled
    log("shown %d", 7)
    assert capsys.readouterr().err.endswith("pycompiler.capture.__guards] shown 7\n")
    logs.set_logs("guards,-guards")
    assert not log.enabled


def test_keywords() -> None:
    logs.set_logs(dynamo=logging.DEBUG, graph_breaks=True)
    assert logs.stage("dynamo").level == logging.DEBUG
    assert logs.artifact("graph_breaks").enabled


def test_unknown_name_suggests() -> None:
    with pytest.raises(UserError, match=r"unknown log 'guard' \(did you mean 'guards'\?\)\. Known: "):
        logs.set_logs("guard")
    with pytest.raises(UserError, match="graph_breaks"):
        logs.artifact("nothing like it")


def test_environment_merges_and_leaves_torchs_names_alone() -> None:
    setting = logs.settings({"PYCOMPILER_LOGS": "-guards,fusion", "TORCH_LOGS": "+dynamo,guards,ddp_graphs"})
    assert set(setting.split(",")) == {"+dynamo", "-guards", "fusion"}


def test_step_lines_are_info(capsys: pytest.CaptureFixture[str]) -> None:
    logs.step(1, "capture starts for %s", "f")
    assert capsys.readouterr().err == ""
    logs.set_logs("dynamo")
    logs.step(1, "capture starts for %s", "f")
    assert "Step 1: capture starts for f" in capsys.readouterr().err


# written logs ----------------------------------------------------------------------------------------------------
STATE = {"calls": 0}


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def program(x: torch.Tensor) -> torch.Tensor:
    STATE["calls"] += 1
    y = helper(x) + 1
    print("a break")
    return (y * 2).softmax(0).sum() + torch.linalg.det(torch.eye(2))


def run_program() -> None:
    """Three compiles: forward and backward of both halves, again for another size."""
    compiled = pycompiler.compile(program, dynamic=False)
    compiled(torch.ones(3, requires_grad=True)).backward()
    compiled(torch.ones(4, requires_grad=True)).backward()


# Strings that the log of `run_program` contains, by artefact.
WRITTEN: dict[str, tuple[str, ...]] = {
    "bytecode": ("original code of program", "generated code of program", "LOAD_GLOBAL"),
    "graph": ("opcode ", "placeholder ", "call_method ", "sin "),
    "graph_code": ("def forward(self", ".sin()", "* 2"),
    "graph_sizes": ("l_x: (3,) torch.float32", "sin: (3,)", "sin: (4,)"),
    "guards": ("guards of program", "L['x']"),
    "recompiles": ("recompiling program", "(3,)", "(4,)", "way out"),
    "recompiles_verbose": ("recompiling program; all guards that fail:", "entry 0: "),
    "graph_breaks": ("graph break [", "print", "test_logs.py", "what to do"),
    "side_effects": ("side effects that follow the graph:", "STATE"),
    "trace_source": ("TRACE starts_line", "test_logs.py", "return x.sin()"),
    "trace_bytecode": ("TRACE LOAD_FAST x [", "TRACE RETURN_VALUE"),
    "trace_call": ("TRACE inlined call helper (",),
    "aot_graphs": (
        "forward graph of model ", "backward graph of model ", "aten.cos.default", "in helper, code: return x.sin()",
        "in gradient of helper, code: return x.sin()",
    ),
    "aot_joint_graph": ("aten.sin.default", "aten.cos.default", "tangent_0"),
    "ir_pre_fusion": ("program graph(", "loop b", "sin 0"),
    "ir_post_fusion": ("kernel graph_0(", "nest ["),
    "loop_bodies": ("kernel graph_0: loops", "load in0", "sin 0"),
    "schedule": ("0. kernel graph_0(", "extern aten."),
    "fusion": ("\nfused: [", "not fused, "),
    "output_code": ("def call(args):", "# The kernels"),
    "kernel_code": ('extern "C"', "#include"),
    "perf_hints": ("it runs as ATen's kernel", "linalg"),
    "cache": ("graph: hit /", "graph: miss, built /"),
    "cudagraphs": ("program#0.forward is not recorded: input ", "is a tensor of the CPU"),
}  # fmt: skip


def test_every_artefact_is_written_somewhere() -> None:
    assert WRITTEN.keys() == logs.ARTIFACTS.keys()


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The output of each artefact in one run; an artefact that is off prints nothing."""
    found: dict[str, list[str]] = {name: [] for name in logs.ARTIFACTS}

    class Collects(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found[record.artifact].append(record.getMessage())  # type: ignore[attr-defined]

    handler = Collects()
    root = logging.getLogger("pycompiler")
    root.addHandler(handler)
    try:
        logs.reset_logs()
        run_program()
        assert not any(found.values())
        logs.set_logs(",".join(logs.ARTIFACTS))
        for disk_cache in (True, False):
            with pycompiler.config.patch({"disk_cache": disk_cache, "triton.cudagraphs": True}):
                run_program()
    finally:
        logs.reset_logs()
        root.removeHandler(handler)
    return {name: "\n".join(texts) for name, texts in found.items()}


@pytest.mark.parametrize("name", WRITTEN)
def test_artefact(written: dict[str, str], name: str) -> None:
    for part in WRITTEN[name]:
        assert part in written[name], (part, written[name][:3000])


def test_listings_are_short(written: dict[str, str]) -> None:
    """The resume function after the call of `print` has the namespace of builtins as a constant."""
    assert "<dict of " in written["bytecode"]
    assert max(map(len, written["bytecode"].splitlines())) < 300


@pytest.mark.parametrize(
    ("setting", "shown", "hidden"),
    [
        ("+dynamo", {"trace_bytecode", "bytecode", "graph_code", "graph_breaks", "guards"}, {"aot_graphs", "schedule"}),
        ("dynamo", {"bytecode", "graph_code", "graph_breaks"}, {"trace_bytecode", "guards", "graph"}),
        ("dynamo,-bytecode", {"graph_code"}, {"bytecode"}),
        ("-dynamo", set(), {"graph_breaks"}),
        ("+inductor", {"schedule", "fusion", "output_code"}, {"bytecode", "loop_bodies"}),
        ("inductor", {"perf_hints"}, {"schedule", "output_code"}),
        ("+aot", {"aot_graphs", "aot_joint_graph"}, {"bytecode"}),
        ("+all,-native", {"trace_source", "aot_graphs"}, {"schedule"}),
    ],
)
def test_a_stage_shows_the_artefacts_of_its_level(setting: str, shown: set[str], hidden: set[str]) -> None:
    logs.set_logs(setting)
    on = {name for name in logs.ARTIFACTS if logs.artifact(name).enabled}
    assert shown <= on
    assert not hidden & on


def test_steps_begin_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("dynamo,inductor,-bytecode,-graph_code")
    pycompiler.compile(lambda x: x + 1)(torch.ones(3))
    lines = capsys.readouterr().err.splitlines()
    steps = [line[line.index("Step ") :] for line in lines if ": Step " in line]
    assert [re.sub(r" \(.*|\d+$", "", line) for line in steps] == [
        "Step 1: torchdynamo start tracing <lambda>",
        "Step 2: calling compiler function native",
        "Step 3: torchinductor compiling INFERENCES graph ",
        "Step 3: torchinductor done compiling INFERENCES graph ",
        "Step 2: done compiler function native",
        "Step 1: torchdynamo done tracing <lambda>",
    ]


def test_symbols_and_what_is_assumed_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("dynamic")

    def program(x: torch.Tensor, n: float) -> torch.Tensor:
        return x * n if x.shape[0] > 3 else x

    pycompiler.compile(program, dynamic=True)(torch.ones(5, 2), 2.5)
    said = [line.partition("program#0: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert "s0 is L['x'].size(0), now 5" in said
    assert "float0 is L['n'], now 2.5" in said
    line = program.__code__.co_firstlineno + 1
    assert f"assumed: s0 >= 4  # {__file__}:{line}" in said


def test_names_of_torchs_that_mean_nothing_here() -> None:
    assert not logs.UNSUPPORTED_LOGS.keys() & {*logs.STAGES, *logs.ARTIFACTS}
    with pytest.raises(UserError, match="no log 'compiled_autograd': backwards are compiled with their forwards"):
        logs.set_logs("compiled_autograd")
    assert logs.settings({"TORCH_LOGS": "compiled_autograd,guards"}) == "guards"  # torch's own
    program = "from pycompiler import logs"
    environment = {**os.environ, "TORCH_LOGS": "compiled_autograd,distributed,-post_grad_graphs"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=400)
    [line] = [line for line in done.stderr.splitlines() if "no log" in line]
    assert "no log 'compiled_autograd': backwards are compiled with their forwards" in line


def test_help_names_everything() -> None:
    with pytest.raises(UserError) as found:
        logs.set_logs("help")
    for name in (*logs.STAGES, *logs.ARTIFACTS, *logs.UNSUPPORTED_LOGS):
        assert name in str(found.value)


@pytest.mark.parametrize("name", ["aot", "inductor"])
def test_info_of_a_stage_is_not_empty(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs(name)
    pycompiler.compile(lambda x: x + 1)(torch.ones(3))
    said = capsys.readouterr().err
    assert f"pycompiler.{logs.STAGES[name].rpartition('.')[2]}] " in said


def test_knobs_that_set_logs(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_logs("cache")
    with pycompiler.config.patch(debug=True, log_level=logging.INFO):
        assert logs.artifact("output_code").enabled
        assert logs.artifact("graph_code").enabled
        assert logs.stage("dynamo").level == logging.INFO
        assert logs.artifact("cache").enabled
    assert [name for name in logs.ARTIFACTS if logs.artifact(name).enabled] == ["cache"]


def test_to_a_file(tmp_path: Path) -> None:
    handlers = list(logging.getLogger("pycompiler").handlers)
    logs.to_file(str(tmp_path / "log"))
    (added,) = set(logging.getLogger("pycompiler").handlers) - set(handlers)
    try:
        logs.set_logs("dynamo")
        logs.step(1, "capture starts for %s", "f")
    finally:
        logging.getLogger("pycompiler").removeHandler(added)
        added.close()
    assert "Step 1: capture starts for f" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("variable", ["PYCOMPILER_LOGS_OUT", "TORCH_LOGS_OUT"])
def test_to_a_file_that_the_environment_names(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger("pycompiler")
    monkeypatch.delenv("PYCOMPILER_LOGS_OUT", raising=False)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv("PYCOMPILER_LOGS", "recompiles")
    for path in (tmp_path / "log", tmp_path / "no" / "folder"):
        monkeypatch.setenv(variable, str(path))
        root.handlers.clear()
        logs._install()
        compiled = pycompiler.compile(lambda x, n: x + n)
        compiled(torch.ones(2), 1.0)
        compiled(torch.ones(2), 2.5)
        added = [h for h in root.handlers if isinstance(h, logging.FileHandler)]
        assert len(added) == (path.name == "log")
        for handler in added:
            handler.close()
    assert "no log in" in (said := capsys.readouterr().err) and said.count("recompiling test_to_a_file") == 2
    assert (tmp_path / "log").read_text().count("recompiling test_to_a_file") == 1


def test_listeners_hear_more_than_stderr_shows(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    handler = Hears()
    logs.listen(handler, "native", logging.DEBUG)
    logs.stage("native").debug("one")
    logs.set_logs("inductor")
    logs.stage("native").info("two")
    logs.stage("aot").info("three")
    logs.stop_listening(handler)
    logs.stage("native").debug("four")
    assert heard == ["one", "two"]
    said = capsys.readouterr().err
    assert "two" in said
    assert "one" not in said
    assert logs.stage("native").level == logging.INFO


# torch's own settings ----------------------------------------------------------------------------------------------
def torchs_settings(*statements: str) -> str:
    """The log of a program that executes these statements and compiles after each of them, divided by `<next>`."""
    lines = ["import logging, sys, torch"]
    for statement in statements:
        lines.append(statement)
        if "import pycompiler" not in statement and "import pycompiler" in "\n".join(lines):
            lines += ["print('<next>', file=sys.stderr)", "pycompiler.compile(lambda x: x + 1)(torch.ones(3))"]
    environment = {k: v for k, v in os.environ.items() if k not in ("TORCH_LOGS", "PYCOMPILER_LOGS")}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, env=environment, check=True
    )
    return done.stderr


def test_torchs_set_logs_turns_lines_on_and_off_again() -> None:
    _, shown, codes, off, again = torchs_settings(
        "import pycompiler",
        "torch._logging.set_logs(dynamo=logging.INFO)",
        "torch._logging.set_logs(graph_code=True, inductor=logging.ERROR)",
        "torch._logging.set_logs()",
        "torch._logging.set_logs(modules={'dynamo': logging.INFO}, recompiles=True)",
    ).split("<next>\n")
    assert "Step 1: torchdynamo start tracing" in shown and "__graph_code]" in shown
    assert "Step 1" not in codes and "__graph_code]" in codes
    assert off == ""
    assert "Step 1" in again


def test_torchs_set_logs_before_our_import() -> None:
    _, first, second = torchs_settings(
        "torch._logging.set_logs(all=logging.INFO)", "import pycompiler", "pass", "torch._logging.set_logs(guards=True)"
    ).split("<next>\n")
    assert "Step 1" in first and "Step 3" in first
    assert "Step 1" not in second and "__guards]" in second


def test_the_last_of_both_settings_holds() -> None:
    _, ours, same, torchs, kept = torchs_settings(
        "import pycompiler",
        "torch._logging.set_logs(dynamo=logging.INFO); pycompiler.logs.set_logs(guards=True)",
        "torch._logging.set_logs(dynamo=logging.INFO)",
        "pycompiler.logs.set_logs(); pycompiler.config.log_level = None; torch._logging.set_logs(guards=True)",
        "pycompiler.logs.set_logs(graph=True); torch._logging.set_logs(c10d=logging.INFO)",
    ).split("<next>\n")
    assert "Step 1" not in ours and "__guards]" in ours
    assert "Step 1" in same and "__guards]" not in same
    assert "__guards]" in torchs
    assert "__graph]" in kept  # a log of torch alone contains none of our lines


def test_settings_of_torchs_that_mean_nothing_here() -> None:
    said = torchs_settings("import pycompiler", "torch._logging.set_logs(post_grad_graphs=True)")
    assert "no log 'post_grad_graphs': no pass rewrites the graph after gradients" in said
