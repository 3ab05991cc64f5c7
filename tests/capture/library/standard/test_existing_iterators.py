"""Iterators created before the frame, or before a graph break: their next elements are read, and they advance as in eager."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler._native import GuardTree
from pycompiler.ir import iterator_state
from pycompiler.ir.guards import Guard, first_failure
from pycompiler.ir.source import Scope, local

NUMBERS = [3, 4, 5]
MAKERS: dict[str, Callable[[], Any]] = {
    "list": lambda: iter([1, 2, 3]),
    "empty list": lambda: iter([]),
    "tuple": lambda: iter((1, 2, 3)),
    "range": lambda: iter(range(1, 9, 3)),
    "long range": lambda: iter(range(2**70, 2**70 + 3)),
    "bytes": lambda: iter(b"abc"),
    "keys": lambda: iter({1: 2, 3: 4}),
    "values": lambda: iter({1: 2, 3: 4}.values()),
    "reversed keys": lambda: reversed({1: 2, 3: 4}),
    "set": lambda: iter({5, 6}),
    "reversed list": lambda: reversed([1, 2, 3]),
    "reversed tuple": lambda: reversed((1, 2, 3)),
    "count": lambda: itertools.islice(itertools.count(3, -2), 3),
    "repeat": lambda: itertools.repeat(3, 3),
    "zip": lambda: zip([1, 2, 3], (4, 5, 6), strict=False),
    "strict zip": lambda: zip([1, 2, 3], (4, 5, 6), strict=True),
    "enumerate": lambda: enumerate([4, 5, 6], 2),
    "items": lambda: iter({1: 2, 3: 4}.items()),
    "enumerate of a zip": lambda: enumerate(zip([1, 2, 3], range(9), strict=False)),
    "map": lambda: map(lambda v: v * 2, [1, 2, 3]),
    "filter": lambda: filter(lambda v: v != 2, [1, 2, 3]),
    "enumerate of a map": lambda: enumerate(map(lambda v: v * 2, [1, 2, 3])),
    "chain": lambda: itertools.chain([1, 2], [3]),
    "generator": lambda: (v for v in (1, 2, 3)),
}
STAYS = ("count", "strict zip", "enumerate of a map", "chain", "generator")
"""Iterators that do not show their next elements; `islice` is one of them."""


def number_of(value: Any) -> Any:
    return value % 1000 if isinstance(value, int) else sum(map(number_of, value))


def takes_one(x: torch.Tensor, it: Any) -> Any:
    value = next(it, None)
    return x - 1 if value is None else x * number_of(value), value


def takes_all(x: torch.Tensor, it: Any) -> Any:
    for value in it:
        x = x + number_of(value)
    return x


def lists(x: torch.Tensor, it: Any) -> Any:
    return x * 2, list(it)


def has_no_more(x: torch.Tensor, it: Any) -> Any:
    try:
        while True:
            x = x + number_of(next(it))
    except StopIteration:
        return x * 2


@pytest.mark.parametrize("fn", (takes_one, takes_all, lists, has_no_more))
@pytest.mark.parametrize("name", MAKERS)
def test_a_begun_iterator(name: str, fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for begun_by in (0, 1, 2, 9):
        one, other = MAKERS[name](), MAKERS[name]()
        for it in (one, other):
            list(itertools.islice(it, begun_by))
        x = torch.ones(2)
        assert repr(compiled(x, one)) == repr(fn(x, other))
        assert list(one) == list(other)
    broken = [b.kind for b in pycompiler.explain(fn)(torch.ones(2), MAKERS[name]()).break_reasons]
    assert bool(broken) is (name in STAYS)


def test_one_entry_does_for_each_place() -> None:
    """Guards compare the next elements, not the position: a loop around `next` does not compile for each step."""

    def step(x: torch.Tensor, it: Iterator[torch.Tensor]) -> torch.Tensor:
        return x + next(it)

    compiled = pycompiler.compile(step, backend="eager", fullgraph=True)
    it = iter([torch.full((2,), float(k)) for k in range(20)])
    for k in range(20):
        assert compiled(torch.zeros(2), it).tolist() == [k, k]
    assert compiled.counters()["compiles"] == 1
    with pytest.raises(StopIteration):
        pycompiler.compile(step, backend="eager")(torch.zeros(2), it)


def test_numbers_ahead_become_symbols() -> None:
    compiled = pycompiler.compile(takes_one, backend="eager")
    it = itertools.count(7)
    for k in range(20):
        assert compiled(torch.ones(2), it)[1] == 7 + k
    assert compiled.counters()["compiles"] == 2


def test_a_loop_that_breaks_around_next() -> None:
    def fn(x: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
        it = iter(values)
        while (value := next(it, None)) is not None:
            x = x + value
            pycompiler.graph_break()
        return x

    compiled = pycompiler.compile(fn, backend="eager")
    values = [torch.full((2,), float(k)) for k in range(30)]
    assert compiled(torch.zeros(2), values).tolist() == [435.0, 435.0]
    found = pycompiler.explain(fn)(torch.zeros(2), values)
    assert {b.kind for b in found.break_reasons} == {"explicit-break"}
    assert found.graph_count <= 3


def test_a_loop_that_breaks_goes_on_one_element_a_graph() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        for k in range(n):
            x = x + k
            pycompiler.graph_break()
        return x

    assert pycompiler.compile(fn, backend="eager")(torch.zeros(2), 30).tolist() == [435.0, 435.0]
    assert pycompiler.explain(fn)(torch.zeros(2), 30).graph_count <= 4


def rests(x: torch.Tensor, values: Any) -> Any:
    it = iter(values)
    x = x + next(it)
    pycompiler.graph_break()
    x = x + next(it)
    return x, list(it), next(it, None)


@pytest.mark.parametrize("values", ([1, 2, 3], (1, 2, 3), range(1, 4), {1: 0, 2: 0, 3: 0}, torch.arange(3.0)))
def test_carried_over_a_break(values: Any) -> None:
    found = pycompiler.explain(rests)(torch.ones(2), values)
    assert repr(found.result) == repr(rests(torch.ones(2), values))
    assert found.graph_count == 2
    assert [b.kind for b in found.break_reasons] == ["explicit-break"]


def test_two_that_ask_one() -> None:
    """The steps of an enumerate and of its inner iterator are distinguished, in any order of the steps."""

    def fn(x: torch.Tensor, numbered: Any, it: Any) -> Any:
        a, b, c = next(it), next(numbered), next(it)
        return x + a, b, c, next(numbered)

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for same in (True, False, True):
        made = []
        for _ in range(2):
            it = iter([1, 2, 3, 4, 5])
            made.append((enumerate(it if same else iter([7, 8, 9, 10, 11]), 5), it))
        one, other = made
        assert repr(compiled(torch.ones(2), *one)) == repr(fn(torch.ones(2), *other))
        assert [list(one[1]), list(one[0])] == [list(other[1]), list(other[0])]


def test_one_iterator_by_two_names() -> None:
    def fn(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x * 2, next(a), next(b), next(a)

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(2), iter([1, 2, 3]), iter([1, 2, 3]))[1:] == (1, 1, 2)
        it = iter([1, 2, 3])
        assert compiled(torch.ones(2), it, it)[1:] == (1, 2, 3)


def test_what_it_is_over_is_changed() -> None:
    def before(x: torch.Tensor, it: Any, values: list[int]) -> Any:
        values.insert(0, 9)
        return x * 2, next(it)

    def after(x: torch.Tensor, it: Any, values: list[int]) -> Any:
        first = next(it)
        values.append(9)
        return x * 2, first

    for fn in (before, after):
        compiled = pycompiler.compile(fn, backend="eager")
        for same in (False, True, False, True):
            made = []
            for _ in range(2):
                over = [1, 2, 3]
                it = iter(over)
                next(it)
                made.append((it, over if same else [1, 2, 3]))
            one, other = made
            assert compiled(torch.ones(2), *one)[1] == fn(torch.ones(2), *other)[1], (fn, same)
            assert list(one[0]) == list(other[0]) and one[1] == other[1]


def test_an_attribute_that_its_dict_gets() -> None:
    class Box:
        pass

    def fn(x: torch.Tensor, box: Any, it: Any) -> Any:
        box.new = 3
        return x * 2, next(it)

    compiled = pycompiler.compile(fn, backend="eager")
    for other in (True, False, True, False):
        box, beside = Box(), Box()
        box.a = beside.a = 1  # type: ignore[attr-defined]
        it = iter(vars(beside if other else box))
        if other:
            assert compiled(torch.ones(2), box, it)[1] == "a"
        else:
            with pytest.raises(RuntimeError, match="changed size"):
                compiled(torch.ones(2), box, it)


def test_the_last_step_lets_go() -> None:
    """At its end a list iterator drops its list, so elements appended later never come."""
    values = [1, 2]
    it = iter(values)
    assert pycompiler.compile(lists, backend="eager", fullgraph=True)(torch.ones(2), it)[1] == [1, 2]
    values.append(3)
    assert list(it) == []


def test_what_ends_with_the_last_step() -> None:
    class Noisy:
        def __del__(self) -> None:
            seen.append("end")

    def fn(x: torch.Tensor, it: Any, seen: list[str]) -> Any:
        next(it)
        next(it, None)
        seen.append("after")
        return x * 2

    compiled = pycompiler.compile(fn, backend="eager")
    seen: list[str] = []
    for make in (object, Noisy, object, Noisy):
        expected = ["end", "after"] if make is Noisy else ["after"]
        for run in (fn, compiled):
            seen.clear()
            run(torch.ones(2), iter([make()]), seen)
            assert seen == expected


def test_more_than_are_looked_at() -> None:
    def taken(x: torch.Tensor, it: Any) -> Any:
        return x + next(it)

    it = iter(range(10**9))
    assert pycompiler.compile(taken, backend="eager", fullgraph=True)(torch.zeros(2), it).tolist() == [0, 0]
    found = pycompiler.explain(takes_all)(torch.zeros(2), iter(range(iterator_state.MAX_ELEMENTS + 9)))
    assert found.result.tolist() == [sum(v % 1000 for v in range(iterator_state.MAX_ELEMENTS + 9))] * 2
    assert {b.kind for b in found.break_reasons} == {"running-iterator"}


def test_the_end_is_raised_after_a_write() -> None:
    def fn(x: torch.Tensor, it: Any, seen: list[int]) -> Any:
        seen.append(next(it))
        seen.append(next(it))
        return x * 2

    it: Any = iter([1])
    seen: list[int] = []
    with pytest.raises(StopIteration):
        pycompiler.compile(fn, backend="eager")(torch.ones(2), it, seen)
    assert seen == [1] and list(it) == []


def test_nothing_is_kept() -> None:
    class Held(list[int]):
        pass

    values = Held([1, 2, 3])
    gone = weakref.ref(values)
    it = iter(values)
    del values
    pycompiler.compile(takes_one, backend="eager")(torch.ones(2), it)
    del it
    assert gone() is None


def test_gradients_and_the_compiler() -> None:
    def fn(x: torch.Tensor, it: Any) -> Any:
        for w in it:
            x = (x * w).sin()
        return x.sum()

    weights = [torch.full((3,), v, requires_grad=True) for v in (0.5, 0.7)]
    want = torch.autograd.grad(fn(torch.ones(3), iter(weights)), weights)
    compiled = pycompiler.compile(fn, fullgraph=True)
    for _ in range(3):
        it = iter(weights)
        got = torch.autograd.grad(compiled(torch.ones(3), it), weights)
        assert list(it) == []
        torch.testing.assert_close(got, want)
    assert compiled.counters()["compiles"] == 1


@pytest.mark.parametrize("name", MAKERS)
def test_the_engine_reads_as_its_oracle(name: str) -> None:
    source = local("x")
    for what in ("rest", "over", "parts"):
        it = MAKERS[name]()
        next(it, None)
        at = source.then("begun", what)
        guards = [Guard("length", at, 2), Guard("equals", at.item(0), 2)]
        tree = GuardTree(guards, ("x",))
        for _ in range(3):
            for count in (1, 2):
                part = GuardTree(guards[:count], ("x",)) if count == 1 else tree
                native = part.check({"x": it}, {})
                assert native == first_failure(guards[:count], Scope({"x": it}, {})) or None not in (
                    native, first_failure(guards[:count], Scope({"x": it}, {})),
                )  # fmt: skip
        want = MAKERS[name]()
        next(want, None)
        assert list(it) == list(want)  # no check advanced it


ENDED: tuple[Callable[[], Any], ...] = (
    lambda: iter([1, 2]), lambda: iter((1, 2)), lambda: iter(range(2)), lambda: iter("ab"), lambda: iter({1: 2}.items()),
    lambda: iter({1}), lambda: reversed([1, 2]), lambda: reversed((1, 2)), lambda: reversed({1: 2}), lambda: enumerate([1]),
    lambda: zip([1], [2], strict=False), lambda: map(abs, [1]), lambda: filter(abs, [1]), lambda: itertools.chain([1], [2]),
    lambda: itertools.islice([1, 2], 1), lambda: itertools.takewhile(abs, [1]), lambda: itertools.pairwise([1, 2]),
)  # fmt: skip


@pytest.mark.parametrize("make", ENDED)
def test_one_that_was_made_and_has_ended_is_of_its_class(make: Callable[[], Any]) -> None:
    def fn(x: torch.Tensor) -> Any:
        it = make()
        for _ in it:
            x = x + 1
        return x, it

    y, it = pycompiler.compile(fn, backend="eager", fullgraph=True)(torch.zeros(1))
    assert type(it) is type(make()) and list(it) == []
    assert torch.equal(y, fn(torch.zeros(1))[0])


def _pause(value: Any) -> None:
    pycompiler.graph_break()


def test_what_several_lead_through_is_read_behind_what_is_ahead() -> None:
    """Graph inputs and the iterator of the resumed frame are both read through the same cell."""
    tensors, kept, log = [torch.arange(3.0), torch.tensor(1.5)], torch.ones(3), list[Any]()

    def program() -> None:
        def inner() -> None:
            for _ in functools.reduce(torch.add, tensors) + kept:
                log.append(_pause(tensors))

        inner()

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(3):
        compiled()
    assert log == [None] * 9
