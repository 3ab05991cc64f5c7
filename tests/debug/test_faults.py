"""Faults that are put into the compiler, and the one command that leads to each: what it names, and which line.

A row of FAULTS: a fault, a program that it makes wrong, what `python -m pycompiler bisect` says.  The bisector runs in this
process, its children have the fault too; the programs compute no gradients, which such children cannot.
Faults of programs (breaks, recompiles) are found by reports, below.
"""

from __future__ import annotations

import dataclasses
import logging
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
from pycompiler.ir import choices
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
