"""`config.debug_function`: frames of one name are compiled, however they are reached; all others run uncompiled."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import config, logs
from pycompiler.capture.interpreter.evaluation import HANDLERS


def wanted(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def between(x: torch.Tensor, *rest: int, scale: float = 2.0, **more: int) -> torch.Tensor:
    return wanted(x) * scale + sum(rest) + sum(more.values())


def outer(x: torch.Tensor, y: int = 3) -> torch.Tensor:
    return between(x, 1, 2, scale=0.5, z=y) + wanted(x)


def closure() -> Callable[..., Any]:
    bias = torch.ones(3)

    def inner(x: torch.Tensor, *, k: int = 2) -> torch.Tensor:
        return wanted(x) + bias * k

    return lambda x: inner(x) + inner(x, k=5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wanted(x) + self.wanted(x * 2)


class Watching:
    """A backend that records the functions of its graphs, and their numbers of operators."""

    def __init__(self) -> None:
        self.operators: list[int] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.operators.append(sum(n.op.startswith("call_") for n in gm.graph.nodes))
        return gm.forward


@pytest.mark.parametrize(
    "make", [lambda: outer, closure, lambda: Model(), lambda: wanted], ids=["nested", "closure", "module", "itself"]
)
def test_only_frames_of_that_name_are_compiled(make: Callable[[], Any]) -> None:
    target, watching, x = make(), Watching(), torch.randn(3)
    with config.patch(debug_function="wanted"):
        compiled = pycompiler.compile(target, backend=watching)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), target(x))
    assert watching.operators == [2]  # of `wanted`, once


def test_nobody_has_the_name() -> None:
    watching = Watching()
    with config.patch(debug_function="nobody"):
        compiled = pycompiler.compile(outer, backend=watching)
        torch.testing.assert_close(compiled(torch.ones(3), y=4), outer(torch.ones(3), y=4))
    assert watching.operators == []


@pytest.mark.captures_nothing("the handler raises, and the frame runs as written")
def test_wont_convert_names_function_file_line_cause_and_user_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(frame: Any, instruction: Any) -> None:
        raise IndexError("a bug in a handler")

    monkeypatch.setitem(HANDLERS, "UNARY_NEGATIVE", bug)

    def below(x: torch.Tensor) -> torch.Tensor:
        return -x

    def test_assertion_error(x: torch.Tensor) -> torch.Tensor:
        return below(x) + 1

    logging.getLogger(logs.ROOT).propagate = True
    for verbose in (False, True):
        caplog.clear()
        with config.patch(raise_internal_errors=False, verbose=verbose):
            assert pycompiler.compile(test_assertion_error, backend="eager")(torch.ones(2)).tolist() == [0, 0]
        [record] = [r for r in caplog.records if "WON'T CONVERT" in r.getMessage()]
        text = record.getMessage()
        line = test_assertion_error.__code__.co_firstlineno
        assert record.levelno == logging.ERROR
        assert re.match(rf"WON'T CONVERT \S*test_assertion_error {re.escape(__file__)} line {line}: ", text)
        cause, _, user = text.partition("from user code:")
        assert "IndexError: a bug in a handler" in cause
        assert ("Traceback (most recent call last)" in cause) is verbose
        assert ("config.verbose = True" in user) is not verbose
        assert re.search(r"in test_assertion_error\n +return below\(x\) \+ 1\n.* in below\n +return -x", user)
