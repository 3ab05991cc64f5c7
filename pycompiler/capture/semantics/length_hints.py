"""Length hints: the calls that CPython makes on an iterable before it creates a list or tuple from it.

In: an iterable.  Out: only the effects that the program sees: calls of a Python `__len__` or `__length_hint__`.
"""

from __future__ import annotations

import operator
from typing import Any

from pycompiler.capture.values.attributes import MISSING, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.iterators import INDEXING, Iter
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.objects import Object


class _Hinted:
    """operator.length_hint() of it checks the result of a `__length_hint__`."""

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def __length_hint__(self) -> int:
        return self.hint  # type: ignore[no-any-return]


def call_length_hint(cx: Capture, value: Value) -> None:
    """operator.length_hint(value) as far as the program sees it.  `__len__` comes first; its TypeError is ignored."""
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
    """Whether an object has returned a length."""
    if not isinstance(value, Object) or _in_python(cx, value, "__len__") is None:
        return False
    return cx.catching(TypeError, lambda: value.length(cx)) is not None


def _in_python(cx: Capture, value: Object, name: str) -> Value | None:
    """A special method written in Python, or None."""
    if lookup(cx, value.cls, name) is MISSING:
        return None
    method = value.special(cx, name)
    return None if isinstance(method, Method) and isinstance(method.function, Builtin) else method
