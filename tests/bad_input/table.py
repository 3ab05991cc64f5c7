"""How a row of odd programs and odd arguments is written and checked.

`row(id)(make)`: `make()` gives `(function, arguments)`; it is called once for eager and once for the compiled function,
so that state is never shared.  Results, exceptions (type, text) and mutated arguments must agree, at the call that
compiles and at the next one.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import math
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

import pycompiler

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
    """What a call gives: ("value", result) or ("error", (type, text))."""
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


def same(have: Any, want: Any) -> bool:
    """Equality of results and arguments, structure by structure."""
    if type(have).__name__ != type(want).__name__:
        return False
    ours = type(want).__module__.startswith("tests.") and not dataclasses.is_dataclass(type(want))
    if ours and not issubclass(type(want), (torch.Tensor, tuple, enum.Enum)):
        return True  # an object of the same type, which may not even be asked for its class
    if isinstance(want, torch.Tensor):
        if want.layout is not torch.strided or want.is_quantized or want.is_nested or want.device.type == "meta":
            return same_odd_tensor(have, want)
        plain = (have.dtype, have.shape, have.stride(), have.requires_grad) == (
            want.dtype, want.shape, want.stride(), want.requires_grad
        )  # fmt: skip
        if want.dtype.itemsize == 1 and want.is_floating_point():
            have, want = have.float(), want.float()
        return plain and torch.allclose(have.detach(), want.detach(), equal_nan=True)
    if isinstance(want, numpy.ndarray):
        return have.dtype == want.dtype and numpy.array_equal(have, want)
    if isinstance(want, (list, tuple)):
        return len(have) == len(want) and all(map(same, have, want))
    if isinstance(want, dict):
        return all(map(same, have, want)) and all(map(same, have.values(), want.values()))
    if isinstance(want, type):
        return have is want
    if isinstance(want, (int, str, bytes, bool, type(None), torch.dtype, torch.Size, enum.Enum)):
        return bool(have == want)
    if isinstance(want, float):
        return math.isclose(have, want) or (math.isnan(have) and math.isnan(want))
    if dataclasses.is_dataclass(want):
        return same(vars(have), vars(want))
    return True  # an object of the same type


def same_odd_tensor(have: torch.Tensor, want: torch.Tensor) -> bool:
    if (have.layout, have.dtype, have.device, have.is_quantized) != (
        want.layout, want.dtype, want.device, want.is_quantized
    ):  # fmt: skip
        return False
    if want.device.type == "meta":
        return have.shape == want.shape
    if want.is_nested:
        return all(map(same, have.unbind(), want.unbind()))
    if want.is_quantized:
        return torch.equal(have.dequantize(), want.dequantize())
    return torch.equal(have.to_dense(), want.to_dense())


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
