"""CompileProfiler: the documents' examples, breaks and recompiles by reason."""

from __future__ import annotations

import torch

import pycompiler
from pycompiler.utils import CompileProfiler


def test_the_documents_example() -> None:
    prof = CompileProfiler()

    def my_model() -> torch.Tensor:
        return torch.ones(3) + 1

    profiler_model = pycompiler.compile(my_model, backend=prof)
    profiler_model()
    text = prof.report()
    assert "No graph breaks detected." in text
    assert "No recompiles detected." in text


def test_the_documents_example_as_a_context() -> None:
    def my_model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("woo")
        return y.relu()

    with CompileProfiler() as prof:
        profiler_model = pycompiler.compile(my_model, backend=prof)
        profiler_model(torch.ones(2))
        print(prof.report())
    assert (prof.frame_count, prof.op_count) == (2, 2)
    text = prof.report()
    assert "1 break in 1 frame" in text
    assert "print" in text
    assert f"{__file__}" in text


def test_all_recompiles_are_seen_beyond_the_limit() -> None:
    prof = CompileProfiler()

    def sized(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = pycompiler.compile(sized, backend=prof, dynamic=False)
    with pycompiler.config.patch(recompile_limit=2):
        for n in range(2, 7):
            assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))
        text = prof.report()
    (failures,) = prof.get_metrics()["guard_failures"].values()
    assert len(failures) == 4
    assert "sized (test_profiler.py" in text
    assert "4 recompiles" in text
    assert "size" in failures[0]
    assert "config.recompile_limit = 5 or more (it is 2)" in text


def test_ways_out_are_said_once_and_widths_of_numbers_never() -> None:
    prof = CompileProfiler()
    compiled = pycompiler.compile(lambda x, k: x + 1 if k != "z" else x, backend=prof)
    for k in ("a", "b", "c"):
        compiled(torch.ones(2), k)
    by_size = pycompiler.compile(lambda x, k: x * k if k > 7 else x + k, backend=prof, dynamic=True)
    by_size(torch.ones(2), 3), by_size(torch.ones(2), 9)
    text = prof.report()
    block = text.partition("  2. ")[2].partition("\n  3. ")[0].partition("\n<lambda>")[0]
    lines = [line.strip() for line in block.splitlines()]
    assert [line[:7] for line in lines[:3]] == ["entry 0", "entry 1", "way out"], text
    assert "s0 = 9: not" in text and "4611686018427387903" not in text
