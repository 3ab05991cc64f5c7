"""The check that Python applies to the result of a special method.

In: a builtin that calls a special method, and the method as a value.  Out: the builtin's result, or its TypeError.
CPython performs the check: the builtin is called on a stand-in whose class has the same name and whose method returns
the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycompiler.capture.values.base import Capture, Value

# An exact instance of this class is returned unchanged.
_EXACT: dict[Callable[..., Any], type] = {int: int, float: float, complex: complex, str: str, repr: str, format: str}


def call_special(cx: Capture, fn: Callable[..., Any], value: Value, name: str, method: Value, *args: Value) -> Value:
    """fn(value, *args), which calls `method`, the value's special method `name`."""
    result = cx.call(method, list(args), {})
    if _EXACT.get(fn) is result.python_type():
        return result
    answer = result.const()
    stand_in = type(value.python_type().__name__, (), {name: lambda *_: answer})()
    return cx.evaluate(fn, stand_in, *args)
