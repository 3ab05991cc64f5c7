"""Enums created in a function: the program's code that runs during creation, and members that leave the graph."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

FACTOR = 1
TOLD: list[Any] = []


class Valued:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        TOLD.append("eq")
        return isinstance(other, Valued) and self.n == other.n

    def __hash__(self) -> int:
        TOLD.append("hash")
        return 1


class Asked:
    def __getattr__(self, name: str) -> Any:
        TOLD.append(name)
        raise AttributeError(name)


class Counting(enum.Enum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last: list[Any]) -> int:
        TOLD.append((name, count, [*last]))
        return count + FACTOR


class Scaled(int):
    def __new__(cls, value: int) -> Scaled:
        TOLD.append(value)
        return int.__new__(cls, value * FACTOR)


class AsksClasses(type):
    def __getattr__(cls, name: str) -> Any:
        TOLD.append(name)
        raise AttributeError(name)


class Named(metaclass=AsksClasses):
    pass


ONE, TWO, ASKED = Valued(1), Valued(2), Asked()


def by_init(x: Any) -> Any:
    class Made(enum.Enum):
        A = 1

        def __init__(self, value: int) -> None:
            TOLD.append(value)
            self.scaled = value * FACTOR

    return x * Made.A.scaled


def by_new(x: Any) -> Any:
    class Made(int, enum.Enum):
        A = 1

        def __new__(cls, value: int) -> Any:
            made = int.__new__(cls, value * FACTOR)
            made._value_ = value
            return made

    return x * Made.A


def by_new_of_aliases(x: Any) -> Any:
    class Made(int, enum.Enum):
        A = 1
        B = 1

        def __new__(cls, value: int) -> Any:
            made = int.__new__(cls, value * 10)
            made._value_ = value
            return made

    return x * int(Made.B) + len(Made.B.name) + (Made.B.name == "A")


def by_next_values(x: Any) -> Any:
    class Made(Counting):
        A = enum.auto()
        B = enum.auto()

    return x * Made.B.value


def by_setting(x: Any) -> Any:
    class Made(enum.Enum):
        A = 1

        def __setattr__(self, name: str, value: Any) -> None:
            TOLD.append(name)
            object.__setattr__(self, name, value)

    return x * Made.A.value


def by_values(x: Any) -> Any:
    class Made(enum.Enum):
        A = 1, ONE
        B = 1, TWO

    return x * Made.B.value[0]


def by_a_class_for_a_value(x: Any) -> Any:
    class Made(enum.Enum):
        A = Named
        B = 2

    return x * Made.B.value


def by_a_data_type(x: Any) -> Any:
    class Made(Scaled, enum.Enum):
        A = 2

    return x * int(Made.A)


def by_names(x: Any) -> Any:
    @enum.unique
    class Made(enum.Enum):
        A = 1

        @property
        def name(self) -> str:
            TOLD.append("name")
            return self._name_

    return x * Made.A.value


def by_what_is_abstract(x: Any) -> Any:
    class Made(abc.ABC):
        held = ASKED

    return x + len(Made.__mro__)


@pytest.mark.parametrize(
    "fn",
    [by_init, by_new, by_new_of_aliases, by_next_values, by_setting, by_values, by_a_class_for_a_value, by_a_data_type, by_names,
     by_what_is_abstract],
)  # fmt: skip
def test_code_that_runs_while_a_class_is_made_runs_in_each_call(
    fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for factor in (1, 2):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        TOLD.clear()
        expected, told = fn(torch.ones(2)), [*TOLD]
        TOLD.clear()
        assert torch.equal(compiled(torch.ones(2)), expected)
        assert told == TOLD
    assert {b.kind for b in pycompiler.explain(fn)(torch.ones(2)).break_reasons} >= {"builtin-call"}


def asks_nothing(x: Any) -> Any:
    class Made(enum.Enum):
        A = 1
        B = torch.float32
        C = (2, ("b", None))

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return cls.A

        def __str__(self) -> str:
            return "text"

        def __len__(self) -> int:
            return FACTOR

        @property
        def twice(self) -> int:
            return FACTOR * 2

    return x.to(Made.B.value) * Made.A.twice + len(Made.A), str(Made.A), Made(7).value, Made.C.value


def test_methods_that_nobody_calls_while_it_is_made_stay_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(asks_nothing, backend="eager", fullgraph=True)
    for factor in (1, 2):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert str(compiled(torch.ones(2))) == str(asks_nothing(torch.ones(2)))


def numbers(x: Any) -> Any:
    class Made(enum.IntEnum):
        A = 1
        B = 2
        C = 1

    return x + Made.B, Made, Made.A, Made.C, [*Made], {Made.A: 1}, {Made.B}, (Made(1), (Made["B"],))


def texts(x: Any) -> Any:
    class Made(enum.StrEnum):
        A = enum.auto()
        B = "text"

    return x + len(Made.B), Made, Made.A, Made("text"), f"{Made.A}", {Made.B: [Made.A]}


def numbers_of_flags(x: Any) -> Any:
    class Made(enum.IntFlag):
        A = 1
        B = 2

    return x + Made.A, Made, Made.A | Made.B, Made(0), ~Made.A, Made.A & Made.B, Made.A | 8, {Made.A | Made.B: Made.A}


def flags(x: Any) -> Any:
    class Made(enum.Flag):
        A = 1
        B = 2
        C = 4

    both = Made.A | Made.B
    return x + both.value, Made, both, Made(0), ~Made.A, Made.A & Made.C, [*both], {both: Made.C}


def plain(x: Any) -> Any:
    class Made(enum.Enum):
        A = 1.5

    return x * Made.A.value, Made, Made.A, {Made.A: 1}, {Made.A}, (Made(1.5),)


def members(found: Any) -> list[Any]:
    if isinstance(found, enum.Enum):
        return [found]
    if isinstance(found, dict):
        return [m for pair in found.items() for part in pair for m in members(part)]
    return [m for part in found for m in members(part)] if isinstance(found, (list, tuple, set)) else []


@pytest.mark.parametrize("fn", [numbers, texts, numbers_of_flags, flags, plain])
def test_members_that_leave_are_of_the_class_that_the_call_has_made(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    (y, *rest), expected = compiled(torch.ones(2)), fn(torch.ones(2))
    assert torch.equal(y, expected[0]) and repr(rest) == repr([*expected[1:]])
    made, again = rest[0], compiled(torch.ones(2))[1]
    assert made is not again and again.__bases__ == made.__bases__ == expected[1].__bases__
    found = members(rest[1:])
    assert len(found) == len(members(expected[2:])) and found
    assert all(type(m) is made and m is made(m.value) for m in found)
    assert compiled.counters()["compiles"] == 1


KEPT: dict[Any, Any] = {}


def goes_everywhere(x: Any) -> Any:
    class Made(enum.IntEnum):
        A = 1
        B = 2

    class Holds:
        held = Made.A

    def given(member: Made = Made.B) -> Made:
        return member

    KEPT.clear()
    KEPT[Made.A] = Made.B
    a = Made.A
    pycompiler.graph_break()
    return x + a, Made, a, Holds.held, given(), [*KEPT, *KEPT.values()]


def test_members_reach_what_the_frame_leaves_behind() -> None:
    compiled = pycompiler.compile(goes_everywhere, backend="eager")
    for _ in range(2):
        (y, made, *rest), expected = compiled(torch.ones(2)), goes_everywhere(torch.ones(2))
        assert torch.equal(y, expected[0]) and repr(rest) == repr([*expected[2:]])
        assert all(type(m) is made for m in members(rest))
