"""Special methods set to None or to a non-function, and the errors of operations without a special method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls

X = torch.ones(2)


def entered(o: Any) -> Any:
    with o:
        return 1


def stored(o: Any) -> None:
    o[0] = 1


def removed(o: Any) -> None:
    del o[0]


def added(o: Any) -> Any:
    o += [1]
    return o


OPERATIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "__contains__": (lambda o: 1 in o,),
    "__iter__": (
        lambda o: 1 in o,
        lambda o: [i for i in o],
        lambda o: (*o,),
        lambda o: sum(o),
        lambda o: [*reversed(o)],
    ),
    "__len__": (lambda o: len(o), lambda o: bool(o)),
    "__bool__": (lambda o: not o,),
    "__eq__": (lambda o: o == 1, lambda o: 1 == o),
    "__lt__": (lambda o: o < 1,),
    "__hash__": (lambda o: hash(o), lambda o: {o: 1}),
    "__add__": (lambda o: o + 1,),
    "__iadd__": (added,),
    "__neg__": (lambda o: -o,),
    "__getitem__": (lambda o: o[0],),
    "__setitem__": (stored,),
    "__delitem__": (removed,),
    "__call__": (lambda o: o(),),
    "__enter__": (entered,),
    "__reversed__": (lambda o: [*reversed(o)],),
    "__index__": (lambda o: [1, 2][o],),
    "__getattr__": (lambda o: o.missing,),
    "__missing__": (lambda o: o[5],),
}
CLASSES = [
    pytest.param(type("K", (base,), {name: None}), operation, id=f"{base.__name__}-{name}-{i}")
    for base in (object, list, dict)
    for name, operations in OPERATIONS.items()
    for i, operation in enumerate(operations)
]


def same(read: Callable[[], Any]) -> None:
    def program(x: Any) -> Any:
        try:
            answer = read()
        except Exception as e:
            answer = f"{type(e).__name__}: {e}"
        return answer, x + 1

    assert_same_calls(pycompiler.compile(program, backend="eager"), program, lambda: (X,), exact=True)


@pytest.mark.parametrize(("cls", "operation"), CLASSES)
def test_none_is_no_missing_method(cls: Any, operation: Any) -> None:
    """Python refuses such an operation or calls None. `1 in made` must not fall back to `__iter__`, nor `made[0]` to the list."""
    same(lambda: operation(cls()))


class AnsweredByAClass:
    def __init__(self, name: str) -> None:
        self.name = name


class Keyed:
    __getattr__ = AnsweredByAClass  # type: ignore[assignment]


class Stated:
    @staticmethod
    def __getattr__(name: str) -> Any:
        return "stated", name


@pytest.mark.parametrize(
    "read",
    [
        lambda: Keyed().missing.name,
        lambda: Stated().missing,
        lambda: max(),  # type: ignore[call-overload]
        lambda: min(1, 2, default=3),  # type: ignore[call-overload]
        lambda: max([1], other=3),  # type: ignore[call-overload]
        lambda: max([], default=4),
        lambda: reversed(iter([1])),  # type: ignore[call-overload]
        lambda: list(reversed(Keyed())),  # type: ignore[call-overload]
        lambda: (lambda **k: k)(**{"a": 1}, **{"a": 2}),
        lambda: print(**{"end": ""}, **{"end": ""}),
    ],
)
def test_what_is_no_function_and_what_is_missing(read: Any) -> None:
    same(read)


@pytest.mark.parametrize("created", [False, True], ids=["argument", "created"])
def test_a_method_in_place_of_tensors_is_guarded(created: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1 if created else x
        y += 1
        return y

    compiled = pycompiler.compile(program, backend="eager")
    assert compiled(torch.ones(2)).tolist() == program(torch.ones(2)).tolist() == [2.0, 2.0]
    monkeypatch.setattr(torch.Tensor, "__iadd__", lambda x, other: x - other)
    assert compiled(torch.ones(2)).tolist() == program(torch.ones(2)).tolist() == [0.0, 0.0]
