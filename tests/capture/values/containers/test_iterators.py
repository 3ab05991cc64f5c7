"""Ends of iterators: a StopIteration from any called function ends the iterator, and the next step may continue."""

from __future__ import annotations

import functools
import itertools
import operator
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pycompiler

TOLD: list[Any] = []


def stops(*args: Any) -> Any:
    TOLD.append(args)
    if len(TOLD) % 5 == 3:
        raise StopIteration(args)
    return args[0]


def fails(*args: Any) -> Any:
    TOLD.append(args)
    if len(TOLD) % 3 == 2:
        raise KeyError(args)
    return args[0]


class Ends:
    """An object whose methods raise a StopIteration with the method's name."""

    def __repr__(self) -> str:
        return "Ends()"

    def __add__(self, other: object) -> Any:
        raise StopIteration("add")

    def __bool__(self) -> bool:
        raise StopIteration("bool")

    def __iter__(self) -> Iterator[Any]:
        raise StopIteration("iter")

    def __getattr__(self, name: str) -> Any:
        raise StopIteration(name)

    def __call__(self, *args: Any) -> Any:
        raise StopIteration("call")


class Places:
    """A sequence with `__len__` and `__getitem__`, whose last index raises."""

    def __init__(self, error: Exception, place: int = 2) -> None:
        self.error, self.place = error, place

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> int:
        TOLD.append(place)
        if place == self.place:
            raise self.error
        return place


class Again:
    """An iterator that continues after its end."""

    def __init__(self) -> None:
        self.n = 0

    def __iter__(self) -> Again:
        return self

    def __next__(self) -> int:
        self.n += 1
        if self.n % 3 == 0:
            raise StopIteration(self.n)
        return self.n


class Key:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Key)
        TOLD.append((self.n, other.n))
        return self.n // 10 == other.n // 10

    __hash__ = None  # type: ignore[assignment]


class Index:
    def __index__(self) -> int:
        raise KeyError("index")


MAKERS: dict[str, Callable[[], Any]] = {
    "map": lambda: map(stops, range(9)),
    "map of two": lambda: map(stops, range(9), map(stops, range(9))),
    "map of next": lambda: map(next, [iter([1]), iter(()), iter([2])]),
    "map of an object": lambda: map(Ends(), [1, 2]),
    "attrgetter": lambda: map(operator.attrgetter("q"), [Ends(), Ends()]),
    "itemgetter": lambda: map(operator.itemgetter(2), [Places(StopIteration("x")), [0, 1, 2]]),
    "filter": lambda: filter(stops, range(1, 9)),
    "filter of truths": lambda: filter(None, [1, Ends(), 2]),
    "filterfalse": lambda: itertools.filterfalse(stops, range(9)),
    "takewhile": lambda: itertools.takewhile(stops, range(1, 9)),
    "takewhile that has ended": lambda: itertools.takewhile(bool, [1, 0, 2]),
    "dropwhile": lambda: itertools.dropwhile(stops, [3, 2, 1, 4, 0, 5, 6]),
    "starmap": lambda: itertools.starmap(stops, [(1,), (2, 3), (4,), (5,)]),
    "accumulate": lambda: itertools.accumulate(range(9), stops),
    "accumulate by +": lambda: itertools.accumulate([Ends(), 2]),
    "compress": lambda: itertools.compress([1, 2, 3], [1, Ends(), 1]),
    "groupby": lambda: map(operator.itemgetter(0), itertools.groupby(range(9), key=stops)),
    "chain": lambda: itertools.chain(map(stops, range(9)), [9]),
    "chain of an object": lambda: itertools.chain([1], Ends(), [2]),
    "chain.from_iterable": lambda: itertools.chain.from_iterable(map(stops, [[1], [2], [3], [4]])),
    "zip": lambda: zip(map(stops, range(9)), range(9), strict=False),
    "zip_longest": lambda: itertools.zip_longest(map(stops, range(9)), [1, 2, 3, 4]),
    "enumerate": lambda: enumerate(map(stops, range(9))),
    "islice": lambda: itertools.islice(map(stops, range(9)), 7),
    "pairwise": lambda: itertools.pairwise(map(stops, range(9))),
    "cycle": lambda: itertools.islice(itertools.cycle(map(stops, range(9))), 7),
    "tee": lambda: itertools.tee(map(stops, range(9)))[1],
    "product": lambda: itertools.product(map(stops, range(9)), [1, 2]),
    "places": lambda: iter(Places(StopIteration("x"))),
    "reversed places": lambda: reversed(Places(StopIteration("x"), 1)),
    "reversed places, IndexError": lambda: reversed(Places(IndexError("x"), 1)),
    "map over what goes on": lambda: map(stops, Again()),
    "zip over what goes on": lambda: zip(Again(), Again(), strict=False),
    "cycle over what goes on": lambda: itertools.islice(itertools.cycle(Again()), 7),
    "chain over what goes on": lambda: itertools.chain(Again(), [5]),
    "zip_longest over what goes on": lambda: itertools.zip_longest(Again(), range(5)),
    "takewhile over what goes on": lambda: itertools.takewhile(bool, Again()),
    "islice over what goes on": lambda: itertools.islice(Again(), 9),
    "an error in map": lambda: map(fails, range(9)),
    "an error in islice": lambda: itertools.islice(map(fails, range(9)), 8),
    "an error in pairwise": lambda: itertools.pairwise(map(fails, range(9))),
    "an error in takewhile": lambda: itertools.takewhile(fails, range(1, 9)),
    "an error in dropwhile": lambda: itertools.dropwhile(fails, [3, 2, 1, 0, 5, 6]),
    "an error in compress": lambda: itertools.compress("abcde", map(fails, range(1, 6))),
    "an error in zip_longest": lambda: itertools.zip_longest(map(fails, range(9)), range(5)),
    "an error in chain": lambda: itertools.chain.from_iterable([[1], 3, [4]]),  # type: ignore[list-item]
    "an error in reversed": lambda: reversed(Places(KeyError("x"), 1)),
}


def _told(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as e:
        return type(e).__name__, str(e)


def taken(x: torch.Tensor, make: Callable[[], Any]) -> tuple[Any, ...]:
    """Called in a `try` after an operator; otherwise the frame could run again as written."""
    y = x * 2
    it = make()
    found = [_told(lambda: list(it)), _told(lambda: next(it)), _told(lambda: next(it, "end")), _told(lambda: list(it))]
    return y, found


CONSUMERS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "star": lambda make: [*make()],
    "sum": lambda make: sum(make()),
    "max": lambda make: max(make(), default=4),
    "sorted": lambda make: sorted(make()),
    "fromkeys": lambda make: dict.fromkeys(make()),
    "deque": lambda make: deque(make()),
    "arguments": lambda make: (lambda *a: a)(*make()),
    "in": lambda make: 7 in make(),
    "reduce": lambda make: functools.reduce(operator.add, make()),
    "comprehension": lambda make: [v for v in make()],
    "generator": lambda make: list(v for v in make()),
    "next of a generator": lambda make: next(v for v in make()),
    "extend": lambda make: [1].extend(make()),
    "groups": lambda make: [list(g) for _, g in itertools.groupby(make())],
    "mean": lambda make: statistics.mean(make()),
    "stack": lambda make: torch.stack([*map(torch.full, [(2,)] * 9, make())]).shape,
}


def consumed(x: torch.Tensor, consume: Callable[[Callable[[], Any]], Any]) -> tuple[Any, ...]:
    y = x * 2
    return y, _told(lambda: consume(MAKERS["map"]))


def yielded(x: torch.Tensor) -> tuple[Any, ...]:
    def give() -> Iterator[Any]:
        ended = yield from map(stops, range(9))
        yield "ended", ended

    y = x * 2
    return y, list(give())


def grouped(x: torch.Tensor) -> tuple[Any, ...]:
    y = x * 2
    groups = itertools.groupby([Key(1), Key(2), Key(13), Key(14), Key(25)])
    _, first = next(groups)
    found = [next(first).n]
    (_, second), kept = next(groups), [k.n for k in first]
    rest = [k.n for k in second], type(second).__name__, [k.n for k, _ in groups]
    letters = itertools.groupby("aaabb")
    last = next(letters)[1]
    return (
        y,
        found,
        kept,
        rest,
        next(last),
        [k for k, _ in letters],
        list(last),
    )  # a group ends when the next one is requested


def bounds(x: torch.Tensor, at: int) -> tuple[Any, ...]:
    y = x * 2
    given = [[Index()], [0, Index()], [Index(), 3], [0, 3, Index()]][at]
    return y, _told(lambda: list(itertools.islice([1, 2], *given)))


def _beside_eager(fn: Callable[..., Any], *args: Any) -> None:
    results = []
    compiled = pycompiler.compile(fn, backend="eager")
    for each in (fn, compiled):
        TOLD.clear()
        given = [each(torch.ones(2), *args)[1:] for _ in range(2)]
        results.append((given, TOLD[:]))
    assert str(results[0]) == str(results[1])
    counters = pycompiler.counters(compiled)
    assert counters["compiles"] and not counters["eager_calls"]


@pytest.mark.parametrize("name", MAKERS)
def test_iterators_end_as_in_cpython(name: str) -> None:
    _beside_eager(taken, MAKERS[name])


@pytest.mark.parametrize("name", CONSUMERS)
def test_whoever_asks_sees_the_end(name: str) -> None:
    _beside_eager(consumed, CONSUMERS[name])


@pytest.mark.parametrize("fn", [yielded, grouped], ids=lambda fn: str(fn.__name__))
def test_steps_in_between(fn: Callable[..., Any]) -> None:
    _beside_eager(fn)


@pytest.mark.parametrize("at", range(4))
def test_a_bound_of_a_slice_hides_what_its_index_raised(at: int) -> None:
    _beside_eager(bounds, at)
