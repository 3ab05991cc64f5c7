"""The guards that the pipeline adds, drops or turns into an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.errors import ArgumentError, UserError
from pycompiler.pipeline.guards import once

X = torch.ones(4, 6)


@pytest.mark.captures_nothing("one guard, checked without a frame")
def test_a_guard_of_one_call_holds_once() -> None:
    tree = _native.GuardTree([once()], ())
    assert [tree.check({}, {}) is None for _ in range(3)] == [True, False, False]


def test_a_filter_keeps_the_guards_that_it_answers_true_for() -> None:
    compiled = pycompiler.compile(
        lambda x, n: x + n,
        backend="eager",
        options={"guard_filter_fn": lambda entries: [entry.name != "L['n']" for entry in entries]},
    )
    assert torch.equal(compiled(X, 1), compiled(X, 5))
    assert torch.equal(compiled(X[0], 5), X[0] + 5)
    assert compiled.counters()["compiles"] == 2


@pytest.mark.parametrize(
    ("answer", "seen"),
    [(lambda entries: [True] * (len(entries) + 1), r"\d+ answers for \d+ guards"), (lambda entries: (), "0 answers"),
     (lambda entries: None, "None"), (lambda entries: 3, "3 for")],
)  # fmt: skip
def test_a_filter_answers_for_each_guard(answer: Callable[[Any], Any], seen: str) -> None:
    compiled = pycompiler.compile(lambda x: x + 1, backend="eager", options={"guard_filter_fn": answer})
    with pytest.raises(ArgumentError, match=f"returned {seen}"):
        compiled(X)


@pytest.mark.parametrize(
    ("fn", "why"),
    [(lambda x: x * len([0] * x.shape[0]), "is assumed as the number of times a sequence is repeated at "),
     (lambda x: x.reshape(4, 6), "is assumed at ")],
)  # fmt: skip
def test_a_marked_size_that_is_a_number_is_an_error_with_its_reason(fn: Callable[[Any], Any], why: str) -> None:
    x = X.clone()
    pycompiler.mark_dynamic(x, 0)
    with pytest.raises(UserError, match=f"is marked dynamic, but must be one number: s0 == 4 {why}"):
        pycompiler.compile(fn, backend="eager")(x)
