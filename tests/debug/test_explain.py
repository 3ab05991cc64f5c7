"""explain(fn)(*args): the report of document C's toy example, and its fields."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler


def toy_example(a: Any, b: Any) -> Any:
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


OPS = 4 if sys.version_info >= (3, 13) else 5
"""Quirk of CPython 3.13: comparison and truth test are one instruction, which breaks the graph; the comparison runs
eagerly."""


def line_of(text: str) -> int:
    first = toy_example.__code__.co_firstlineno
    source = ["def", "x = ", "print", "if b", "b = b", "return"]
    return first + source.index(text)


@pytest.fixture
def report() -> Any:
    torch.manual_seed(0)
    return pycompiler.explain(toy_example)(torch.randn(10), torch.ones(10))


def test_counts(report: Any) -> None:
    assert (report.graph_count, report.graph_break_count, report.op_count) == (3, 2, OPS)
    assert len(report.graphs) == len(report.ops_per_graph) == 3
    assert [len(ops) for ops in report.ops_per_graph] == [3, OPS - 3, 1]
    assert all(isinstance(g, torch.fx.GraphModule) for g in report.graphs)
    assert report.out_guards


def test_reasons_have_file_line_and_hint(report: Any) -> None:
    first, second = report.break_reasons
    assert (first.kind, second.kind) == ("builtin-call", "data-dependent-jump")
    assert "print" in first.reason
    assert first.hint
    for record, text in ((first, "print"), (second, "if b")):
        frame = record.stack[-1]
        assert (frame.filename, frame.lineno) == (__file__, line_of(text))


def test_text(report: Any) -> None:
    text = str(report)
    for line in ("Graph Count: 3", "Graph Break Count: 2", f"Op Count: {OPS}", "Break Reason 1:", "Break Reason 2:",
                 "Ops per Graph:", "Out Guards:", "Compile Times", f"line {line_of('print')} in toy_example"):  # fmt: skip
        assert line in text


def test_the_text_of_a_model_shows_the_guards_that_calls_fail() -> None:
    """Of the 144 guards, most are about classes and hooks."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    report = pycompiler.explain(model)(torch.ones(4, 8))
    [guards] = report.out_guards
    text = str(report).partition("Guards 1:\n")[2].splitlines()
    assert len(guards) > 50
    assert text[0].strip() == "L['args'][0] is Tensor[4, 8] torch.float32 cpu strides [8, 1] requires_grad=False"
    assert sum(" is Parameter[" in line for line in text) == 4
    assert text[12].strip() == f"and {len(guards) - 12} others: see out_guards, or .html(path)"


def test_result_and_caches_are_left_alone() -> None:
    made = pycompiler.compile(lambda x: x + 1, backend="eager")
    report = pycompiler.explain(made)(torch.ones(2))
    assert report.result.tolist() == [2, 2]
    assert pycompiler.counters(made)["compiles"] == 0


def test_old_form_with_arguments() -> None:
    assert pycompiler.explain(toy_example, torch.ones(10), torch.ones(10)).graph_count == 3


def test_options_of_compile() -> None:
    def kernels(x: Any) -> Any:
        return x * x.shape[0] + 1

    report = pycompiler.explain(kernels, dynamic=True, backend="native")(torch.ones(3))
    assert [n.op for n in report.graphs[0].graph.nodes].count("placeholder") == 2  # the tensor, and its size
    assert report.document.graphs
    with pytest.raises(pycompiler.exc.Unsupported):
        pycompiler.explain(toy_example, fullgraph=True)(torch.ones(10), torch.ones(10))
    with pytest.raises(RuntimeError, match="dynamic must be None, True or False"):
        pycompiler.explain(kernels, dynamic=3)(torch.ones(3))


def test_a_parameter_of_the_function_is_no_option() -> None:
    def sized(x: Any, dynamic: bool = False, backend: str = "") -> Any:
        return x * 2 if dynamic else x, backend

    seen, backend = pycompiler.explain(sized, torch.ones(3), dynamic=True, backend="mine").result
    assert (seen.tolist(), backend) == ([2, 2, 2], "mine")


@pytest.mark.parametrize(
    "target, args",
    [
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.ones(1, 2),)),
        (torch.nn.functional.relu, (torch.ones(2),)),
        (torch.sin, (torch.ones(2),)),
        (nn.Linear(2, 2).forward, (torch.ones(1, 2),)),
    ],
    ids=["module", "function", "builtin", "method"],
)
def test_targets(target: Any, args: Any) -> None:
    report = pycompiler.explain(target)(*args)
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_functions_without_graphs() -> None:
    report = pycompiler.explain(lambda: 3)()
    assert (report.graph_count, report.graph_break_count, report.op_count, report.result) == (0, 0, 0, 3)
    assert "Graph Count: 0" in str(report)


def test_an_exception_reaches_the_user() -> None:
    def fn(x: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        pycompiler.explain(fn)(torch.ones(2))


def test_compile_times() -> None:
    pycompiler.explain(lambda x: x + 1)(torch.ones(2))
    assert "capture" in pycompiler.compile_times()
    headers, cells = pycompiler.compile_times(repr="csv", aggregate=True)
    assert len(headers) == len(cells) > 0
    assert all(float(cell) >= 0 for cell in cells)
