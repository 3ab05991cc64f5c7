"""Texts that a program makes of texts and numbers which each call has others for (`values/symbolic.py`).

In: what f-strings, `%`, `+`, `str`, `format` and `str.format` are given.  Out: a `Text`, where the classes of these tell that it
raises nothing; None of all others, which are evaluated while the frame is captured.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Any

from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.sequences import Tuple
from pycompiler.capture.values.symbolic import Text, is_open, is_open_text, text, today
from pycompiler.ir.computed import joined, percent

CONVERTED: dict[int, Callable[[object], str]] = {1: str, 2: repr, 3: ascii}
FIELD = re.compile(r"%[-#0 +.\d]*[hlL]*([a-zA-Z%*(])")
OF_INTEGERS = frozenset("diouxX")  # of a float: not of all


def _text_of(value: Value) -> str | None:
    return value.value if isinstance(value, Const) and type(value.value) is str else None


def _is_plain_spec(spec: str | None) -> bool:
    """Whether a format specification raises by the class of the value alone: a character is one of some numbers."""
    return spec is not None and spec[-1:] != "c"


def formatted(cx: Capture, value: Value, which: int, spec: Value) -> Text | None:
    """A field of an f-string."""
    value = value if is_open_text(value) else cx.realize(value)
    if not is_open(value) or not _is_plain_spec(_text_of(spec)):
        return None
    if not which:
        return text(cx, format, [value, spec])
    shown = converted(cx, value, which)
    return text(cx, format, [shown, spec]) if shown is not None and _text_of(spec) else shown


def converted(cx: Capture, value: Value, which: int) -> Text | None:
    """`!s`, `!r` or `!a` of a field."""
    value = value if is_open_text(value) else cx.realize(value)
    return text(cx, CONVERTED[which], [value]) if is_open(value) else None


def of_operator(cx: Capture, op: str, left: Value, right: Value) -> Text | None:
    """`left + right` and `left % right` of texts."""
    if op in ("+", "+="):
        known = all(is_open_text(v) or _text_of(v) is not None for v in (left, right))
        return text(cx, joined, [left, right]) if known else None
    if op not in ("%", "%=") or _text_of(left) is None:
        return None
    given = right.items if isinstance(right, Tuple) and right.cls is tuple else [right]
    values = [v if is_open_text(v) else cx.realize(v) for v in given]
    return text(cx, percent, [left, *values]) if _is_plain_percent(cx, _text_of(left), values) else None


def _is_plain_percent(cx: Capture, template: str | None, values: Sequence[Value]) -> bool:
    kinds = FIELD.findall((template or "").replace("%%", ""))
    floats = any(type(today(v)) is float for v in values if is_open(v))
    return not {"c", "*", "("}.intersection(kinds) and not (floats and OF_INTEGERS.intersection(kinds))


def _is_plain_template(template: str | None) -> bool:
    """Whether fields of `str.format` are whole values, with specifications that are known."""
    try:
        fields = list(string.Formatter().parse(template or ""))
    except ValueError:
        return False
    return template is not None and all(
        name is None or not set(name) & set(".[") and _is_plain_spec(spec) and "{" not in (spec or "")
        for _, name, spec, _ in fields
    )


def method_of(value: Value, name: str) -> Method | None:
    """A method of a text that nobody has asked for, which makes another one."""
    return Method(value, Builtin(METHODS[name])) if is_open_text(value) and name in METHODS else None


def called(cx: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Text | None:
    """A call of the program's that makes a text."""
    made: Any = fn.cls if isinstance(fn, Class) else fn.fn if isinstance(fn, Builtin) else None
    plain = PLAIN_CALLS.get(id(made))
    return text(cx, made, args) if plain is not None and args and not kwargs and plain(cx, *args) else None


def _is_plain_call(cx: Capture, text: Value, *args: Value) -> bool:
    return is_open_text(text) and all(isinstance(cx.realize(a), Const) for a in args)


METHODS: dict[str, Any] = {
    f.__name__: f for f in (
        str.upper, str.lower, str.title, str.capitalize, str.casefold, str.swapcase, str.strip, str.lstrip, str.rstrip,
        str.replace, str.removeprefix, str.removesuffix,
    )
}  # fmt: skip
MAKING: list[tuple[Any, Callable[..., bool]]] = [
    *((fn, lambda cx, *args: len(args) == 1) for fn in (str, repr, ascii)),
    (format, lambda cx, value, *spec: all(_is_plain_spec(_text_of(cx.realize(s))) for s in spec)),
    (str.format, lambda cx, template, *values: _is_plain_template(_text_of(cx.realize(template)))),
    *((fn, _is_plain_call) for fn in METHODS.values()),
]
"""What makes a text of texts and numbers, and whether it raises nothing of such values."""
PLAIN_CALLS = {id(fn): known for fn, known in MAKING}
