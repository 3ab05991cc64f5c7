"""What Python makes of the answer of a special method: ``int(o)`` is no float, though ``o.__int__()`` gives one.

In: a builtin that calls a special method, and the method as a value. Out: the builtin's result, or its TypeError. CPython itself
says which: it is asked about an object of a class with that name, whose method gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompiler.capture.values.base import Capture, Value

# What is passed on as it is, when it is of exactly this class.
_EXACT: dict[Callable[..., Any], type] = {int: int, float: float, complex: complex, str: str, repr: str, format: str}


def answered(cx: Capture, fn: Callable[..., Any], value: Value, name: str, method: Value, *args: Value) -> Value:
    """fn(value, *args), which calls `method`, the value's `name`."""
    result = cx.call(method, list(args), {})
    if _EXACT.get(fn) is result.python_type():
        return result
    answer = result.const()
    stand_in = type(value.python_type().__name__, (), {name: lambda *_: answer})()
    return cx.evaluate(fn, stand_in, *(a.const() for a in args))
