"""Length hints: what CPython asks an iterable of before it makes a list or a tuple of what that gives.

In: an iterable. Out: nothing but what the program sees of it: calls of a `__len__` or `__length_hint__` in Python.
"""

from __future__ import annotations

import operator
from typing import Any

from pycompiler.capture.values.attributes import MISSING, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.iterators import INDEXING, Iter
from pycompiler.capture.values.objects import Object


class _Hinted:
    """operator.length_hint() of it checks what a `__length_hint__` returned."""

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def __length_hint__(self) -> int:
        return self.hint  # type: ignore[no-any-return]


def ask_length(cx: Capture, value: Value) -> None:
    """operator.length_hint(value), as far as the program sees it: `__len__` first, which may raise a TypeError."""
    if isinstance(value, Iter):
        if value.cls is INDEXING and not value.exhausted and value.indexes is not None:
            _length(cx, value.indexes)
    elif isinstance(value, Const) and isinstance(value.value, range):
        cx.evaluate_raw(operator.length_hint, value.value)
    elif isinstance(value, Object) and not _length(cx, value):
        method = _in_python(cx, value, "__length_hint__")
        hint = None if method is None else cx.catching(TypeError, lambda: cx.call(method, [], {}))
        if hint is not None:
            cx.evaluate_raw(operator.length_hint, _Hinted(hint.const()))


def _length(cx: Capture, value: Value) -> bool:
    """Whether an object has said its length."""
    if not isinstance(value, Object) or _in_python(cx, value, "__len__") is None:
        return False
    return cx.catching(TypeError, lambda: Const(value.length(cx))) is not None


def _in_python(cx: Capture, value: Object, name: str) -> Value | None:
    """A special method, unless there is none, or one that is written in C."""
    if lookup(cx, value.cls, name) is MISSING:
        return None
    method = value.special(cx, name)
    return None if isinstance(method, Method) and isinstance(method.function, Builtin) else method
