"""Faults that are put into the compiler, and the one command that leads to each: what it names, and which line.

A row of FAULTS: a fault, a program that it makes wrong, what `python -m pycompiler bisect` says.  The bisector runs in this
process, its children have the fault too; the programs compute no gradients, which such children cannot.
Faults of programs (breaks, recompiles) are found by reports, below.
"""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config, pipeline
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.codegen import cpp
from pycompiler.debug import bisect
from pycompiler.ir import choices, fake, propagate
from pycompiler.lowering import LOWERINGS
from pycompiler.pipeline import compiler
from pycompiler.scheduling import fuse

aten = torch.ops.aten
Patch = pytest.MonkeyPatch


# faults -------------------------------------------------------------------------------------------------------------
def wrong_lowering(patch: Patch) -> None:
    patch.setitem(LOWERINGS, aten.sin.default, LOWERINGS[aten.tanh.default])


def wrong_index_rule(patch: Patch) -> None:
    patch.setitem(LOWERINGS, aten.flip.default, lambda low, x, dims: x)


def missing_mutation(patch: Patch) -> None:
    patch.setitem(LOWERINGS, aten.copy_.default, lambda low, target, value, non_blocking=False: target)


def wrong_decomposition(patch: Patch) -> None:
    patch.setitem(default_decompositions()._known, aten.silu.default, lambda x: x * torch.sigmoid(x + 1))


def wrong_guard(patch: Patch) -> None:
    filtered = compiler.filtered
    patch.setattr(compiler, "filtered", lambda *a: [g for g in filtered(*a) if g.kind != "equals"])


def wrong_fusion(patch: Patch) -> None:
    sort = fuse.sort_stages

    def sorted_wrongly(stages: list[Any]) -> list[Any]:
        made = []
        for stage in sort(stages):
            body = tuple(dataclasses.replace(op, name="sub") if op.name == "add" else op for op in stage.loop.body)
            made.append(dataclasses.replace(stage, loop=dataclasses.replace(stage.loop, body=body)))
        return made

    patch.setattr(fuse, "sort_stages", sorted_wrongly)


def generated(patch: Patch, change: Callable[[str], str]) -> None:
    """Changes the C++ of kernels that compute a sine."""
    generate = cpp.generate

    def changed(schedule: Any) -> Any:
        made = generate(schedule)
        return dataclasses.replace(made, text=change(made.text)) if "pyc_sin" in made.text else made

    patch.setattr(cpp, "generate", changed)


def cpp_error(patch: Patch) -> None:
    generated(patch, lambda text: text.replace("return error;", "return eror;"))


def crash_in_a_kernel(patch: Patch) -> None:
    generated(patch, lambda text: text.replace("return error;", "__builtin_trap(); return error;"))


def hang_in_a_kernel(patch: Patch) -> None:
    generated(patch, lambda text: 'extern "C" int pause();\n' + text.replace("return error;", "for (;;) pause();"))


def wrong_dtype_of_a_fake(patch: Patch) -> None:
    short = fake.short_path

    def path(mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
        made = short(mode, op, args, kwargs)
        return propagate.wrapped(mode, made.plain.double(), made.fake_device) if op is aten.sin.default else made

    patch.setattr(fake, "short_path", path)


# programs -----------------------------------------------------------------------------------------------------------
OPERATORS = """
    import torch, pycompiler

    @pycompiler.compile
    def program(x):
        y = (x * 2).exp()
        z = y.flip(0)
        z = z + x.sin()
        return torch.nn.functional.silu(z) - 1

    program(torch.linspace(-1, 1, 12).reshape(3, 4))
    """

ROWS = """
    import torch, pycompiler

    @pycompiler.compile
    def program(x):
        y = x + 1
        return y / y.sum(-1, keepdim=True)

    program(torch.linspace(-1, 1, 12).reshape(3, 4))
    """

WRITES = """
    import torch, pycompiler

    @pycompiler.compile
    def program(x, total):
        total.add_(x.sum())
        return x * 3

    program(torch.ones(3), torch.zeros(()))
    """

ONE = """
    import torch, pycompiler

    @pycompiler.compile
    def program(x):
        return x.sin()

    program(torch.ones(3))
    """

DTYPES = """
    import torch, pycompiler

    @pycompiler.compile
    def program(x):
        y = x.sin()
        return y + (1 if y.dtype is torch.float32 else 2)

    x = torch.ones(3)
    assert torch.equal(program(x), x.sin() + 1)
    """

SETTING = """
    import torch, pycompiler

    factor = 2

    def helper(x):
        return x * factor

    @pycompiler.compile
    def other(x):
        return x + 1

    @pycompiler.compile
    def program(x):
        return helper(x).cos()

    x = torch.ones(3)
    program(other(x))
    factor = 3
    assert torch.equal(program(x), (x * 3).cos())
    """


@dataclass(frozen=True)
class Row:
    fault: Callable[[Patch], None]
    program: str
    symptom: str  # begins with
    layer: str
    says: tuple[str, ...]  # in the report


FAULTS = (
    Row(wrong_lowering, OPERATORS, "wrong values", "native", ("operator: 4 of ", "aten.sin.default", ": z = z + x.sin()")),
    Row(wrong_index_rule, OPERATORS, "wrong values", "native", ("operator: 3 of ", "aten.flip.default", ": z = y.flip(0)")),
    Row(missing_mutation, WRITES, "wrong values", "native", ("copy_.default",)),
    Row(wrong_decomposition, OPERATORS, "wrong values", "aot_eager",
        ("decomposition: 1 of 1: aten.silu.default", "program.py:8 in program)")),
    Row(wrong_guard, SETTING, "AssertionError", "eager", ("guards: right when every call is compiled anew", "guards of program (program.py:12)")),
    Row(wrong_fusion, ROWS, "wrong values", "native", ("fusion: 1 of ", "\n    add: aten.add", ": y = x + 1")),
    Row(cpp_error, OPERATORS, "BuildFailed", "native", ("operator: 4 of ", ": z = z + x.sin()")),
    Row(wrong_dtype_of_a_fake, DTYPES, "AssertionError", "eager", ("frame: 1 of 1: program (program.py:3)",)),
    Row(crash_in_a_kernel, OPERATORS, "it crashes with SIGILL", "native", ("operator: 4 of ", ": z = z + x.sin()")),
)  # fmt: skip


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.fault.__name__)
def test_the_bisector_names_it(row: Row, tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(row.program).lstrip())
    row.fault(monkeypatch)
    report = bisect.Bisector(str(path), []).search()
    text = str(report)
    assert str(report.symptom).startswith(row.symptom), text
    assert report.layer == row.layer, text
    for said in row.says:
        assert said in text, text


def test_programs_that_are_right_or_wrong_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(OPERATORS))
    with pytest.raises(bisect.NothingFound, match="the program ends well"):
        bisect.Bisector(str(path), []).search()
    path.write_text("import sys\nsys.exit(len(sys.argv))")
    with pytest.raises(bisect.NothingFound, match="without the compiler too: SystemExit: 3"):
        bisect.Bisector(str(path), ["a", "b"]).search()


@pytest.mark.slow
def test_a_hang_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    """As above; it waits for each run that hangs."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(ONE).lstrip())
    hang_in_a_kernel(monkeypatch)
    report = bisect.Bisector(str(path), [], limit=10).search()
    assert (str(report.symptom), report.layer) == ("it hangs", "native"), report
    assert "operator: 1 of 1: sin: aten.sin.default (" in str(report) and ": return x.sin())" in str(report)


BAD_PARTITION = """
    import torch, pycompiler
    from pycompiler.autograd import compile as autograd

    cut = autograd.cut_joint

    def badly(joint, how="min_cut", *rest):
        part = cut(joint, how, *rest)
        if how == "min_cut":
            for node in part.backward.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
                node.target = torch.ops.aten.sin.default
            part.backward.recompile()
        return part

    autograd.cut_joint = badly

    @pycompiler.compile
    def program(x):
        return x.exp().sin()

    program(torch.ones(3, requires_grad=True)).sum().backward()
    """


@pytest.mark.slow
def test_a_bad_partition_is_named(tmp_path: Path) -> None:
    """In a process of its own, which computes no gradient: its children could compute none."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(BAD_PARTITION).lstrip())
    command = [sys.executable, "-m", "pycompiler", "bisect", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "layer: aot_eager: " in done.stdout
    assert "partition: right with config.partition = 'save_all'" in done.stdout


# what may be left out -------------------------------------------------------------------------------------------------
def test_each_level_leaves_out_what_it_counts(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x.exp() + 1).sin()

    x = torch.linspace(-1, 1, 5)
    log = tmp_path / "log"
    with config.patch(bisect_log=str(log), share_regions=False):
        pycompiler.compile(program)(x)
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    assert {level for level, *_ in lines} == set(choices.LEVELS)
    for level in choices.LEVELS:
        with config.patch(bisect=f"{level}<0", share_regions=False):
            torch.testing.assert_close(pycompiler.compile(program)(x), program(x))
    assert not choices.active


def test_limits_that_are_none() -> None:
    with pytest.raises(pycompiler.errors.ConfigError, match="expected `level<number`, levels frame, "):
        with config.patch(bisect="kernel<3"):
            pass
    config.bisect = None


# faults of programs -----------------------------------------------------------------------------------------------------
def test_a_branch_on_data_is_named_with_its_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    report = pycompiler.explain(program)(torch.ones(3))
    [reason] = report.break_reasons
    assert reason.stack[-1].line == "if x.sum() > 0:"


def test_a_recompile_storm_is_named_with_guard_and_way_out(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pycompiler").propagate = True
    compiled = pycompiler.compile(lambda x, mode: x + len(mode))
    with (
        config.patch(recompile_limit=3),
        pytest.warns(pipeline.reports.RecompileLimitWarning, match="L\\['mode'\\] == "),
    ):
        for k in range(5):
            compiled(torch.ones(3), "m" * k)
    assert "Way out: pass the value as a tensor, or keep it constant" in caplog.text


def test_a_slow_guard_is_named() -> None:
    def program(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
        return x + list(table.values())[0] + x.shape[0]

    table = {str(k): 1 for k in range(500)}
    compiled = pycompiler.compile(program)
    compiled(torch.ones(3), table)
    profile = pycompiler.guard_profile(compiled, torch.ones(3), table)
    _, _, guard = profile.guards[0]
    assert (guard.kind, str(guard.source)) == ("dict_keys", "L['table']")
