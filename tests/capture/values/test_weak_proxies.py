"""`weakref.proxy` in compiled functions."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import pycompiler


class Thing:
    def __init__(self) -> None:
        self.weight = torch.full((3,), 2.0)
        self.n = 2

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.n

    def __eq__(self, other: object) -> bool:
        return other == 2

    __hash__ = object.__hash__

    def __len__(self) -> int:
        return self.n

    def __add__(self, other: int) -> int:
        return self.n + other


X = torch.arange(3.0)


def attributes(x: torch.Tensor, p: Any) -> Any:
    return x * p.weight + p.n + p.times(x), hasattr(p, "n"), getattr(p, "none", 7), p.__class__ is Thing


def truth(x: torch.Tensor, p: Any) -> Any:
    return x + 1 if p else x


def stored(x: torch.Tensor, p: Any) -> Any:
    held = [p]
    return held, x + 1, p is None


@pytest.mark.parametrize("program", (attributes, truth, stored))
def test_attributes_of_a_proxy_are_captured(program: Any) -> None:
    thing = Thing()
    proxy = weakref.proxy(thing)
    compiled = pycompiler.compile(program, fullgraph=True, backend="eager")
    for n in (2, 3, 0, 2):
        thing.n = n
        a, b = compiled(X, proxy), program(X, proxy)
        if program is stored:
            assert a[0][0] is proxy and torch.equal(a[1], b[1]) and a[2] is False
        else:
            assert torch.equal(a[0], b[0]) and a[1:] == b[1:] if isinstance(a, tuple) else torch.equal(a, b)


@pytest.mark.parametrize(
    "program",
    (
        lambda x, p: (isinstance(p, Thing), x + 1),
        lambda x, p: (p == 2, x + 1),
        lambda x, p: (p != 2, x + 1),
        lambda x, p: (p + 1, x + 1),
        lambda x, p: (len(p), x + 1),
        lambda x, p: (type(p) is Thing, x + 1),
        lambda x, p: (callable(p), x + 1),
    ),
)
def test_what_else_a_proxy_passes_on_breaks_the_graph(program: Any) -> None:
    thing = Thing()
    proxy = weakref.proxy(thing)
    assert pycompiler.explain(program)(X, proxy).graph_break_count == 1
    assert pycompiler.compile(program, backend="eager")(X, proxy)[0] == program(X, proxy)[0]


def test_a_write_through_a_proxy() -> None:
    def program(x: torch.Tensor, p: Any) -> Any:
        p.n = x.dim() + 4
        return x * p.n

    thing = Thing()
    assert torch.equal(pycompiler.compile(program, backend="eager")(X, weakref.proxy(thing)), X * 5) and thing.n == 5


def test_a_proxy_of_nothing_raises() -> None:
    thing = Thing()
    proxy = weakref.proxy(thing)
    compiled = pycompiler.compile(lambda x: x * proxy.n, backend="eager")
    assert torch.equal(compiled(X), X * 2)
    del thing
    for _ in range(2):
        with pytest.raises(ReferenceError):
            compiled(X)


def test_an_object_that_has_a_proxy_is_captured() -> None:
    thing, ended = Thing(), list[int]()
    quiet = weakref.proxy(thing)

    def program(x: torch.Tensor, thing: Thing) -> Any:
        thing.other = thing  # type: ignore[attr-defined]
        del thing.other  # type: ignore[attr-defined]
        return x * thing.n

    assert torch.equal(pycompiler.compile(program, backend="eager")(X, thing), X * 2)
    loud = weakref.proxy(thing, lambda _: ended.append(1))

    def last(x: torch.Tensor, held: list[Any]) -> Any:
        held.clear()
        return x + len(ended)

    held = [thing]
    del thing
    assert torch.equal(pycompiler.compile(last, backend="eager")(X, held), X + 1) and ended == [1]
    del quiet, loud
