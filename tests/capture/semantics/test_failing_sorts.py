"""A sort whose comparison or key raises: the list ends as CPython leaves it, partly sorted or unchanged."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import pycompiler


class Refuses:
    def __init__(self, value: int, bad: int) -> None:
        self.value, self.bad = value, bad

    def __lt__(self, other: Refuses) -> bool:
        if (self.value + other.value * 7) % 13 == self.bad:
            raise ValueError((self.value, other.value))
        return self.value < other.value


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_lists_are_left_partly_sorted(seed: int, made: bool) -> None:
    rng = random.Random(seed)
    values = [rng.randint(0, 99) for _ in range(rng.randint(2, 60))]
    bad, backwards = rng.randint(0, 12), seed % 2 == 1

    def program(x: torch.Tensor, items: list[int]) -> Any:
        items = list(items) if made else items
        try:
            items.sort(key=lambda v: Refuses(v, bad), reverse=backwards)
        except ValueError as error:
            return x + 1, items[:3], list(items), str(error)
        return x + 1, items

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    given, want = list(values), list(values)
    for _ in range(2):
        expected = program(torch.ones(2), want)
        assert compiled(torch.ones(2), given)[1:] == expected[1:]
        assert given == want


@pytest.mark.parametrize("where", ["key", "types"])
def test_what_raises_ahead_leaves_it(where: str) -> None:
    def key(value: Any) -> Any:
        return 1 // (value - 3) if where == "key" else value

    def program(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        try:
            items.sort(key=key)
        except (ZeroDivisionError, TypeError):
            return x + 1
        return x

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        given: list[Any] = [9, 8, 3, 5, 4] if where == "key" else [9, 8, "a", 3]
        want = list(given)
        assert torch.equal(compiled(torch.ones(2), given), program(torch.ones(2), want))
        assert given == want
