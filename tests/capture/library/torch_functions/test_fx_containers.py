"""Containers of torch.fx: mapped functions and refused operations."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.fx.immutable_collections import immutable_list
from torch.fx.node import map_aggregate

import pycompiler

Pair = collections.namedtuple("Pair", "a b")
X = torch.ones(2)


@pytest.mark.parametrize(
    "given", [[X, [X, (X,)]], {"a": X, "b": [X, 2]}, (X, Pair(X, 1), slice(1, None, 3)), X],
    ids=["list", "dict", "tuple", "leaf"],
)  # fmt: skip
def test_map_aggregate(given: Any) -> None:
    def program(given: Any, fn: Any) -> Any:
        return map_aggregate(given, fn)

    def double(leaf: Any) -> Any:
        return leaf if leaf is None else leaf * 2

    def kinds(made: Any) -> Any:
        inner = made.values() if isinstance(made, dict) else made if isinstance(made, (list, tuple)) else ()
        return type(made), [kinds(item) for item in inner]

    want = program(given, double)
    got = pycompiler.compile(program, backend="eager", fullgraph=True)(given, double)
    assert kinds(got) == kinds(want) and str(got) == str(want)


def test_what_may_not_change() -> None:
    def program(items: list[torch.Tensor], x: torch.Tensor) -> Any:
        kept = immutable_list(items)
        try:
            kept.append(x)
        except TypeError as e:
            return kept[0] + 1, len(kept), str(e)

    want, got = program([X], X), pycompiler.compile(program, backend="eager", fullgraph=True)([X], X)
    assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
