"""Enum members whose classes have code of the program: as keys, as operands, in strings."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler

FACTOR = 1
TOLD: list[Any] = []


class Alike(enum.Enum):
    A = 1
    B = 2

    def __hash__(self) -> int:
        TOLD.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        TOLD.append("eq")
        return True


class ByName(enum.Enum):
    A = 1
    B = 2
    __hash__ = enum.Enum.__hash__

    def __eq__(self, other: object) -> bool:
        TOLD.append("eq")
        return True


class ByNameToo(enum.Enum):
    A = 1
    B = 2
    __hash__ = enum.Enum.__hash__

    def __eq__(self, other: object) -> bool:
        TOLD.append("eq too")
        return True


class Plain(enum.Enum):
    A = 1
    B = 2


class AlikeNumbers(enum.IntEnum):
    A = 1
    B = 2

    def __hash__(self) -> int:
        TOLD.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        TOLD.append("eq")
        return True


class Number(enum.IntEnum):
    A = 1
    B = 2

    def __init__(self, value: int) -> None:
        self.doubled = 2 * value

    def __add__(self, other: Any) -> Any:
        TOLD.append("add")
        return int(self) * FACTOR

    def __lt__(self, other: Any) -> bool:
        return FACTOR == 1

    def __bool__(self) -> bool:
        return FACTOR == 2


class Helped(enum.IntEnum):
    A = 1
    B = 2

    def __init__(self, value: int) -> None:
        self.doubled = 2 * value

    @property
    def scaled(self) -> int:
        TOLD.append("scaled")
        return self.value * FACTOR

    @classmethod
    def last(cls) -> Helped:
        return cls.B

    @staticmethod
    def factor() -> int:
        return FACTOR

    def sum(self, other: int) -> int:
        return self.value * FACTOR + other


class Text(str, enum.Enum):
    A = "a"
    B = "b"

    def __str__(self) -> str:
        TOLD.append("str")
        return self.value * FACTOR


class Formatted(str, enum.Enum):
    A = "a"

    def __format__(self, spec: str) -> str:
        return f"{spec}|" * FACTOR


class Shown(enum.IntEnum):
    A = 1

    def __repr__(self) -> str:
        return "A" * FACTOR


class ShownAsNumber(enum.IntEnum):
    A = 1

    def __str__(self) -> str:
        return "A" * FACTOR


def stored(x: Any) -> Any:
    found = {Alike.A: 1, Alike.B: 2}
    return x + len(found), len({Alike.A, Alike.B}), found[Alike.B], Alike.B in {Alike.A: 1}


def by_name(x: Any) -> Any:
    return x + len({ByName.A: 1, ByNameToo.A: 2}), len({ByName.A, ByName.B})


def plain(x: Any) -> Any:
    return x + {Plain.A: 1, Plain.B: 2}[Plain.B], {Plain.A: 1, Plain.B: 2}


def made(x: Any) -> Any:
    class Made(enum.Enum):
        A = 1
        B = 2

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            TOLD.append("eq")
            return True

    return x + len({Made.A: 1, Made.B: 2}), len({Made.A, Made.B})


def alike_numbers(x: Any) -> Any:
    found = AlikeNumbers.A.name, AlikeNumbers.A.value, AlikeNumbers.B
    return x + found[1], found, len({AlikeNumbers.A, AlikeNumbers.B}), AlikeNumbers.A == 7


def computes(x: Any) -> Any:
    first = 1 if Number.A else 2
    return x + (Number.A + 1), first, Number.A < Number.B, Number.A.doubled


def helped(x: Any) -> Any:
    scaled = Helped.A.scaled + Helped.factor() + Helped.A.sum(Helped.A.doubled)
    return x * scaled, Helped.A.last(), Helped.B.name, Helped.A.bit_length(), Helped.A + 1


def texts(x: Any) -> Any:
    first = f"{Text.A}", f"{Text.A!s:>5}", f"{Text.A!r}", str(Text.B), "%s" % Text.A, "%s, %s" % (Text.A, 1)
    return x + 1, first, "{}, {a}".format(Text.A, a=Text.B), format(Text.A), Text.A + "b", "".join([Text.A, Text.B])


def formats(x: Any) -> Any:
    return x + 1, f"{Formatted.A:>3}", format(Formatted.A, "s"), "{:d}".format(Formatted.A), str(Formatted.A)


def shows(x: Any) -> Any:
    return x + 1, repr(Shown.A), f"{Shown.A!r}", repr([Shown.A]), f"{ShownAsNumber.A}", f"{ShownAsNumber.A:3}"


def in_an_error(x: Any) -> Any:
    try:
        raise ValueError(Text.A)
    except ValueError as e:
        return x + 1, str(e)


BREAKS: dict[Callable[..., Any], bool] = {
    stored: False, by_name: False, plain: False, made: False, alike_numbers: True, computes: True, helped: False,
    texts: False, formats: False, shows: False, in_an_error: True,
}  # fmt: skip


@pytest.mark.parametrize("fn", list(BREAKS))
def test_code_of_the_program_is_asked_in_each_call(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for factor in (1, 2, 2, 3):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        TOLD.clear()
        expected, told = repr(fn(torch.ones(2))), [*TOLD]
        TOLD.clear()
        found = compiled(torch.ones(2))
        assert (TOLD, repr(found)) == (told, expected)
    assert bool(pycompiler.explain(fn)(torch.ones(2)).graph_break_count) is BREAKS[fn]


def test_what_the_program_sets_of_a_member_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        return x * Helped.A.doubled

    compiled = pycompiler.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setattr(Helped.A, "doubled", 5)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))


class Derived(int):
    pass


def test_new_of_a_derived_class_gives_another_object_each_time() -> None:
    def fn(x: Any) -> Any:
        made = int.__new__(Derived, 3)
        made.seen = x + 1  # type: ignore[attr-defined]
        return x + 1, made

    compiled = pycompiler.compile(fn, backend="eager")
    (_, first), (_, second) = compiled(torch.ones(2)), compiled(torch.zeros(2))
    assert first is not second and type(first) is Derived and first == 3
    assert torch.equal(first.seen, torch.full((2,), 2.0)) and torch.equal(second.seen, torch.ones(2))


def test_an_enumeration_that_is_still_made_has_as_many_members_as_then() -> None:
    """The program's own code sees the class while it grows, so an earlier reading must not become a constant."""

    def seen(cls: Any, x: torch.Tensor) -> Any:
        found: list[Any] = [[m.value for m in cls], len(cls), 2 in [m.value for m in cls]]
        try:
            found += [cls["b"].value, cls(2).value]
        except (KeyError, ValueError, TypeError) as e:
            found.append(type(e))
        return found, x + 1

    def told(call: Any) -> list[Any]:
        log = []

        class Watched(enum.Enum):
            def __init__(self, *args: Any) -> None:
                log.append(call(type(self), torch.ones(1))[0])

        class Made(Watched):
            a = 1
            b = 2
            c = 3

        return [*log, call(Made, torch.ones(1))[0]]

    assert told(pycompiler.compile(seen, backend="eager")) == told(seen)


class Told(enum.IntEnum):
    """An enum built like `http.HTTPStatus` and the parameter kinds of `inspect`."""

    A = 3, "first"
    B = 5, "second"

    def __new__(cls, value: int, text: str) -> Told:
        made = int.__new__(cls, value)
        made._value_, made.text = value, text  # type: ignore[attr-defined]
        return made


def test_members_that_a_method_of_the_programs_has_made_are_numbers() -> None:
    def program(x: torch.Tensor, one: Any) -> Any:
        return x * 2, one == Told.B, one in (Told.A, Told.B), {Told.A: 1}.get(one), one + 1, one.text, one > Told.A

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for one in Told:
        assert compiled(torch.ones(1), one)[1:] == program(torch.ones(1), one)[1:]
