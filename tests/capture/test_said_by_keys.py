"""What the interpreter tells exceptions; keys that have methods of their own; containers that change while they are compared."""

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
    """A key that counts what it is asked."""

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
