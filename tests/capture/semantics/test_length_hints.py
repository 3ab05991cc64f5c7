"""Length hints: `__len__` and `__length_hint__` of a program's classes are called where CPython calls them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pycompiler


class Kept:
    def __init__(self, log: list[Any]) -> None:
        self.log = log


class Sized(Kept):
    def __iter__(self) -> Iterator[str]:
        self.log.append("iter")
        return iter("ab")

    def __len__(self) -> int:
        self.log.append("len")
        return 2


class Indexed(Kept):
    def __getitem__(self, k: int) -> str:
        self.log.append(k)
        return ("a", "b")[k]

    def __len__(self) -> int:
        self.log.append("len")
        return 2


class Unsure(Sized):
    def __len__(self) -> int:
        self.log.append("len")
        raise TypeError

    def __length_hint__(self) -> int:
        self.log.append("hint")
        return NotImplemented  # type: ignore[no-any-return]


class Wrong(Unsure):
    def __length_hint__(self) -> int:
        self.log.append("hint")
        return -1


class Letters(list[str]):
    def __init__(self, log: list[Any]) -> None:
        super().__init__("ab")
        self.log = log

    def __len__(self) -> int:
        self.log.append("len")
        return 2


def added(o: Any) -> list[str]:
    made = ["c"]
    made += o
    made.extend(o)
    return made


def stored(o: Any) -> list[str]:
    made = ["c", "d"]
    made[1:] = o
    return made


def unpacked(o: Any) -> list[str]:
    first, *rest = o
    one, two = o
    return [first, *rest, one, two]


def called(o: Any) -> tuple[str, ...]:
    return (lambda *args: args)("c", *o)


FORMS = [
    added, stored, unpacked, called, list, tuple, sorted, "".join, set, lambda o: [*o, "c"], lambda o: list(iter(o)),
    lambda o: [v for v in o], lambda o: list(itertools.product(o)), lambda o: list(zip(o, o)),
]  # fmt: skip


@pytest.mark.parametrize("cls", [Sized, Indexed, Unsure, Wrong, Letters])
def test_length_hints_are_asked_where_lists_are_made(cls: Callable[[list[Any]], Any]) -> None:
    for place, form in enumerate(FORMS):
        sides = []
        for call in (form, pycompiler.compile(lambda o, form=form: form(o), backend="eager")):
            log: list[Any] = []
            try:
                result = call(cls(log))
            except ValueError as error:
                result = str(error)
            sides.append((result, log))
        assert sides[0] == sides[1], place
