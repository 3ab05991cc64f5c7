"""The machine as data: limits follow from its facts, and stages decide by all of them."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch
from kernel_harness import lowered

import pycompiler
from pycompiler import graphs
from pycompiler.codegen.cpp import generate
from pycompiler.ir import target
from pycompiler.ir.target import H200, Target, cpu, of_program
from pycompiler.scheduling import schedule


def with_threads(n: int, **facts: int) -> Target:
    return Target(kind="cpu", processors=n, **facts)


def test_this_machine() -> None:
    here = cpu()
    assert here.processors == torch.get_num_threads()
    assert here.line in (32, 64, 128, 256)
    assert here.vector in (16, 32, 64)
    assert of_program(lowered(lambda x: x + 1, [torch.ones(3)])) == here


def test_limits_of_a_gpu_follow_from_its_registers_and_multiprocessors() -> None:
    assert (H200.held, H200.chunk, H200.tile, H200.flat) == (16384, 4096, 2048, 1024)
    assert (H200.programs, H200.row_programs) == (1024, 512)
    assert dataclasses.replace(H200, processors=40).programs == 256


def test_a_gpu_that_is_not_here_has_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert target.cuda(torch.device("cuda", 1)) is H200


@pytest.mark.parametrize(("threads", "kernels"), [(2, 1), (8, 1), (32, 2), (64, 2)])
def test_rows_are_enough_for_the_processors(threads: int, kernels: int) -> None:
    """16 rows of much work: in a kernel that folds and then uses them, half of 32 threads would be idle."""
    program = lowered(lambda x: (x - x.amax(1, keepdim=True)).exp(), [torch.ones(16, 1 << 15)])
    made = schedule(program, with_threads(threads))
    assert len([nest for k in made.kernels for nest in k.nests]) == kernels


@pytest.mark.parametrize("vector", [16, 32, 64])
def test_blocks_are_eight_vectors(vector: int) -> None:
    program = lowered(lambda x: x + 1, [torch.ones(1 << 13)])
    assert f"float block[{2 * vector}];" in generate(schedule(program, with_threads(1, vector=vector))).text


def test_every_fact_and_limit_is_read() -> None:
    own = {f.name for f in dataclasses.fields(Target)} | {k for k, v in vars(Target).items() if isinstance(v, property)}
    root = Path(pycompiler.__file__).parent
    files = [p for folder in ("scheduling", "codegen") for p in (root / folder).rglob("*.py")] + [root / "ir/target.py"]
    read = {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in ("target", "self", "most")
    }
    assert own <= read, own - read


def test_kernels_have_the_threads_of_the_knob() -> None:
    x = torch.linspace(0, 3, 300_000).view(300, 1000)
    program = lowered(lambda x: x.exp().sum(1), [x])
    for threads in (0, 1, 3):
        here = of_program(program, threads)
        assert (here.threads, here.processors) == (threads, threads or torch.get_num_threads())
        assert (f"threads = {threads};" in generate(schedule(program, here)).text) is (threads > 0)


def test_the_knob_of_threads_reaches_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    theirs = graphs.target.of_program
    monkeypatch.setattr(graphs.target, "of_program", lambda program, n: made.append(n) or theirs(program, n))
    x = torch.linspace(0, 3, 3000).view(3, 1000)
    for threads in (0, 2):
        compiled = pycompiler.compile(lambda x: x.exp().sum(1), options={"threads": threads})
        torch.testing.assert_close(compiled(x), x.exp().sum(1))
    assert made == [0, 2]
