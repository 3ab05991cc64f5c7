"""copy.copy and copy.deepcopy of a program's objects, in one graph."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import threading
import types
import typing
from typing import Any

import pytest
import torch

import pycompiler


class Config:
    def __init__(self) -> None:
        self.width, self.table, self.nothing = 2, {"k": [1, 2]}, None

    def derived(self) -> Config:
        other = copy.deepcopy(self)
        other.width = 5
        return other


class Base:
    __slots__ = ("__hidden", "p")

    def __init__(self) -> None:
        self.__hidden = [3]

    def hidden(self) -> list[int]:
        return self.__hidden


class Slots(Base):
    __slots__ = ("__dict__", "q", "unset")

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q, self.more = 2, [1], [5]


class Stateful:
    def __init__(self) -> None:
        self.n = [1]

    def __getstate__(self) -> Any:
        return {"n": [*self.n, 7]}

    def __setstate__(self, state: Any) -> None:
        self.n = [*state["n"], 8]


class Reduced:
    def __init__(self, n: int) -> None:
        self.n = n

    def __reduce__(self) -> Any:
        return Reduced, (self.n + 1,)


class Made:
    def __new__(cls, n: int, *, m: int = 0) -> Made:
        self = super().__new__(cls)
        self.made = (n, m)  # type: ignore[attr-defined]
        return self

    def __getnewargs_ex__(self) -> Any:
        return (4,), {"m": 6}


class Items(list[int]):
    pass


class Table(dict[str, int]):
    pass


class Own:
    def __deepcopy__(self, memo: Any) -> Any:
        return [1, 2, 3, len(memo) > 0]


def config(x: Any) -> Any:
    given = Config()
    other = given.derived()
    other.table["k"].append(3)
    return x * other.width, given.width, given.table, other.table, other.nothing, type(other) is Config


def shallow(x: Any) -> Any:
    given = Config()
    other = copy.copy(given)
    other.width = 7
    return x * given.width, other.table is given.table, other.width


def slots(x: Any) -> Any:
    given = Slots()
    other = copy.deepcopy(given)
    other.q.append(2)
    other.hidden().append(4)
    other.more.append(6)
    return (
        x * len(other.q),
        other.hidden(),
        given.hidden(),
        given.q,
        given.more,
        other.more,
        other.p,
        hasattr(other, "unset"),
    )


def states(x: Any) -> Any:
    return x + 1, copy.copy(Stateful()).n, copy.deepcopy(Stateful()).n


def reduces(x: Any) -> Any:
    return x + 1, copy.copy(Reduced(3)).n, copy.deepcopy(Reduced(5)).n


def makes(x: Any) -> Any:
    other = copy.deepcopy(Made(1, m=2))
    return x + 1, other.made  # type: ignore[attr-defined]


def containers(x: Any) -> Any:
    items, table = Items([1, 2]), Table(a=1)
    items.z, table.z = [3], 4  # type: ignore[attr-defined]
    more, other = copy.copy(items), copy.deepcopy(table)
    more.append(9)
    other["b"] = 2
    return (
        x + len(more),
        list(items),
        list(more),
        more.z is items.z,
        dict(table),
        dict(other),
        other.z,
        type(other) is Table,
    )  # type: ignore[attr-defined]


def own(x: Any) -> Any:
    return x + 1, copy.deepcopy({"a": Own(), "b": (Own(), [])})


def circles(x: Any) -> Any:
    given = Config()
    given.table["self"] = [given]  # type: ignore[list-item]
    other = copy.deepcopy(given)
    return x + 1, other.table["self"][0] is other, other.table["self"][0] is not given


@pytest.mark.parametrize(
    "program", [config, shallow, slots, states, reduces, makes, containers, own, circles], ids=lambda f: f.__name__
)
def test_copies_are_as_eagers(program: Any) -> None:
    x = torch.ones(2)
    expected = program(x)
    found = pycompiler.compile(program, backend="eager", fullgraph=True)(x)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_copies_of_existing_objects() -> None:
    """The originals are guarded and stay unchanged."""
    given = Slots()
    given.unset = 0  # an empty slot of an existing object breaks the graph

    def program(x: Any) -> Any:
        other = copy.deepcopy(given)
        other.q.append(2)
        return x * len(other.q), other

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for elements in ([1], [1], [1, 5]):
        given.q[:] = elements
        found, other = compiled(torch.ones(1))
        assert float(found) == len(elements) + 1
        assert other.q == [*elements, 2]
        assert given.q == elements
        assert type(other) is Slots
    assert pycompiler.counters(compiled)["compiles"] == 2


@pytest.mark.parametrize("value", [slice(1, 2), 3j, range(3), Exception("a")], ids=lambda v: type(v).__name__)
def test_other_classes_break_or_copy(value: Any) -> None:
    def program(x: Any) -> Any:
        return x + 1, copy.copy(value), copy.deepcopy([value])

    found, expected = pycompiler.compile(program, backend="eager")(torch.ones(1)), program(torch.ones(1))
    assert repr(found[1:]) == repr(expected[1:])


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "make", [threading.Lock, Locked, lambda: itertools.count(3), lambda: functools.partial(max, 1)]
)
def test_what_c_keeps_is_refused_as_in_eager(make: Any) -> None:
    given = make()

    def program(x: Any) -> Any:
        found = []
        for how in (copy.copy, copy.deepcopy):
            try:
                found.append(type(how(given)))
            except TypeError as error:
                found.append(str(error))  # type: ignore[arg-type]
        return x + 1, found

    x = torch.ones(1)
    assert pycompiler.compile(program, backend="eager")(x)[1] == program(x)[1]


UNION: Any = int | str


def test_a_union_of_classes_is_read() -> None:
    """Dataclasses that check their field types (transformers' configurations) read the parts of the union."""
    global UNION

    def program(x: Any) -> Any:
        return x + 1, typing.get_args(UNION), typing.get_origin(UNION), UNION.__parameters__

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1))[1:] == ((int, str), types.UnionType, ())
    before, UNION = UNION, float | None
    try:
        assert compiled(torch.ones(1))[1:] == program(torch.ones(1))[1:] == ((float, type(None)), types.UnionType, ())
    finally:
        UNION = before


ASKED: list[str] = []


class Watched:
    __slots__ = ("size", "unset", "__dict__")

    def __init__(self) -> None:
        self.size, self.t = 2, 3

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        return super().__getattribute__(name)


def copied(x: torch.Tensor) -> Any:
    made = copy.copy(Watched())
    return x + 1, made


def copied_of_one_s_own(x: torch.Tensor) -> Any:
    made = Watched()
    made.__reduce__ = None  # type: ignore[method-assign, assignment]  # `copy` reads the class
    return x + 1, copy.copy(made)


@pytest.mark.parametrize("program", [copied, copied_of_one_s_own])
def test_a_copy_asks_for_what_python_asks_for(program: Any) -> None:
    seen = []
    for fn in (program, pycompiler.compile(program, backend="eager", fullgraph=True)):
        ASKED.clear()
        fn(torch.ones(2))
        seen.append([*ASKED])
    assert seen[0] == seen[1]
    assert seen[0].count("size") == 1


def test_a_class_is_asked_of_nobody() -> None:
    def program(x: torch.Tensor, o: Watched) -> Any:
        print(end="")
        return x + 1, copy.copy(o)

    seen = []
    for fn in (program, pycompiler.compile(program, backend="eager")):
        o = Watched()
        ASKED.clear()
        fn(torch.ones(2), o)
        seen.append([*ASKED])
    assert seen[0] == seen[1]


def test_attributes_of_an_ordered_dict_that_exists() -> None:
    """An entry must not assume that the dict never gets attributes."""

    def program(x: Any, o: Any) -> Any:
        return getattr(o, "z", 0), list(o.items()), x + 1

    compiled = pycompiler.compile(program, backend="eager")
    x = torch.ones(1)
    for change in ({}, {"z": 5}, {"items": lambda: ["mine"]}, {}):
        o = collections.OrderedDict(a=1)
        vars(o).update(change)
        assert compiled(x, o)[:2] == program(x, o)[:2]
