"""Texts that a program makes of texts and numbers which each call has others for (`values/symbolic.py`).

In: what f-strings, `%`, `+`, `str`, `format` and `str.format` are given.  Out: a `Text`, where the classes of these tell that it
raises nothing; None of all others, which are evaluated while the frame is captured.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.formatting import is_whole, shown
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.sequences import Sequence, Tuple
from pycompiler.capture.values.symbolic import Text, is_open, is_open_text, text, today
from pycompiler.ir.computed import joined, percent

CONVERTED: dict[int, Callable[[object], str]] = {0: str, 1: str, 2: repr, 3: ascii}
FIELD = re.compile(r"%[-#0 +.\d]*[hlL]*([a-zA-Z%*(])")
OF_INTEGERS = frozenset("diouxX")  # of a float: not of all


def _text_of(value: Value) -> str | None:
    return value.value if isinstance(value, Const) and type(value.value) is str else None


def _is_plain_spec(spec: str | None) -> bool:
    """Whether a format specification raises by the class of the value alone: a character is one of some numbers."""
    return spec is not None and spec[-1:] != "c"


def formatted(cx: Capture, value: Value, which: int, spec: Value) -> Value | None:
    """A field of an f-string."""
    value = value if is_open_text(value) else cx.realize(value)
    if not _is_plain_spec(_text_of(spec)):
        return None
    if is_open(value) and not which:
        return text(cx, format, [value, spec])
    if not which and _text_of(spec):  # which no container takes
        return None
    told = converted(cx, value, CONVERTED[which])
    return text(cx, format, [told, spec]) if told is not None and _text_of(spec) else told


def converted(cx: Capture, value: Value, how: Callable[[object], str]) -> Value | None:
    """`!s`, `!r` or `!a` of a field."""
    value = value if is_open_text(value) else cx.realize(value)
    return shown(cx, value, how) if is_open(value) or is_whole(value) else None


def of_operator(cx: Capture, op: str, left: Value, right: Value) -> Text | None:
    """`left + right` and `left % right` of texts."""
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
    return text(cx, percent, [left, *(shown(cx, v, str) if is_whole(v) else v for v in values)])


def _is_plain_percent(kinds: list[str], values: list[Value]) -> bool:
    """Whether such fields raise by the classes of the values alone, and show containers by their texts."""
    floats = any(type(today(v)) is float for v in values if is_open(v))
    whole = len(kinds) != len(values) or any(is_whole(v) and k != "s" for k, v in zip(kinds, values, strict=True))
    return not ({"c", "*", "("}.intersection(kinds) or whole or floats and OF_INTEGERS.intersection(kinds))


def _is_plain_template(template: str | None, whole: bool) -> bool:
    """Whether fields of `str.format` are whole values, with specifications that are known; texts of containers (`whole`)."""
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
    """A method of a text that nobody has asked for, which makes another one."""
    return Method(value, Builtin(METHODS[name])) if is_open_text(value) and name in METHODS else None


def called(cx: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A call of the program's that makes a text."""
    made: Any = fn.cls if isinstance(fn, Class) else fn.fn if isinstance(fn, Builtin) else None
    making = MAKING.get(id(made))
    if making is None or not args or kwargs:
        return None
    return making[1](cx, made, *(a if is_open_text(a) else cx.realize(a) for a in args))


def _converted(cx: Capture, fn: Any, value: Value, *more: Value) -> Value | None:
    return None if more else converted(cx, value, fn)


def _formatted(cx: Capture, fn: Any, value: Value, *more: Value) -> Value | None:
    return formatted(cx, value, 0, *more or (Const(""),)) if len(more) < 2 else None


def _of_template(cx: Capture, fn: Any, template: Value, *values: Value) -> Value | None:
    whole = any(map(is_whole, values))
    if not _is_plain_template(_text_of(template), whole):
        return None
    return text(cx, fn, [template, *(shown(cx, v, str) if is_whole(v) else v for v in values)])


def _of_method(cx: Capture, fn: Any, value: Value, *args: Value) -> Value | None:
    return text(cx, fn, [value, *args]) if is_open_text(value) and all(isinstance(a, Const) for a in args) else None


def _joined(cx: Capture, fn: Any, between: Value, *values: Value) -> Value | None:
    """Of a list or tuple of texts."""
    if len(values) != 1:
        return None
    given = values[0].items if isinstance(values[0], Sequence) and values[0].cls in (list, tuple) else []
    parts = [v if isinstance(v, Text) else cx.realize(v) for v in given]
    if _text_of(between) is None or not all(isinstance(p, Text) or _text_of(p) is not None for p in parts):
        return None
    return text(cx, joined, [p for part in parts for p in (between, part)][1:])


METHODS: dict[str, Any] = {
    f.__name__: f for f in (
        str.upper, str.lower, str.title, str.capitalize, str.casefold, str.swapcase, str.strip, str.lstrip, str.rstrip,
        str.replace, str.removeprefix, str.removesuffix, str.zfill, str.ljust, str.rjust, str.center,
    )
}  # fmt: skip
MAKING: dict[int, tuple[Any, Callable[..., Value | None]]] = {
    id(fn): (fn, making) for fn, making in (
        *((fn, _converted) for fn in (str, repr, ascii)), (format, _formatted), (str.format, _of_template),
        (str.join, _joined), *((fn, _of_method) for fn in METHODS.values()),
    )
}  # fmt: skip
"""What makes a text of texts and numbers, and how: None where it may raise something of such values, or all are known."""
