"""Standard library modules in C: `re` on constants, `heapq`, `bisect`."""

from __future__ import annotations

import bisect
import collections
import datetime
import heapq
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import torch
from torch import Tensor

import pycompiler

X = torch.zeros(2)
PATTERN = re.compile(r"(?P<a>\d+)-(\w+)")


class Ranked:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: Any) -> bool:
        return bool(self.rank < other.rank)


def groups(x: Tensor) -> Any:
    m = PATTERN.match("12-ab")
    assert m
    return x + int(m.group(1)) + len(m["a"]) + m.end() + len(m.groups()) + len(m.groupdict()), m.string, m.re is PATTERN


def functions(x: Tensor) -> Any:
    found = (
        re.findall("a", "banana"),
        re.split("n", "banana"),
        re.search("z", "abc"),
        re.escape("a.b"),
        re.subn("a", "", "aa"),
    )
    return x + len(re.sub("a", "bb", "banana")) + (re.match("A", "a", re.IGNORECASE) is not None), found


def of_a_pattern(x: Tensor) -> Any:
    return (
        x + len(PATTERN.pattern) + PATTERN.groups + PATTERN.groupindex["a"],
        re.compile("a+b"),
        isinstance(PATTERN, re.Pattern),
    )


def refused(x: Tensor) -> Any:
    try:
        re.compile("(")
    except re.error as e:
        return x + 1, str(e)
    return x


def heaps(x: Tensor) -> Any:
    given = [5, 3, 9, 1, 7, 7, 2, 8, 0, 4]
    heapq.heapify(given)
    heapq.heappush(given, 6)
    out = [heapq.heappop(given), heapq.heapreplace(given, 5), heapq.heappushpop(given, -1)]
    pairs: list[Any] = []
    for k, t in enumerate([x, x + 1, x + 2]):
        heapq.heappush(pairs, (-k, t))
    try:
        heapq.heappop([])
    except IndexError as e:
        out.append(str(e))  # type: ignore[arg-type]
    return heapq.heappop(pairs)[1] + out[0], out, given, heapq.nsmallest(2, given), heapq.nlargest(2, given)


def of_objects(x: Tensor) -> Any:
    made = [Ranked(k) for k in (3, 1, 2)]
    heapq.heapify(made)
    return x + made[0].rank, [heapq.heappop(made).rank for _ in range(3)]


def places(x: Tensor) -> Any:
    given = [1, 2, 2, 3]
    found = (
        bisect.bisect(given, 2),
        bisect.bisect_left(given, 2),
        bisect.bisect(given, 2, 0, 1),
        bisect.bisect_left(given, 2, hi=-1),
    )
    bisect.insort(given, 2.5)  # type: ignore[arg-type, type-var]
    words = ["a", "bb", "dddd"]
    bisect.insort_left(words, "ccc", key=len)
    try:
        bisect.bisect(given, 1, -1)
    except ValueError as e:
        return x + found[0], found, given, words, str(e)
    return x


@pytest.mark.parametrize("program", [groups, functions, of_a_pattern, refused, heaps, of_objects, places])
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X)[0], program(X)[0])
        assert compiled(X)[1:] == program(X)[1:]


def made_inside(x: Tensor) -> Any:
    return x + 1, re.match("a", "abc")


def stepped(x: Tensor) -> Any:
    return x + sum(int(m.group()) for m in re.finditer(r"\d", "1a2")), re.sub("a", lambda m: m.group() * 2, "banana")


def of_deques(x: Tensor) -> Any:
    try:
        heapq.heappush(collections.deque(), 1)  # type: ignore[type-var, arg-type]
    except TypeError as e:
        return x + 1, str(e)
    return x


def too_few(x: Tensor) -> Any:
    try:
        heapq.heappush([])  # type: ignore[call-arg]
    except TypeError as e:
        return x + 1, str(e)
    return x


@pytest.mark.parametrize("program", [made_inside, stepped, of_deques, too_few])
def test_what_breaks_is_eagers(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="eager")
    first, second, eager = compiled(X), compiled(X), program(X)
    for got in (first, second):
        torch.testing.assert_close(got[0], eager[0])
        assert str(got[1:]) == str(eager[1:])
    assert isinstance(eager[1], str) or first[1] is not second[1]


def test_another_pattern() -> None:
    space: dict[str, Any] = {"pattern": re.compile("a+")}
    exec("def program(x, text):\n    return x + len(pattern.match(text).group())", space)
    compiled = pycompiler.compile(space["program"], backend="eager")
    assert compiled(X, "aab").tolist() == [2.0, 2.0] and compiled(X, "ab").tolist() == [1.0, 1.0]
    space["pattern"] = re.compile("a")
    assert compiled(X, "aab").tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "value", [Decimal("nan"), Decimal(2), float("nan"), datetime.date(2024, 1, 1), re.compile("a")], ids=str
)
def test_what_says_itself_whether_it_equals_itself(value: Any) -> None:
    def program(x: torch.Tensor, v: Any) -> Any:
        return x + 1, v == v, v != v, v in [v]

    x = torch.ones(2)
    assert str(pycompiler.compile(program, backend="eager")(x, value)) == str(program(x, value))
