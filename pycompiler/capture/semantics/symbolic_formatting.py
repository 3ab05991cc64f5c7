"""Open str: computed by the program from str and numbers that differ between calls
(`capture/values/symbolic_numbers.py`).

In: the arguments of f-strings, `%`, `+`, `str`, `format` and `str.format`.  Out: a `Text` if the arguments' classes
show that the operation cannot raise.  None otherwise: then the capture evaluates the operation.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.semantics.formatting import is_container, to_open_str
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import Sequence, Tuple
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.symbolic_numbers import ComputedStr, hint_value, is_open, is_open_text, text
from pycompiler.ir.computed_sources import joined, percent

CONVERTED: dict[int, Callable[[object], str]] = {0: str, 1: str, 2: repr, 3: ascii}
FIELD = re.compile(r"%[-#0 +.\d]*[hlL]*([a-zA-Z%*(])")
OF_INTEGERS = frozenset("diouxX")  # raise for some floats


def _text_of(value: Value) -> str | None:
    return value.value if isinstance(value, Const) and type(value.value) is str else None


def _is_plain_spec(spec: str | None) -> bool:
    """Whether only the value's class decides if a format specification raises.  "c" accepts some numbers only."""
    return spec is not None and spec[-1:] != "c"


def formatted(cx: Capture, value: Value, which: int, spec: Value) -> Value | None:
    """A field of an f-string."""
    value = value if is_open_text(value) else cx.realize(value)
    if not _is_plain_spec(_text_of(spec)):
        return None
    if is_open(value) and not which:
        return text(cx, format, [value, spec])
    if not which and _text_of(spec):  # no container accepts a specification
        return None
    told = converted(cx, value, CONVERTED[which])
    return text(cx, format, [told, spec]) if told is not None and _text_of(spec) else told


def converted(cx: Capture, value: Value, how: Callable[[object], str]) -> Value | None:
    """`!s`, `!r` or `!a` of a field."""
    value = value if is_open_text(value) else cx.realize(value)
    return to_open_str(cx, value, how) if is_open(value) or is_container(value) else None


def binary(cx: Capture, op: str, left: Value, right: Value) -> ComputedStr | None:
    """`left + right` and `left % right` of str."""
    if op in ("+", "+="):
        known = all(is_open_text(v) or _text_of(v) is not None for v in (left, right))
        return text(cx, joined, [left, right]) if known else None
    if op not in ("%", "%=") or _text_of(left) is None:
        return None
    right = right if is_open_text(right) else cx.realize(right)
    given = right.items if isinstance(right, Tuple) and right.cls in (tuple, torch.Size) else [right]
    values = [v if is_open_text(v) else cx.realize(v) for v in given]
    kinds = FIELD.findall((_text_of(left) or "").replace("%%", ""))
    if not _is_plain_percent(kinds, values):
        return None
    return text(cx, percent, [left, *(to_open_str(cx, v, str) if is_container(v) else v for v in values)])


def _is_plain_percent(kinds: list[str], values: list[Value]) -> bool:
    """Whether only the values' classes decide if these `%` fields raise, and containers use `%s`."""
    floats = any(type(hint_value(v)) is float for v in values if is_open(v))
    whole = len(kinds) != len(values) or any(is_container(v) and k != "s" for k, v in zip(kinds, values, strict=True))
    return not ({"c", "*", "("}.intersection(kinds) or whole or floats and OF_INTEGERS.intersection(kinds))


def _is_plain_template(template: str | None, whole: bool) -> bool:
    """Whether the fields of `str.format` are whole values with known specifications.  `whole`: some values are containers."""
    try:
        fields = list(string.Formatter().parse(template or ""))
    except ValueError:
        return False
    return template is not None and all(
        name is None
        or not set(name) & set(".[")
        and _is_plain_spec(spec)
        and "{" not in (spec or "")
        and not (whole and (spec or how not in (None, "s")))
        for _, name, spec, how in fields
    )


def method_of(value: Value, name: str) -> Method | None:
    """A method of an open str that returns another str, or None."""
    return Method(value, Builtin(METHODS[name])) if is_open_text(value) and name in METHODS else None


def call(cx: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A call of the program that returns a str, as an open str; None if it is none."""
    made: Any = fn.cls if isinstance(fn, Class) else fn.fn if isinstance(fn, Builtin) else None
    making = STR_FUNCTIONS.get(id(made))
    if making is None or not args or kwargs:
        return None
    return making[1](cx, made, *(a if is_open_text(a) else cx.realize(a) for a in args))


def _converted(cx: Capture, fn: Any, value: Value, *more: Value) -> Value | None:
    return None if more else converted(cx, value, fn)


def _formatted(cx: Capture, fn: Any, value: Value, *more: Value) -> Value | None:
    return formatted(cx, value, 0, *more or (Const(""),)) if len(more) < 2 else None


def _of_template(cx: Capture, fn: Any, template: Value, *values: Value) -> Value | None:
    whole = any(map(is_container, values))
    if not _is_plain_template(_text_of(template), whole):
        return None
    return text(cx, fn, [template, *(to_open_str(cx, v, str) if is_container(v) else v for v in values)])


def _of_method(cx: Capture, fn: Any, value: Value, *args: Value) -> Value | None:
    return text(cx, fn, [value, *args]) if is_open_text(value) and all(isinstance(a, Const) for a in args) else None


def _joined(cx: Capture, fn: Any, between: Value, *values: Value) -> Value | None:
    """`str.join` of a list or tuple of str."""
    if len(values) != 1:
        return None
    given = values[0].items if isinstance(values[0], Sequence) and values[0].cls in (list, tuple) else []
    parts = [v if isinstance(v, ComputedStr) else cx.realize(v) for v in given]
    if _text_of(between) is None or not all(isinstance(p, ComputedStr) or _text_of(p) is not None for p in parts):
        return None
    return text(cx, joined, [p for part in parts for p in (between, part)][1:])


METHODS: dict[str, Any] = {
    f.__name__: f for f in (
        str.upper, str.lower, str.title, str.capitalize, str.casefold, str.swapcase, str.strip, str.lstrip, str.rstrip,
        str.replace, str.removeprefix, str.removesuffix, str.zfill, str.ljust, str.rjust, str.center,
    )
}  # fmt: skip
STR_FUNCTIONS: dict[int, tuple[Any, Callable[..., Value | None]]] = {
    id(fn): (fn, making) for fn, making in (
        *((fn, _converted) for fn in (str, repr, ascii)), (format, _formatted), (str.format, _of_template),
        (str.join, _joined), *((fn, _of_method) for fn in METHODS.values()),
    )
}  # fmt: skip
"""Functions that compute a str from str and numbers -> how.  None: the call may raise, or all arguments are known."""
