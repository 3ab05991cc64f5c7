"""Form and check of a row of odd programs and odd arguments.

`row(id)(make)`: `make()` gives `(function, arguments)`; it is called once for eager and once for the compiled
function, so that state is never shared. Results, exceptions (type, message) and mutated arguments must agree, at
the call that compiles and at the next one.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

import pycompiler
from tests.harness.compare import Differs, assert_same

Made = tuple[Callable[..., Any], tuple[Any, ...]]
ROWS: dict[str, Callable[[], Made]] = {}


def row(id: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        assert id not in ROWS, id
        ROWS[id] = make
        return make

    return register


def simple(id: str, fn: Callable[..., Any], *args: Any) -> None:
    """A row whose arguments may be shared or copied."""
    row(id)(lambda: (fn, copy.deepcopy(args)))


def x() -> torch.Tensor:
    return torch.arange(4.0)


# outcomes ------------------------------------------------------------------------------------------------------
def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, Any]:
    """The outcome of a call: ("value", result) or ("error", (type, message))."""
    try:
        result = fn(*args)
        if isinstance(result, types.GeneratorType):
            result = list(result)
        elif isinstance(result, types.CoroutineType):
            result = asyncio.run(result)
        elif isinstance(result, types.AsyncGeneratorType):
            result = asyncio.run(drain(result))
    except BaseException as e:
        return "error", e
    return "value", result


async def drain(generator: Any) -> list[Any]:
    return [value async for value in generator]


COMPARED = (torch.Tensor, numpy.ndarray, type, int, float, complex, str, bytes, type(None), torch.dtype, enum.Enum)


def same(have: Any, want: Any) -> bool:
    """Equality of results and arguments, structure by structure."""
    if type(have).__name__ != type(want).__name__:
        return False
    ours = type(want).__module__.startswith(("tests.", "bad_input.")) and not dataclasses.is_dataclass(type(want))
    if ours and not issubclass(type(want), (torch.Tensor, tuple, enum.Enum)):
        return True  # an object of the same type; even its `__class__` may not be read
    if isinstance(want, torch.Tensor) and want.is_nested:
        return all(map(same, have.unbind(), want.unbind()))
    if isinstance(want, (list, tuple)):
        return len(have) == len(want) and all(map(same, have, want))
    if isinstance(want, dict):
        return all(map(same, have, want)) and all(map(same, have.values(), want.values()))
    if dataclasses.is_dataclass(want) and not isinstance(want, type):
        return same(vars(have), vars(want))
    if not isinstance(want, COMPARED):
        return True  # an object of the same type
    try:
        assert_same(have, want, exact=True, sharing=False)
    except Differs:
        return False
    return True


def check(make: Callable[[], Made], backend: str) -> None:
    eager, args = make()
    fn, compiled_args = make()
    made = pycompiler.compile(fn, backend=backend)
    for call in ("first", "second"):
        torch.manual_seed(0)
        kind, want = outcome(eager, args)
        torch.manual_seed(0)
        seen, have = outcome(made, compiled_args)
        assert seen == kind, f"{call} call: eager {kind} {want!r}, compiled {seen} {have!r}"
        if kind == "error":
            assert type(have) is type(want), f"{call} call: {have!r} instead of {want!r}"
            assert str(have) == str(want), f"{call} call"
        else:
            assert same(have, want), f"{call} call: {have!r} instead of {want!r}"
        assert same(list(compiled_args), list(args)), f"{call} call: arguments {compiled_args!r} instead of {args!r}"
