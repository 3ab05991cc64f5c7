"""Sequences beside tensors: a one-element integer tensor repeats a sequence; other tensors raise the sequence's error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

SEEN: list[Any] = []


def repeated(x: Any, given: Any) -> Any:
    SEEN.append(1)  # the frame cannot start again after this
    try:
        return x + 1, given * x.int()[0], x.int()[0] * given
    except TypeError as e:
        return x + 1, str(e)


def joined(x: Any, given: Any) -> Any:
    SEEN.append(1)
    try:
        return given + x.clamp(min=3)
    except TypeError as e:
        return str(e)


def times_many(x: Any, given: Any) -> Any:
    SEEN.append(1)
    try:
        return x.clamp(min=3) * given
    except TypeError as e:
        return str(e)


def in_place(x: Any, given: Any) -> Any:
    SEEN.append(1)
    try:
        given *= x.int()[0]
        given += x
    except (TypeError, AttributeError) as e:
        return x + 1, str(e)
    return x + 1, str(given)


@pytest.mark.parametrize("program", [repeated, joined, times_many, in_place])
@pytest.mark.parametrize("given", [[1, 2], (1, 2), "ab", torch.Size([2]), {"a": 1}, {1}], ids=repr)
def test_as_eager(program: Any, given: Any) -> None:
    def outcome(run: Any) -> Any:
        SEEN.clear()
        copied = given.copy() if isinstance(given, (list, dict, set)) else given
        out = [run(torch.full((2,), 2.0), copied) for _ in range(2)]
        return out, copied

    assert_same(outcome(pycompiler.compile(program, backend="eager")), outcome(program), exact=True)
