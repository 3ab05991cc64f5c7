"""The debug directory: its files, each by its switch; programs in it run alone and give the same numbers."""

from __future__ import annotations

import logging
import os
import pstats
import re
import runpy
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import pycompiler
from pycompiler import config
from pycompiler.debug import directory, observer_switches, repro
from pycompiler.ir import phases
from tests import children

DOCUMENTED = {
    "debug.log", "fx_graph_readable.py", "fx_graph_runnable.py", "fx_graph_transformed.py", "ir_post_fusion.txt",
    "ir_pre_fusion.txt", "output_code.py",
}  # fmt: skip


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Path]:
    """The parent of the run's folder; the directory is on."""
    observer_switches._directory = None
    with config.patch({"trace.enabled": True, "debug_dir_root": str(tmp_path)}):
        yield tmp_path
    observer_switches._directory = None


def graphs(root: Path) -> dict[str, Path]:
    (run,) = root.iterdir()
    return {path.name: path for path in (run / "torchinductor").iterdir() if path.is_dir()}


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x @ w, (4,)).relu() + torch.tensor([1.0, 2.0, 3.0, 4.0])


def arguments() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, 5), torch.randn(5, 4, requires_grad=True)]


PROGRAM = """
import torch, pycompiler

@pycompiler.compile()
def test_model(x):
    return torch.nn.functional.layer_norm(x, (10,)).relu()

y = test_model(torch.ones(10, 10, requires_grad=True))
"""


def test_the_documents_run(tmp_path: Path) -> None:
    """TORCH_COMPILE_DEBUG=1, in the working directory, with the documented names; the programs run in processes of
    their own."""
    (tmp_path / "repro.py").write_text(PROGRAM)
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "TORCH_COMPILE_DEBUG": "1"}
    environment.pop("PYCOMPILER_DEBUG_DIR_ROOT", None)
    subprocess.run([children.python(), "repro.py"], cwd=tmp_path, env=environment, check=True)
    (run,) = (tmp_path / "torch_compile_debug").iterdir()
    assert re.fullmatch(r"run_\d{4}(_\d\d){5}_\d{6}-pid_\d+", run.name)
    assert {p.name for p in run.iterdir()} == {"torchdynamo", "torchinductor"}
    assert "Step 1: torchdynamo start tracing test_model" in (run / "torchdynamo" / "debug.log").read_text()
    inductor = run / "torchinductor"
    assert {p.name for p in inductor.iterdir()} == {"aot_model___0_debug.log", "model__0_forward_1.0", "names.txt"}
    assert "aten.var_mean.correction" in (inductor / "aot_model___0_debug.log").read_text()
    assert {p.name for p in (inductor / "model__0_forward_1.0").iterdir()} == DOCUMENTED
    del environment["TORCH_COMPILE_DEBUG"]
    both = "import runpy, sys\nfor p in sys.argv[1:]:\n try: runpy.run_path(p, run_name='__main__')\n except SystemExit as e: assert not e.code, p"
    files = [str(inductor / "model__0_forward_1.0" / name) for name in ("output_code.py", "fx_graph_runnable.py")]
    done = subprocess.run(
        [children.python(), "-c", both, *files], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    assert b"output 0: (10, 10) torch.float32 cpu: equal" in done.stdout


def test_programs_give_the_same_numbers(traced: Path) -> None:
    compiled = pycompiler.compile(model)
    args = arguments()
    result = compiled(*args)
    result.sum().backward()
    folders = graphs(traced)
    assert folders.keys() == {"model__0_forward_1.0", "model__0_backward_2.0"}
    for folder in folders.values():
        made = runpy.run_path(str(folder / "fx_graph_runnable.py"))
        code = runpy.run_path(str(folder / "output_code.py"))
        module, inputs = made["Repro"](), made["inputs"]()
        want = module(*inputs)
        for seen in (repro.compile_graph(module, inputs)(*inputs), code["call"](inputs)):
            torch.testing.assert_close(list(seen), list(want))
    forward = runpy.run_path(str(folders["model__0_forward_1.0"] / "fx_graph_runnable.py"))
    seen = forward["Repro"]()(*(a.detach() for a in args))
    torch.testing.assert_close(seen[0], result.detach())  # constants of the program are in the file


def test_symbolic_sizes_are_those_of_the_call(traced: Path) -> None:
    def sized(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] * x.shape[1]) * x.shape[0]

    pycompiler.compile(sized, dynamic=True)(torch.ones(3, 4))
    (folder,) = graphs(traced).values()
    assert "s0" in (folder / "ir_pre_fusion.txt").read_text()
    made = runpy.run_path(str(folder / "fx_graph_runnable.py"))
    inputs = made["inputs"]()
    assert [tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)] == [(3, 4)]
    assert repro.main(made["Repro"](), inputs) == 0


def strided(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x + y.sum(0), x.t(), x.view(torch.uint8)[0] if x.is_contiguous() else x[::2]


def drawn(x: torch.Tensor) -> Any:
    return torch.nn.functional.dropout(x, 0.5) + torch.rand(4), torch.randperm(4)


def bound(x: torch.Tensor) -> Any:
    return x * x.sum().item(), x[x > 0] * 2, torch.nonzero(x)


def chosen(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def marked(x: torch.Tensor) -> torch.Tensor:
    pycompiler.mark_dynamic(x, 0)
    return x


def repeated(x: torch.Tensor) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin() + x), (x.new_zeros(()), x * 2))


def raising(x: torch.Tensor) -> Any:
    return torch.linalg.cholesky(x) + 1


def unwritten(x: torch.Tensor) -> Any:
    return torch.empty_like(x), torch.empty_like(x).fill_(2) + x


ODD: dict[str, tuple[Any, Any]] = {
    "strides": (strided, lambda: (torch.randn(4, 6).t()[::2], torch.randn(5, 1).expand(5, 4))),
    "overlapping": (strided, lambda: (torch.randn(10).as_strided((3, 3), (1, 2)), torch.randn(2, 3))),
    "dtypes": (lambda *a: [x + 1 if x.dtype != torch.bool else ~x for x in a], lambda: [
        torch.ones(3, dtype=d) for d in (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.int16)]),
    "small floats": (lambda x: x.float() * 2, lambda: [torch.ones(3).to(torch.float8_e4m3fn)]),
    "complex": (lambda x: (x * x.conj()).real, lambda: [torch.randn(3, dtype=torch.complex64)]),
    "random numbers": (drawn, lambda: [torch.randn(4)]),
    "numbers of the call": (bound, lambda: [torch.tensor([1.0, -2.0, 3.0])]),
    "a branch": (chosen, lambda: [torch.randn(4)]),
    "a branch of any size": (chosen, lambda: [marked(torch.randn(4))]),
    "a loop": (repeated, lambda: [torch.randn(4)]),
    "a loop with gradients": (lambda x: repeated(x)[1], lambda: [torch.randn(4, requires_grad=True)]),
    "a scan": (lambda x: scan(lambda c, y: (c + y, c * y), x[0] * 1, x)[1], lambda: [torch.randn(20, 4)]),
    "a scan with gradients": (lambda x: scan(lambda c, y: (c + y, c * y), x[0] * 1, x)[1], lambda: [torch.randn(20, 4, requires_grad=True)]),
    "an error": (raising, lambda: [torch.eye(3)]),
    "memory that nobody wrote": (unwritten, lambda: [torch.ones(3)]),
    "no elements": (lambda x: (x.sum(), x.sin()), lambda: [torch.ones(0, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_programs_run(traced: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both programs of each folder run, on the same random inputs."""
    program, args = ODD[name]
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        pycompiler.compile(program, fullgraph=True)(*args())
    for folder in graphs(traced).values():
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(folder / "fx_graph_runnable.py"), run_name="__main__")
        assert left.value.code == 0, capsys.readouterr().out
        made = runpy.run_path(str(folder / "output_code.py"), run_name="__main__")
        if name not in ("numbers of the call", "a branch of any size"):  # numbers come from sizes
            inputs = runpy.run_path(str(folder / "fx_graph_runnable.py"))["inputs"]()
            torch.testing.assert_close(made["random_inputs"](), inputs, equal_nan=True)
    said = capsys.readouterr().out
    assert ("the graph does not accept these random inputs: _LinAlgError" in said) == (name == "an error")
    assert said.count("not compared") == (name == "memory that nobody wrote")
    assert "DIFFERENT" not in said


def test_parts_of_a_graph_have_files_of_their_own(traced: Path) -> None:
    with config.patch(capture_scalar_outputs=True):
        pycompiler.compile(lambda x: (x + 1) * x.sum().item())(torch.ones(3))
    (folder,) = graphs(traced).values()
    assert DOCUMENTED | {"output_code_1.py", "ir_pre_fusion_1.txt"} <= {p.name for p in folder.iterdir()}
    assert "sum" in (folder / "ir_pre_fusion.txt").read_text()
    assert "mul" in (folder / "ir_pre_fusion_1.txt").read_text()


@torch.library.custom_op("pycompiler_test_directory::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)


def test_an_operator_of_the_program(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The written program imports the operator's module, or reports the missing name."""
    pycompiler.compile(lambda x: twice(x) + 1)(torch.ones(3))
    (folder,) = graphs(traced).values()
    for name in ("fx_graph_runnable.py", "output_code.py"):
        text = (folder / name).read_text()
        assert f"import {__name__}  # registers pycompiler_test_directory::twice" in text
        assert "repro.needs('pycompiler_test_directory::twice')" in text
    with pytest.raises(SystemExit, match="the program's own operator nobody::has_this: import the module"):
        repro.needs("nobody::has_this")


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Repro(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (torch.ops.aten.add.Tensor(x, 1), None)

    monkeypatch.setattr(repro, "compile_graph", lambda module, inputs: lambda x: (x + 1.5, None))
    assert repro.main(Repro(), [torch.ones(3)]) == 1
    assert "output 0: (3,) torch.float32 cpu: DIFFERENT" in capsys.readouterr().out


def test_what_a_graph_writes_to_its_inputs_is_compared(
    traced: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An optimizer step returns nothing: its program must compare the inputs that the graph writes."""

    def step(p: torch.Tensor, g: torch.Tensor, state: torch.Tensor) -> None:
        state.lerp_(g, 0.1)
        p.sub_(state)

    pycompiler.compile(step)(*(torch.ones(4) for _ in range(3)))
    (folder,) = graphs(traced).values()
    made = runpy.run_path(str(folder / "fx_graph_runnable.py"))
    module, inputs = made["Repro"](), made["inputs"]()
    assert repro.main(module, inputs) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and all(re.fullmatch(r"input \d, written: \(4,\) torch.float32 cpu: equal", s) for s in said)
    for wrong in (lambda *given: (), lambda *given: [t.add_(1) for t in given] and ()):
        monkeypatch.setattr(repro, "compile_graph", lambda module, inputs, wrong=wrong: wrong)
        assert repro.main(module, inputs) == 1
        assert "written: (4,) torch.float32 cpu: DIFFERENT" in capsys.readouterr().out

    class Unwritten(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            torch.ops.aten.copy_.default(x, torch.ops.aten.empty_like.default(x))
            return ()

    assert repro._unwritten_memory(repro.load(Unwritten())) == ([], [True])


@pytest.mark.parametrize(
    "name", sorted(row.switch for row in directory.FILES.values()) + ["debug_log", "info_log", "compile_profile"]
)
def test_each_switch(traced: Path, name: str) -> None:
    files = {file for file, row in directory.FILES.items() if row.switch == name}
    files |= {file for file, (switch, _) in directory.LOGS.items() if switch == name}
    files |= {"compile.prof"} if name == "compile_profile" else set()
    before = config.get_knob(f"trace.{name}")
    with config.patch(f"trace.{name}", not before):
        pycompiler.compile(lambda x: x.sin() + 1)(torch.ones(3))
    (folder,) = graphs(traced).values()
    assert {p.name for p in folder.iterdir()} == (DOCUMENTED - files if before else DOCUMENTED | files)
    if name == "graph_diagram":
        texts = [t.text or "" for t in ElementTree.parse(folder / "graph_diagram.svg").iter() if t.tag.endswith("text")]
        assert texts == ["kernel graph_0", "sin add"]
    if name == "compile_profile":
        assert pstats.Stats(str(folder / "compile.prof")).total_calls > 100  # type: ignore[attr-defined]


def test_what_the_files_say(traced: Path) -> None:
    pycompiler.compile(lambda x: (x.sin() + 1).sum())(torch.ones(3))
    (folder,) = graphs(traced).values()
    text = {p.name: p.read_text() for p in folder.iterdir()}
    assert "aten.sin.default" in text["fx_graph_readable.py"]
    compile(text["fx_graph_readable.py"], "fx_graph_readable.py", "exec")
    assert re.search(r"sin = .*# kernel graph_0", text["fx_graph_transformed.py"])
    assert text["ir_pre_fusion.txt"].count("loop ") == 3  # sin, add, sum
    assert text["ir_post_fusion.txt"].count("kernel graph_0(") == 1
    assert re.search(r"lowering: 0\.\d{6} s", text["debug.log"])


def test_stderr_shows_no_more_than_before(traced: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pycompiler.compile(lambda x: x + 1)(torch.ones(3))
    assert capfd.readouterr().err == ""
    assert logging.getLogger("pycompiler.native").level == logging.NOTSET


def test_a_directory_that_cannot_be_made_stops_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    observer_switches._directory = None
    with config.patch({"trace.enabled": True, "debug_dir_root": "/proc/nowhere"}):
        assert pycompiler.compile(lambda x: x + 1)(torch.ones(3)).tolist() == [2, 2, 2]
    observer_switches._directory = None
    assert "debug directory: torchdynamo/debug.log is not written" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_as_an_option_of_one_callable(tmp_path: Path) -> None:
    observer_switches._directory = None
    with config.patch(base_dir=str(tmp_path)):
        one = pycompiler.compile(lambda x: x * 2, options={"trace.enabled": True})
        other = pycompiler.compile(lambda x: x * 3)
        one(torch.ones(3, requires_grad=True)).sum().backward()
        other(torch.ones(3))
    assert graphs(tmp_path).keys() == {"model__0_forward_1.0", "model__0_backward_2.0"}
    assert observer_switches._directory not in phases.observers
    observer_switches._directory = None
