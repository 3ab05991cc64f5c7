"""What tests of things that outlive the calls share: programs run beside eager, call by call, and what is kept is compared."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

import pycompiler

Program = Callable[..., Any]


class Kept:
    """What outlives the calls."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Same:
    """A key that equals, and has the hash of, a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(other == self.value)

    def __repr__(self) -> str:
        return f"Same({self.value!r})"


def told(value: Any) -> Any:
    """What can be compared: with classes, the order of dicts, and the signs of zeros."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.tolist(), value.requires_grad)
    if isinstance(value, dict):
        return (type(value), [(told(k), told(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple, collections.deque)):
        return (type(value), [told(v) for v in value])
    if isinstance(value, (set, frozenset)):
        return (type(value), sorted(map(repr, value)))
    plain = hasattr(value, "__dict__") and type(value).__repr__ is object.__repr__
    return (type(value), told(vars(value)) if plain else repr(value))


def compiles_over(
    fn: Program,
    make: Callable[[], Any],
    calls: Iterable[tuple[Any, ...]],
    given: Callable[[int, Any, tuple[Any, ...]], tuple[Any, ...]],
    backend: str = "eager",
) -> int:
    """How often `fn` compiles over calls whose arguments are `given(number, what is kept, call)`.  Each gives, and leaves, what
    eager does."""
    compiled = pycompiler.compile(fn, backend=backend)
    ours, theirs = make(), make()
    for i, call in enumerate(calls):
        results = []
        for run, kept in ((compiled, ours), (fn, theirs)):
            args = given(i, kept, copy.deepcopy(call))
            try:
                results.append(told(run(*args)))
            except Exception as error:
                results.append((type(error), str(error)))
        assert repr(results[0]) == repr(results[1]), f"call {i}: {call}"
        assert repr(told(ours)) == repr(told(theirs)), f"call {i}: {call}"
    return int(pycompiler.counters(compiled)["compiles"])
