"""Attributes in an instance dict behind a Python descriptor, written by the program through `__dict__`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import pycompiler
from tests.harness.compare import assert_same_calls

X = torch.arange(3.0)


class Doubles:
    """A descriptor that stores twice the number in the instance dict."""

    def __get__(self, obj: Any, owner: type) -> Any:
        return self if obj is None else obj.__dict__["number"] + 1

    def __set__(self, obj: Any, value: int) -> None:
        obj.__dict__["number"] = 2 * value

    def __delete__(self, obj: Any) -> None:
        del obj.__dict__["number"]


class Holder:
    number = Doubles()

    def __init__(self, number: int) -> None:
        self.first = 1
        self.__dict__["number"] = number
        self.__dict__["shown"] = number * 10
        self.last = 2

    @property
    def shown(self) -> int:
        return self.__dict__["shown"] - 1


def _compare(program: Callable[..., Any], *numbers: int) -> None:
    """Compile once and compare each call with eager, on a fresh object whose final dict is compared too."""
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for number in numbers:
        assert_same_calls(compiled, program, lambda n=number: (X, Holder(n)), calls=1, exact=True)


def test_a_descriptor_writes_the_dict() -> None:
    def program(x: torch.Tensor, holder: Holder) -> Any:
        holder.number = 5
        holder.number += 1
        return (x + holder.number,)

    _compare(program, 1, 1, 7)


def test_the_dict_is_written_behind_a_property() -> None:
    def program(x: torch.Tensor, holder: Holder) -> Any:
        before = holder.shown
        holder.__dict__["shown"] += 2
        vars(holder)["new"] = 3
        return (x + before * holder.shown,)

    _compare(program, 1, 1, 7)


def test_what_a_descriptor_keeps_is_deleted() -> None:
    def program(x: torch.Tensor, holder: Holder) -> Any:
        del holder.number
        return (x + ("number" in vars(holder)),)

    _compare(program, 1, 1, 7)


def test_a_new_object_keeps_the_order_of_its_dict() -> None:
    def program(x: torch.Tensor, holder: Holder) -> Any:
        made = Holder(4)
        made.number = 3
        return x + made.number * made.shown, made

    _compare(program, 1, 1)


def test_a_descriptor_that_comes_later() -> None:
    class Late:
        pass

    def program(x: torch.Tensor, late: Late) -> Any:
        late.__dict__["value"] = 3
        return x + late.value  # type: ignore[attr-defined]

    compiled = pycompiler.compile(program, backend="eager")
    assert torch.equal(compiled(X, Late()), X + 3)
    Late.value = property(lambda self: self.__dict__["value"] * 100)  # type: ignore[attr-defined]
    late = Late()
    assert torch.equal(compiled(X, late), X + 300) and late.__dict__ == {"value": 3}
    del Late.value  # type: ignore[attr-defined]
    assert torch.equal(compiled(X, late), X + 3)


class Ends:
    log: list[str] = []

    def __del__(self) -> None:
        self.log.append("end")


def test_what_the_dict_held_may_end() -> None:
    class Shown:
        kept = property(lambda self: 1)

    def program(x: torch.Tensor, shown: Shown) -> Any:
        x = x + shown.kept
        shown.__dict__["kept"] = 2
        return x + len(Ends.log)

    compiled = pycompiler.compile(program, backend="eager")
    for number, held in enumerate((int, Ends, int, Ends)):
        shown = Shown()
        shown.__dict__["kept"] = held()
        want = X + 1 + (number + 1) // 2
        assert torch.equal(compiled(X, shown), want), number
        assert shown.__dict__["kept"] == 2


class OnlySets:
    def __set__(self, obj: Any, value: int) -> None:
        obj.__dict__["field"] += value * 2


class Fielded:
    field = OnlySets()

    def __init__(self, number: int | None) -> None:
        if number is not None:
            self.__dict__["field"] = number


def test_a_descriptor_that_only_sets() -> None:
    def program(x: torch.Tensor, obj: Any) -> Any:
        obj.field = 10
        return x + obj.field

    def read(x: torch.Tensor, obj: Any) -> Any:
        return x + obj.field if isinstance(obj.field, int) else (x, obj.field)

    compiled, reads = (pycompiler.compile(f, backend="eager", fullgraph=True) for f in (program, read))
    for number in (0, 0, 5):
        mine, theirs = Fielded(number), Fielded(number)
        assert torch.equal(compiled(X, mine), program(X, theirs)) and vars(mine) == vars(theirs)
        assert torch.equal(reads(X, mine), read(X, theirs))
    empty = Fielded(None)
    assert reads(X, empty)[1] is vars(Fielded)["field"]
    OnlySets.__get__ = lambda self, obj, owner: 7  # type: ignore[attr-defined]
    try:
        assert torch.equal(reads(X, Fielded(1)), X + 7) and torch.equal(reads(X, empty), X + 7)
    finally:
        del OnlySets.__get__  # type: ignore[attr-defined]
    assert torch.equal(reads(X, Fielded(1)), X + 1)


@functools.lru_cache
def _cached(n: int) -> int:
    """Kept."""
    return n + 1


def test_a_wrapper_of_what_lru_cache_gives() -> None:
    def program(x: torch.Tensor) -> Any:
        @functools.wraps(_cached)
        def wrapper(n: int) -> int:
            return _cached(n) * 2

        wrapper.more = 5  # type: ignore[attr-defined]
        vars(wrapper)["__doc__"] = "another"
        told = wrapper.__name__, wrapper.__doc__, wrapper.__module__, [*vars(wrapper)], vars(wrapper)["__doc__"]
        return x + wrapper(2), wrapper, told, hasattr(wrapper, "__wrapped__"), "__module__" in vars(wrapper)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        got, want = compiled(X), program(X)
        assert torch.equal(got[0], want[0]) and got[2:] == want[2:]
        assert list(vars(got[1]).items()) == list(vars(want[1]).items())
        assert got[1].__doc__ == want[1].__doc__ and got[1].__wrapped__ is _cached and got[1](3) == 8
