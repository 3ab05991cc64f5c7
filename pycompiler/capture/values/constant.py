"""Constants: immutable values known exactly, folded at capture time.

In: a Python literal, dtype, device, Size, ...  Out: the same, with every operation evaluated at once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value

LITERALS = (int, float, bool, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
CONSTANT_TYPES: frozenset[type] = frozenset({*LITERALS, *TORCH_CONSTANTS, range, slice, frozenset})


class Const(Value):
    """A constant.  Two constants are the same object exactly if the real objects are."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def describe(self) -> str:
        return f"Const({self.value!r})"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> object:
        if isinstance(self.value, LITERALS):
            return ("const", type(self.value), self.value)
        return ("object", id(self.value))

    def is_const(self) -> bool:
        return True

    def const(self) -> Any:
        return self.value

    def truth(self, cx: Capture) -> bool:
        return bool(self.value)

    def length(self, cx: Capture) -> int:
        return int(cx.evaluate(len, self.value).const())

    def getattr(self, cx: Capture, name: str) -> Value:
        got = cx.evaluate(getattr, self.value, name)
        return got

    def getitem(self, cx: Capture, key: Value) -> Value:
        return cx.evaluate(operator.getitem, self.value, key.const())

    def iterate(self, cx: Capture) -> Iterator[Value]:
        if not hasattr(type(self.value), "__iter__"):
            cx.throw(TypeError, f"{type(self.value).__name__!r} object is not iterable")
        if type(self.value) is frozenset and len(self.value) > 1:
            cx.looks_at_hashes(self.value)
        return (cx.make(v) for v in self.value)

    def contains(self, cx: Capture, item: Value) -> bool:
        if not item.is_const():
            raise Break("unsupported-operation", f"{item.describe()} in a constant")
        return bool(cx.evaluate(operator.contains, self.value, item.const()).const())

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx.throw(TypeError, f"{type(self.value).__name__!r} object is not callable")
        raise AssertionError
