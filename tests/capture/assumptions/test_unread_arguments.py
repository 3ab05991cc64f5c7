"""Unread values: an argument or element that no inlined code reads gets no guard, even if it is passed on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

Program = Callable[[torch.Tensor, Any, Any], Any]


def unused(x: torch.Tensor, tag: Any, step: Any = 0) -> torch.Tensor:
    return x + 1


class Inner(torch.nn.Module):
    def one(self, x: torch.Tensor, tag: Any, *, step: Any = 0) -> torch.Tensor:
        return x * 2

    def forward(self, x: torch.Tensor, tag: Any, **more: Any) -> torch.Tensor:
        return self.one(x, tag, **more)


INNER = Inner()


def to_a_function(x: torch.Tensor, tag: Any, step: Any) -> Any:
    return unused(x, tag, step=step)


def to_a_module(x: torch.Tensor, tag: Any, step: Any) -> Any:
    return INNER(x, tag, step=step)


def spread(x: torch.Tensor, tag: Any, step: Any) -> Any:
    given, more = (tag,), {"step": step}
    return unused(x, *given, **more)


def unpacked(x: torch.Tensor, tag: Any, step: Any) -> Any:
    kept = []
    for key, value in ((tag, step), (step, tag)):
        kept.append(value)
    return unused(x, key, kept)


PROGRAMS = (to_a_function, to_a_module, spread, unpacked)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_it_may_be_anything(program: Program) -> None:
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(3)
    for tag, step in (("a", 2), ("b", 3), ("c", 4), ("d", 5)):
        assert torch.equal(compiled(x, tag, step), program(x, tag, step))
    assert compiled.counters()["compiles"] == 1


def test_elements_of_an_argument() -> None:
    def program(x: torch.Tensor, pairs: list[tuple[str, int]]) -> torch.Tensor:
        found = []
        for key, value in pairs:
            found.append(value)
        return unused(x, key, found)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for pairs in ([("a", 1), ("b", 2)], [("c", 3), ("d", 4)]):
        assert torch.equal(compiled(torch.ones(2), pairs), torch.full((2,), 2.0))
    assert compiled.counters()["compiles"] == 1


def test_what_is_looked_at_further_in_is_guarded() -> None:
    def inner(x: torch.Tensor, tag: str, scale: int) -> torch.Tensor:
        return x * scale if tag == "times" else x + scale

    def middle(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return inner(x, *given, **named)

    def program(x: torch.Tensor, tag: str, scale: int) -> torch.Tensor:
        return middle(x, tag, scale=scale)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for tag, scale in itertools.product(("times", "plus"), (2, 3)):
        assert torch.equal(compiled(torch.ones(2), tag, scale), program(torch.ones(2), tag, scale))


def test_an_element_is_what_it_was_before_the_writes() -> None:
    def program(given: list[Any], x: torch.Tensor) -> Any:
        first, second = given
        given[0], given[1] = x, "new"
        pycompiler.graph_break()
        return first, second, x + 1

    compiled = pycompiler.compile(program, backend="eager")
    for pair in ([1, "a"], [2, "b"]):
        mine = list(pair)
        first, second, _ = compiled(mine, torch.ones(2))
        assert [first, second] == pair
        assert mine[1] == "new"


def test_a_wrong_call_says_what_python_says() -> None:
    def program(x: torch.Tensor, tag: str) -> torch.Tensor:
        return unused(x, tag, tag, tag)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
        pycompiler.compile(program, backend="eager")(torch.ones(2), "a")
