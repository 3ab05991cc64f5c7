"""`torch.func.linearize`, operators that call a function, and annotation contexts: one graph with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.wrap import wrap
from torch.func import linearize
from torch.fx.traceback import annotate, annotate_fn

import pycompiler
from tests.harness.compare import assert_same_calls

X = torch.linspace(-1, 2, 6).reshape(2, 3)
W = torch.linspace(0, 1, 9).reshape(3, 3)


def once(x: Any) -> Any:
    value, push = linearize(lambda x: (x @ W).sin(), x)
    return value, push(x + 1), push(torch.ones_like(x))


def several(x: Any) -> Any:
    value, push = linearize(lambda d, y: {"a": d["x"] * y, "b": (y.exp(), d["x"].sum())}, {"x": x}, x * 2)
    return value, push({"x": torch.ones_like(x)}, x.cos())


def in_a_loop(x: Any) -> Any:
    _, push = linearize(torch.tanh, x)
    for _ in range(3):
        x = push(x)
    return x


def not_of_all(x: Any) -> Any:
    return linearize(lambda x, y: (x * 2, y.sin(), W), x, x + 1)[1](x, x)[:2]


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "native"))
@pytest.mark.parametrize("fn", (once, several, in_a_loop, not_of_all))
def test_linearize(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))
    assert compiled.counters()["compiles"] == 1


def wrong_size(x: Any) -> Any:
    return linearize(torch.sin, x)[1](x[0])


def wrong_tree(x: Any) -> Any:
    return linearize(torch.sin, x)[1]((x, x))


def written(x: Any) -> Any:
    x = x + 1
    _, push = linearize(torch.sin, x)
    x.mul_(2)
    return push(torch.ones_like(x))


def random(x: Any) -> Any:
    torch.manual_seed(0)
    return linearize(lambda x: x * torch.rand(3), x)[1](x)


def with_gradients(x: Any) -> Any:
    x = x.clone().requires_grad_()
    return linearize(lambda x: x.sin() * x, x)[1](x.detach()).detach()


@pytest.mark.parametrize("fn", (wrong_size, wrong_tree, written, random, with_gradients))
def test_what_else_linearize_does_is_eagers(fn: Callable[..., Any]) -> None:
    assert_same_calls(pycompiler.compile(fn), fn, lambda: (X.clone(),))


@annotate_fn({"stage": 1})
def annotated(x: Any) -> Any:
    return x.cos()


def contexts(x: Any) -> Any:
    with annotate({"stage": 0}):
        y = annotated(x)
    return y + wrap(lambda y: y.sin(), y) + strict_mode(lambda y, z: y * z, (y, x))


def test_contexts_and_operators_that_call() -> None:
    compiled = pycompiler.compile(contexts, fullgraph=True)
    torch.testing.assert_close(compiled(X), contexts(X))


def test_an_annotation_around_a_break() -> None:
    def program(x: Any) -> Any:
        with annotate({"stage": 0}):
            x = x.sin()
            pycompiler.graph_break()
            return annotated(x)

    report = pycompiler.explain(program)(X)
    assert (report.graph_count, report.graph_break_count) == (2, 1)
    torch.testing.assert_close(pycompiler.compile(program)(X), program(X))


def test_what_torch_traces_behind_a_break_compiles_no_tables(caplog: pytest.LogCaptureFixture) -> None:
    """torch creates modules there, with attributes of many kinds."""

    def program(x: Any) -> Any:
        y, push = torch.func.linearize(torch.sin, x)
        return y.sum() + push(torch.ones(3)).sum()

    x = torch.ones(3, requires_grad=True)
    expected = program(x)
    compiled = pycompiler.compile(program)
    with caplog.at_level("WARNING", "pycompiler"):
        torch.testing.assert_close(compiled(x), expected)
    assert "recompile limit" not in caplog.text
