"""The minifier: documented programs end with one operator, crashes and hangs are symptoms, written programs run alone."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import pycompiler
from pycompiler import config
from pycompiler.debug import fx_reader, launcher, minifier, render, repro_after, trial
from tests import children

ROOT = Path(__file__).parent.parent.parent

# Runs `fault.py` of its folder once the compiler is imported, so that every child process has the same fault.
SITE = """
import importlib.abc, importlib.util, sys

class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "pycompiler.graphs":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            import fault
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Late())
"""


def run(folder: Path, *program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [children.python(), *program], cwd=folder, env=everything, capture_output=True, text=True, timeout=300
    )


def with_fault(folder: Path, text: str) -> None:
    (folder / "sitecustomize.py").write_text(SITE)
    (folder / "fault.py").write_text(textwrap.dedent(text))


def write(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(textwrap.dedent(text))
    return "program.py"


# programs of the documents ----------------------------------------------------------------------------------------
def test_after_dynamo(tmp_path: Path) -> None:
    """Document B, "Minifying Backend Compiler Errors": the minifier runs by itself and leaves `repro.py` with the
    relu."""
    program = write(tmp_path, """
        import torch
        import pycompiler as dynamo

        model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])
        # toy compiler which fails if graph contains relu
        def toy_compiler(gm: torch.fx.GraphModule, _):
            for node in gm.graph.nodes:
                if node.target == torch.relu:
                    assert False

            return gm


        def test_backend_error():
            y = torch.ones(200, 200)
            x = torch.ones(200, 200)
            z = x + y
            a = torch.relu(z)
            return model(a)


        compiled_test_backend_error = dynamo.compile(test_backend_error, backend=toy_compiler)
        compiled_test_backend_error()
        """)  # fmt: skip
    done = run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="dynamo")
    assert done.stderr.rstrip().endswith("raised by backend 'toy_compiler', which was called to compile a graph")
    assert "1 operator is left of 9" in done.stdout
    assert " in test_backend_error: a = torch.relu(z)" in done.stdout
    root = tmp_path / "torch_compile_debug"
    assert "relu = torch.relu(add);  add = None\n        return (relu,)" in (root / "repro.py").read_text()
    assert {"1_operators.py", "9_operators.py"} <= {p.name for p in (root / "minifier" / "checkpoints").iterdir()}
    again = run(tmp_path, str(root / "repro.py"))
    assert again.returncode == 1
    assert again.stderr.rstrip().splitlines()[-2] == "AssertionError"


def test_a_backend_that_changes_its_graph_in_place(tmp_path: Path) -> None:
    """Level 4: results are compared with the graph as the backend received it, before its changes."""
    program = write(tmp_path, """
        import torch, pycompiler

        def no_relu(gm, inputs):
            for node in gm.graph.nodes:
                if node.target is torch.relu:
                    node.target = torch.sigmoid
            gm.recompile()
            return gm.forward

        pycompiler.compile(lambda x: torch.relu(x.sin() + 1).cos(), backend=no_relu)(torch.linspace(-2, 2, 4))
        """)  # fmt: skip
    done = run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="dynamo", TORCHDYNAMO_REPRO_LEVEL="4")
    assert "compiled by backend 'no_relu', differs from eager in output 0" in done.stderr
    assert "1 operator is left of 4" in done.stdout and "torch.relu" in done.stdout
    again = run(tmp_path, str(tmp_path / "torch_compile_debug" / "repro.py"))
    assert again.returncode == 1 and "relu = torch.relu(" in (tmp_path / "torch_compile_debug" / "repro.py").read_text()


def test_a_backend_that_the_program_registers(tmp_path: Path) -> None:
    """The backend's function and its globals are written into launcher and repro; parts that fail otherwise are
    rejected."""
    program = write(tmp_path, """
        import torch
        import pycompiler

        REFUSED = {"relu": [torch.relu.__name__], "others": None}

        class Refused(AssertionError):
            pass

        class Table:
            def refuses(self, node):
                return getattr(node.target, "__name__", "") in REFUSED["relu"]

        @pycompiler.register_backend(name="toy")
        def toy_compiler(gm, _):
            if sum(n.op.startswith("call_") for n in gm.graph.nodes) < 3:
                raise Refused("too small a graph to be worth it")
            for node in gm.graph.nodes:
                if Table().refuses(node):
                    raise Refused(f"{node.name} is not supported here, nor elsewhere")
            return gm.forward

        def program(x):
            y = torch.relu(x.sin()).cos().exp().tanh()
            return torch.relu(y) + 1

        pycompiler.compile(program, backend="toy")(torch.randn(2, 20))
        """)  # fmt: skip
    done = run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="dynamo", TORCHDYNAMO_REPRO_LEVEL="2")
    assert "3 operators are left of 7" in done.stdout, done.stdout + done.stderr
    again = run(tmp_path, str(tmp_path / "torch_compile_debug" / "repro.py"))
    assert again.returncode == 1 and re.search(
        r"Refused: relu\w* is not supported here, nor elsewhere$", again.stderr, re.M
    )


def test_a_launcher_whose_graph_fails_otherwise(tmp_path: Path) -> None:
    """The launcher holds the error that it was started for: a graph with another error is not reduced instead."""
    program = write(tmp_path, """
        import os, torch, pycompiler

        def moody(gm, _):
            if "MOODY" in os.environ:
                raise KeyError("another error")
            raise AssertionError("the program's")

        pycompiler.compile(lambda x: x.sin() + 1, backend=moody)(torch.ones(3))
        """)  # fmt: skip
    done = run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="dynamo", TORCHDYNAMO_REPRO_LEVEL="2")
    assert "1 operator is left of 2" in done.stdout, done.stdout
    (tmp_path / "torch_compile_debug" / "repro.py").unlink()
    launcher = tmp_path / "torch_compile_debug" / "minifier" / "minifier_launcher.py"
    assert "wanted=launcher.Symptom(kind='error', what='AssertionError', text=\"the program's (" in launcher.read_text()
    again = run(tmp_path, str(launcher), MOODY="1")
    assert again.returncode == 2 and "the graph alone shows another fault: KeyError: 'another error'" in again.stderr


def test_after_aot(tmp_path: Path) -> None:
    """Document B, "Minifying TorchInductor Errors": a launcher is written, which leaves the one operator.

    The document's `_foobar` returns its argument and vanishes from the graph: so another operator's lowering fails
    here."""
    with_fault(tmp_path, """
        import torch
        from pycompiler.lowering import LOWERINGS

        def _foobar(*args):
            assert False

        LOWERINGS[torch.ops.aten.sinh.default] = _foobar
        """)  # fmt: skip
    program = write(tmp_path, """
        import torch
        import pycompiler as dynamo

        model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])

        def test_backend_error():

            y = torch.ones(200, 200)
            x = torch.ones(200, 200)
            z = x + y
            a = torch.sinh(z)  # dummy function which errors
            return model(a)


        compiled_test_backend_error = dynamo.compile(test_backend_error, backend="inductor")
        compiled_test_backend_error()
        """)  # fmt: skip
    done = run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="aot")
    path = tmp_path / "torch_compile_debug" / "minifier" / "minifier_launcher.py"
    assert done.returncode == 0, done.stderr
    assert f"Writing minified repro launcher to: {path}" in done.stderr
    made = run(tmp_path, str(path))
    assert "1 operator is left of 13" in made.stdout, made.stderr
    assert "a = torch.sinh(z)" in made.stdout
    text = (tmp_path / "torch_compile_debug" / "repro.py").read_text()
    assert "sinh = torch.ops.aten.sinh.default(add);  add = None\n        return (sinh,)" in text
    assert "repro.tensor((200, 200), (200, 1), torch.float32, 'cpu')," in text
    path.parent.parent.joinpath("repro.py").unlink()
    again = run(tmp_path, str(path))  # as after an interrupted run: the parts found so far are in the folder
    assert f"continues from {path.parent / 'checkpoints' / '1_operators.py'}" in again.stderr
    assert "1 operator is left of 1" in again.stdout, again.stderr


def test_a_full_disk(tmp_path: Path) -> None:
    """Intermediate files that cannot be written are skipped; the result is printed, and no partial file remains."""
    with_fault(tmp_path, """
        import os, torch
        from pathlib import Path
        from pycompiler.lowering import LOWERINGS

        def fails(*given):
            raise ValueError("not this one")

        LOWERINGS[torch.ops.aten.sinh.default] = fails
        write_text, full = Path.write_text, os.environ.get("FULL", "none")

        def save(value, path):
            write(path, "")

        def write(path, text):
            write_text(path, text[:9])
            if full in str(path):
                raise OSError(28, "No space left on device")
            write_text(path, text)

        if full != "none":
            torch.save, Path.write_text = save, write
        """)  # fmt: skip
    program = write(tmp_path, """
        import torch, pycompiler

        @pycompiler.compile
        def program(x):
            return (x.exp() + 1).sinh().cos()

        program(torch.rand(3, 4))
        """)  # fmt: skip
    run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="aot")
    folder = tmp_path / "torch_compile_debug"
    path = str(folder / "minifier" / "minifier_launcher.py")
    for full, code, left in (("checkpoints", 0, "repro.py"), ("torch_compile_debug", 3, "")):
        (folder / "repro.py").unlink(missing_ok=True)
        made = run(tmp_path, path, FULL=full)
        assert made.returncode == code, made.stderr
        assert "1 operator is left of 4" in made.stdout
        assert ("No space left on device" in made.stderr) == (code == 3)
        assert [*(folder / "minifier" / "checkpoints").iterdir()] == []
        assert {p.name for p in folder.iterdir()} - {"minifier"} == ({left} - {""})
    text = Path(path).read_text()
    again = run(tmp_path, path, TORCHDYNAMO_REPRO_AFTER="aot", TORCHDYNAMO_REPRO_LEVEL="3")  # still in the environment
    assert "aten.sinh.default" in again.stdout
    assert Path(path).read_text() == text


def test_a_miscompile_of_a_training_graph_of_300_operators(tmp_path: Path) -> None:
    """The fault affects the backward only; at most three operators are left, in less than two minutes of processor
    time."""
    with_fault(tmp_path, """
        import torch
        from pycompiler.lowering import LOWERINGS

        LOWERINGS[torch.ops.aten.cos.default] = LOWERINGS[torch.ops.aten.tanh.default]
        """)  # fmt: skip
    program = write(tmp_path, """
        import torch, pycompiler
        from torch.nn import functional as F

        layers = [(torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)) for _ in range(12)]

        @pycompiler.compile
        def loss(x):
            for k, (w, b) in enumerate(layers):
                x = x + F.layer_norm(F.silu(F.linear(x, w, b)), (8,))
                if k == 7:
                    x = x + x.sin()
            return x.square().mean()

        torch.manual_seed(0)
        loss(torch.randn(4, 8)).backward()
        """)  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="aot", TORCHDYNAMO_REPRO_LEVEL="4")
    made = run(tmp_path, str(tmp_path / "torch_compile_debug" / "minifier" / "minifier_launcher.py"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(r"(\d+) operators? (?:is|are) left of (\d+)", made.stdout)
    assert found is not None, made.stderr
    assert int(found[1]) <= 3 and int(found[2]) >= 300
    assert "aten.cos.default" in made.stdout and "in loss: x = x + x.sin()" in made.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120


def test_symbols_that_a_fault_needs(tmp_path: Path) -> None:
    with_fault(tmp_path, """
        import torch
        from pycompiler.lowering import LOWERINGS

        def for_numbers(low, x, made=LOWERINGS[torch.ops.aten.sinh.default]):
            assert all(n.symbol is None for n in x.shape)
            return made(low, x)

        LOWERINGS[torch.ops.aten.sinh.default] = for_numbers
        """)  # fmt: skip
    program = write(tmp_path, """
        import torch, pycompiler

        @pycompiler.compile(dynamic=True)
        def program(x):
            y = (x.exp() + 1).sinh() * x.shape[0]
            return y.softmax(-1).reshape(x.shape[0] * 4)

        program(torch.rand(3, 4))
        """)  # fmt: skip
    run(tmp_path, program, TORCHDYNAMO_REPRO_AFTER="aot")
    path = tmp_path / "torch_compile_debug" / "minifier" / "minifier_launcher.py"
    made = run(tmp_path, str(path))
    assert "1 operator is left of " in made.stdout, made.stderr
    assert "aten.sinh.default" in made.stdout


# symptoms ---------------------------------------------------------------------------------------------------------
SYMPTOMS = '''
import io, sys, tempfile
from pathlib import Path
import torch
from torch import fx
from pycompiler.debug import launcher, minifier, trial

def backend(gm, inputs):
    """A compiler whose result crashes, or computes something else, for single operators."""
    kind = next((n.target for n in gm.graph.nodes if n.target in ("sin", "tan")), None)
    if kind == "sin":
        import ctypes
        return lambda *inputs: ctypes.string_at(0)
    if kind == "tan":
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, g):
                return g * 1.5
        return lambda *inputs: [Wrong.apply(o) for o in gm(*inputs)]
    return gm

def graph(kind):
    made = fx.Graph()
    value = made.placeholder("x")
    for k in range(11):
        value = made.call_method(kind if k == 6 else "exp" if k % 2 else "tanh", (value,))
    made.output((value,))
    return fx.GraphModule(torch.nn.Module(), made)

launcher._compile_before_fork()
for kind in sys.argv[1:]:
    setting = trial.Setting(backend=backend, accuracy=True)
    x = torch.linspace(-1, 1, 5).requires_grad_()
    folder = Path(tempfile.mkdtemp())
    made = minifier.Minifier(graph(kind), [x], setting, folder, out=io.StringIO()).run()
    print(kind, made.symptom.kind, made.symptom.what, [str(n.target) for n in made.part.module.graph.nodes if n.op == "call_method"])
'''


def test_crash_and_wrong_gradient(tmp_path: Path) -> None:
    done = run(tmp_path, write(tmp_path, SYMPTOMS), "sin", "tan")
    assert done.stdout.splitlines() == [
        "sin crash SIGSEGV ['sin']",
        "tan values the gradient of input 0 ['tan']",
    ], done.stderr


def test_children_that_hang_crash_or_leave() -> None:
    ends: dict[Callable[[], Any], tuple[str, str] | None] = {
        lambda: time.sleep(1000): ("hang", ""),
        lambda: os.kill(os.getpid(), signal.SIGFPE): ("crash", "SIGFPE"),
        lambda: os._exit(3): ("crash", "SIGABRT"),
        lambda: ["values", "output 0", "text"]: ("values", "output 0"),
        lambda: None: None,
    }
    for job, wanted in ends.items():
        found = trial.in_child(job, 2.0 if wanted == ("hang", "") else 60.0, 1).symptom
        assert (found and (found.kind, found.what)) == wanted


def test_what_is_like_what() -> None:
    error, other = trial.Symptom("error", "KeyError", "a"), trial.Symptom("error", "KeyError", "b")
    assert error.is_like(other)
    assert not error.is_like(trial.Symptom("error", "ValueError", "a"))
    assert not error.is_like(None)
    assert not trial.Symptom("crash", "SIGSEGV").is_like(trial.Symptom("crash", "SIGFPE"))
    assert trial.Symptom("values", "output 0").is_like(trial.Symptom("values", "the gradient of input 0"))


def test_the_same_fault() -> None:
    """The same fault: class, message without numbers and names, and the function that raises it."""
    place = " (/a/b.py:7 in lower)"
    wanted = trial.Symptom("error", "RuntimeError", f"no lowering of aten.foo.default (node foo_3) for size 17{place}")
    for text, same in (
        (f"no lowering of aten.foo.default (node foo) for size 4{place}", True),
        ("no lowering of aten.foo.default (node foo) for size 4 (/elsewhere/repro.py:70 in lower)", True),
        (f"'xs' has no stride{place}", False),
        ("no lowering of aten.foo.default (node foo_3) for size 17 (/a/b.py:7 in schedule)", False),
        ("no lowering of aten.foo.default (node foo_3) for size 17", True),
        ("", False),
    ):
        assert wanted.is_same(trial.Symptom("error", "RuntimeError", text)) is same, text
    assert not wanted.is_same(trial.Symptom("error", "KeyError", wanted.text)) and not wanted.is_same(None)
    assert not wanted.is_same(trial.Symptom("crash", "SIGSEGV"))
    silent = trial.Symptom("error", "AssertionError", f"{place}")
    assert silent.is_same(trial.Symptom("error", "AssertionError", " (/c.py:1 in lower)"))
    assert trial.Symptom("values", "output 0", "a").is_same(trial.Symptom("values", "output 1", "b"))


def test_what_eager_raises_too_is_no_symptom() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("view", (x, 7)),))
    assert (
        trial.observe(fx.GraphModule(torch.nn.Module(), graph), [torch.ones(3)], trial.Setting(backend="eager")) is None
    )


@pytest.mark.parametrize(("tolerance", "kind"), [(1e-3, "values"), (0.1, None)])
def test_tolerance(tolerance: float, kind: str | None) -> None:
    def backend(gm: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda x: [gm(x)[0] * 1.01]

    setting = trial.Setting(backend=backend, accuracy=True, tolerance=tolerance)
    found = trial.observe(graph_of(lambda x: x * 3), [torch.ones(3)], setting)
    assert (found.kind if found else None) == kind


# graphs -----------------------------------------------------------------------------------------------------------
def graph_of(function: Callable[..., Any]) -> fx.GraphModule:
    gm = fx.symbolic_trace(function)
    node = gm.graph.output_node()
    if isinstance(node.args[0], fx.Node):
        node.args = ((node.args[0],),)
    gm.recompile()
    return gm


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = x.split(2)
    rows = x.size(0)
    z = (a + b).reshape(rows // 2, -1)[:, 1:]
    z += torch.ones_like(z)
    return -z @ y.T, torch.nn.functional.pad(z, (1, 1)), slice(0, 3)


def test_straight_line_code_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gm = graph_of(several)
    gm.body = graph_of(lambda x: x + 1)
    before = gm.graph.output_node()
    with gm.graph.inserting_before(before):
        gm.graph.call_function(torch.set_grad_enabled, (True,))  # no tensor: a symbolic trace would run it
        inner = gm.graph.get_attr("body")
        before.args = ((*before.args[0], gm.graph.call_function(torch.ops.aten.relu.default, (inner,))),)  # type: ignore[misc]
    imports, classes = render.module_text(gm)
    assert "class Repro_body(torch.nn.Module):" in classes
    (tmp_path / "printed_graph.py").write_text(
        f"import torch\nfrom pycompiler.debug import repro\n{imports}\n\n{classes}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("printed_graph").Repro()
    loaded = fx_reader.load(module)
    rows = [
        [(n.op, n.target, str(n.args), str(n.kwargs)) for n in g.graph.nodes if n.op != "output"] for g in (gm, loaded)
    ]
    called = [[(op, target) for op, target, *_ in row] for row in rows]
    assert called[0] == called[1]
    assert isinstance(loaded.body, fx.GraphModule)
    assert render.module_text(loaded)[1].splitlines()[-3:] == classes.splitlines()[-3:]


def test_numbers_made_of_sizes_are_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`float(n)` turns an argument into a constant only."""
    (tmp_path / "printed_numbers.py").write_text(
        "import torch\n"
        "class Repro(torch.nn.Module):\n"
        "    def forward(self, n, x):\n"
        "        float_1 = float(n);  n = None\n"
        "        truediv = float('inf') / float_1;  float_1 = None\n"
        "        return (torch.ops.aten.mul.Tensor(x, truediv),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = fx_reader.load(__import__("printed_numbers").Repro())
    assert [n.target for n in loaded.graph.find_nodes(op="call_function", target=float)] == [float]
    assert torch.equal(loaded(2, torch.ones(3))[0], torch.full((3,), float("inf")))


def test_parts_have_what_is_left_out_as_inputs() -> None:
    gm = graph_of(several)
    inputs = [torch.randn(4, 3), torch.randn(3, 2)]
    found = minifier.non_tensor_values(gm, inputs)
    kinds = {name: row[0] for name, row in found.items()}
    assert kinds == {"split": "opaque", "size": "number", "floordiv": "number"}
    units = minifier.units_of(gm, {"split"})
    assert [n.name for n in units[0]] == ["split", "getitem", "getitem_1"]
    kept = {n for n in gm.graph.nodes if n.name in ("reshape", "getitem_2")}
    last = next(n for n in kept if n.name == "getitem_2")
    part = minifier.part_of(gm, kept, [last], {name: row[1] for name, row in found.items() if row[0] == "number"})
    assert [n.name for n in part.boundary] == ["add"]
    values = minifier.values_of(gm, inputs, part.boundary)
    a, b = inputs[0].split(2)
    assert torch.equal(values[0], a + b)
    assert torch.equal(part.module(*values)[0], (a + b).reshape(2, -1)[:, 1:])


def test_backends_are_written_so_that_they_stand_alone() -> None:
    assert launcher.backend_text("native") == ([], "", "'native'")
    imports, source, name = launcher.backend_text(several)
    assert (imports, source, name) == ([f"from {__name__} import several"], "", "several")
    with pytest.raises(launcher.Unwritable):
        launcher.backend_text(lambda gm, inputs: gm)


@pytest.mark.parametrize("fails", [False, True])
def test_a_search_without_a_find_says_so(fails: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        if fails:
            raise ValueError("no")
        return gm

    logging.getLogger("pycompiler").propagate = True
    monkeypatch.setattr(repro_after, "_graph_failed", [])
    with config.patch(repro_after="dynamo", repro_level=1, repro_dir=str(tmp_path)):
        with pytest.raises(ValueError, match="no") if fails else contextlib.nullcontext():
            pycompiler.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        caplog.clear()
        repro_after._at_exit()
    said = "repro_after = 'dynamo', repro_level = 1: none of 1 graph failed\n  this level finds errors of a compile"
    assert (said in caplog.text) is not fails
    caplog.clear()
    repro_after._at_exit()
    assert not caplog.text


def test_levels_and_knobs(tmp_path: Path) -> None:
    with config.patch(
        verify_ir=False, repro_level=4, repro_tolerance=0.5, partition="save_all", repro_dir=str(tmp_path)
    ):
        setting = repro_after.setting_of("dynamo", "native", {"a": 1})
        folders = [repro_after.new_folder(), repro_after.new_folder()]
    assert (setting.accuracy, setting.tolerance, setting.knobs) == (True, 0.5, {"partition": "save_all"})
    assert [f.name for f in folders] == ["minifier", "minifier_1"]
    assert [launcher.repro_path(f) for f in folders] == [tmp_path / "repro.py", tmp_path / "minifier_1" / "repro.py"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert repro_after.state() == ("torch.no_grad()", "torch.autocast('cpu', torch.bfloat16)")


def test_nothing_stands_around_compilers_when_it_is_off() -> None:
    from pycompiler.ir import phases

    assert phases.wrappers == {}
    with config.patch(repro_after="aot"):
        assert list(phases.wrappers) == ["aot"]
    assert phases.wrappers == {}
