"""Exception context from the interpreter; keys with their own methods; containers that change during a comparison."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

KEY = functools.cmp_to_key(lambda a, b: a - b)


class Counted:
    """A key that counts its comparisons."""

    asked = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        Counted.asked += 1
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        Counted.asked += 100
        return isinstance(other, Counted) and self.value == other.value


class Number(int):
    asked = 0

    def __hash__(self) -> int:
        Number.asked += 1
        return int(self)

    def __eq__(self, other: object) -> bool:
        return int(self) == int(other)  # type: ignore[call-overload,no-any-return]


class Asked:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError("mine")


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: str


def attribute_error(x: Any) -> Any:
    a = Asked()
    try:
        a.name
    except AttributeError as e:
        found = e.name, e.obj is a, str(e)
    try:
        getattr(5, "other")  # noqa: B009
    except AttributeError as e:
        print(end="")
        return x + 1, found, e.name, e.obj
    return x


def name_error(x: Any) -> Any:
    try:
        return x + no_such_name  # type: ignore[name-defined]  # noqa: F821
    except NameError as e:
        return x + 1, e.name, str(e)


def pattern_error(x: Any) -> Any:
    try:
        re.compile("(")
    except re.error as e:
        return x + 1, e.pos, e.msg
    return x


def contexts(x: Any) -> Any:
    a, b = ValueError("a"), ValueError("b")
    try:
        try:
            raise a
        except ValueError:
            try:
                raise b
            except ValueError:
                raise a  # noqa: B904
    except ValueError:
        return x + 1, str(a.__context__), b.__context__


def no_traceback(x: Any) -> Any:
    try:
        raise ValueError
    except ValueError as e:
        try:
            e.__traceback__ = 5  # type: ignore[assignment]
        except TypeError as t:
            return x + 1, str(t)
    return x


def new_keys(x: Any) -> Any:
    d = {Counted(1): 2}
    d[Counted(2)] = 3
    d[Counted(1)] = 5
    e = {Counted(1), Counted(2)} | {Counted(2)}
    print(end="")
    return x + 1, Counted.asked, len(d), len(e)


def existing_keys(x: Any) -> Any:
    d = dict.fromkeys(map(Number, range(3)))
    print(end="")
    first = Number.asked
    return x + 1, first, len(set(d)), Number.asked


def changed_by_comparing(x: Any) -> Any:
    class Emptied:
        def __eq__(self, other: object) -> bool:
            two.clear()
            return NotImplemented

        __hash__ = None  # type: ignore[assignment]

    one: list[Any] = [Emptied()]
    two: list[Any] = [1]
    return x + 1, one == two


def written_in_c(x: Any, a: Any = KEY(3), b: Any = KEY(1)) -> Any:
    return x + 1, a > b, b < a, a == b


def behind_its_back(x: Any) -> Any:
    od = collections.OrderedDict([("a", 1), ("b", 2)])
    dict.__delitem__(od, "a")
    try:
        return x + 1, list(od.items())
    except KeyError as e:
        return x + 1, str(e)


@pytest.mark.parametrize(
    "program",
    [attribute_error, name_error, pattern_error, contexts, no_traceback, new_keys, existing_keys, changed_by_comparing,
     written_in_c,
     behind_its_back],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_as_eager(program: Callable[..., Any]) -> None:
    def outcome(fn: Callable[..., Any]) -> tuple[str, int, int]:
        Counted.asked = Number.asked = 0
        return str(fn(torch.ones(2))), Counted.asked, Number.asked

    expected = outcome(program)
    compiled = pycompiler.compile(program, backend="eager")
    assert outcome(compiled) == expected
    assert outcome(compiled) == expected


def test_a_frozen_dataclass_is_a_key_without_a_break() -> None:
    def program(x: Any) -> Any:
        d = {Point(1, "a"): x}
        d[Point(1, "a")] = x * 2
        return d

    assert str(pycompiler.compile(program, backend="eager", fullgraph=True)(torch.ones(1))) == str(
        program(torch.ones(1))
    )


class Told:
    """A key that logs its hash and equality calls; values that differ by ten share a hash."""

    log: list[str] = []

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        Told.log.append(f"hash {self.value}")
        return self.value % 10

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Told)
        Told.log.append(f"{self.value} == {other.value}")
        return self.value == other.value


class Far(Told):
    """A key whose large hash leads the table's probing to the same slot again."""

    def __hash__(self) -> int:
        Told.log.append(f"hash {self.value}")
        return 10**12 + self.value % 10


A, B, C = Told(1), Told(11), Told(21)


def fills() -> Any:
    made: dict[Told, int] = {A: 1}
    made[B] = 2
    made.update([(C, 3)])
    made[Told(11)] += 4
    del made[Told(21)]
    return list(made.values()), made.setdefault(Told(31), 6), made.setdefault(B, 7), made.pop(Told(1)), len(made)


def counts() -> Any:
    made: collections.defaultdict[Told, int] = collections.defaultdict(int)
    for key in (A, B, Told(11)):
        made[key] += 1
    return len(made), len(collections.Counter([A, B, A, C]))


def missing() -> Any:
    try:
        return {A: 1, B: 2}[C]
    except KeyError as e:
        return e.args[0] is C


def ordered() -> Any:
    made = collections.OrderedDict([(A, 1), (B, 2)])
    made.move_to_end(Told(1))
    return made.pop(Told(11)), len(made)


def far() -> Any:
    return len({Far(v): v for v in (1, 11, 21)}), (A, 1) in {(B, 1): 1}


EXISTING: dict[Told, int] = {}


@pytest.mark.parametrize(
    "program",
    [
        fills, counts, missing, ordered, far,
        lambda: len({key: 1 for key in (A, B, C)}),
        lambda: (C in {A: 1, B: 2}, Told(11) in {A: 1, B: 2}, Told(11) in {A, B}),
        lambda: (len(set([A, B, Told(11)])), len(frozenset([A, B])), len({A, B, C})),
        lambda: {A: 1, B: 2}.popitem()[1],
        lambda: ((A, 1) in {A: 1, B: 2}.items(), (C, 1) in {A: 1}.items(), 3 in {A: 1}.items()),
        lambda: (len({A: 1, B: 2, C: 3}.copy()), len(dict({A: 1, B: 2}))),
        lambda: ({A: 1, B: 2} | {C: 1} == {**{A: 1, B: 2}, C: 1}, {A, B} == {B, Told(1)}),
        lambda: (EXISTING[Told(11)], C in EXISTING, EXISTING.get(A), len(EXISTING)),
        lambda: (EXISTING.__setitem__(Told(21), 4), len(EXISTING)),
    ],
)  # fmt: skip
def test_keys_are_asked_what_eager_asks_them(program: Callable[[], Any]) -> None:
    def called(fn: Callable[..., Any]) -> Any:
        EXISTING.clear()
        EXISTING.update({A: 1, B: 2})
        Told.log.clear()
        return fn(torch.ones(2)), list(Told.log)

    def with_tensor(x: Any) -> Any:
        return program(), str(x + 1)

    expected = called(with_tensor)
    compiled = pycompiler.compile(with_tensor, backend="eager")
    assert called(compiled) == expected
    assert called(compiled) == expected
