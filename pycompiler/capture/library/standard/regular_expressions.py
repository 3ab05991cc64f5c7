"""Handlers of `re` on constants: patterns and matches are computed during the capture.

In: existing patterns or patterns that the frame compiles, and constant strings.
Out: constants.  An existing pattern is guarded by identity.  A match that leaves the frame breaks the graph: each
call creates its own.
"""

from __future__ import annotations

import operator
import re
import warnings
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.recording.wrap import wraps
from pycompiler.capture.values.base import NEEDED, Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.iterators import Iter
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.opaque import Opaque, as_text
from pycompiler.ir.source import Source

_STEPPED = ("scanner",)  # attributes with a state
_WALKED = ("finditer", "sub", "subn")


class Text(Opaque):
    """A pattern or a match: immutable."""

    def is_const(self) -> bool:
        return True

    def const(self, why: str = NEEDED) -> Any:
        return self.real

    def getattr(self, cx: Capture, name: str) -> Value:
        copied = name == "string" and ("text", id(self.real.string)) in cx.kept
        if name in _STEPPED or name == "__dict__" or copied:
            raise Break("builtin-call", f"{self.describe()}.{name}")
        found = getattr(type(self.real), name, None)
        return cx.evaluate(getattr, self.real, name) if hasattr(found, "__set__") else super().getattr(cx, name)

    def getitem(self, cx: Capture, key: Value) -> Value:
        return cx.evaluate(operator.getitem, self.real, key)


class Match(Text):
    """A match that the frame has created."""

    def is_const(self) -> bool:
        return False


@wraps(re.Pattern)
def _pattern(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source, real)
    return Text(real)


@wraps(re.Match)
def _match(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("type_is", source, type(real))
    return Opaque(real)


@builtin(re._compile)  # type: ignore[attr-defined]
def compile_pattern(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """re.compile, which all functions of the module call first."""
    pattern, flags = (_known(cx, a) for a in args)
    if not isinstance(pattern, (str, bytes, re.Pattern)):
        raise Break("builtin-call", f"re.compile({args[0].describe()})")
    if flags & re.DEBUG:
        raise Break("builtin-call", "re.compile(..., re.DEBUG)")
    if not isinstance(pattern, re.Pattern):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            cx.evaluate(re._compiler.compile, pattern, int(flags))  # type: ignore[attr-defined]  # without the cache of patterns
        if told:
            raise Break("builtin-call", f"re.compile() of a pattern that has a warning: {told[0].message}")
    return cx.evaluate(re.compile, pattern, flags)


def _known(cx: Capture, value: Value) -> Any:
    value = cx.realize(value)
    text = as_text(cx, value)
    if text is not value:
        # a match's `string` shows that the string is a copy
        cx.kept["text", id(text.const())] = text.const()
        return text.const()
    real = getattr(value, "real", None)
    # a default that is 0
    return int(real) if isinstance(real, int) and type(real).__module__ == "re" else cx.snapshot(value)


def _of_class(name: str) -> Any:
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        known = [_known(cx, a) for a in args], {k: _known(cx, v) for k, v in kwargs.items()}
        found = cx.evaluate_raw(getattr(type(known[0][0]), name), *known[0], **known[1])
        return Match(found) if isinstance(found, re.Match) else cx.make(found)

    return call


@builtin(re.Pattern.finditer)
def finditer(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    found = cx.evaluate_raw(
        re.Pattern.finditer, *(_known(cx, a) for a in args), **{k: _known(cx, v) for k, v in kwargs.items()}
    )
    return Iter((Match(m) for m in found), type(found))


def _replacing(name: str) -> Any:
    """`sub` or `subn`: a replacement function is called for one match after the other."""
    plain = _of_class(name)

    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        given = dict(zip(("self", "repl", "string", "count"), args, strict=False)) | kwargs
        repl = given["repl"]
        if repl.is_const() and not callable(repl.const()):
            return plain(cx, args, kwargs)  # type: ignore[no-any-return]
        pattern, text = _known(cx, given["self"]), _known(cx, given["string"])
        count = cx.evaluate_raw(operator.index, _known(cx, given["count"])) if "count" in given else 0
        parts: list[Any] = []
        end, times = 0, 0
        for found in cx.evaluate_raw(pattern.finditer, text):
            parts += [text[end : found.start()]] if end < found.start() else []
            made = cx.realize(cx.call(repl, [Match(found)], {}))
            parts += [] if cx.is_none(made) else [_known(cx, made)]
            end, times = found.end(), times + 1
            if times == count:
                break
        parts += [text[end:]] if end < len(text) else []
        joined = cx.evaluate_raw(text[:0].join, parts)
        return Const(joined) if name == "sub" else Tuple([Const(joined), Const(times)])

    return call


for _name in ("sub", "subn"):
    builtin(getattr(re.Pattern, _name))(_replacing(_name))
for _cls in (re.Pattern, re.Match):
    for _name, _member in vars(_cls).items():
        if type(_member).__name__ == "method_descriptor" and _name not in (*_STEPPED, *_WALKED):
            builtin(_member)(_of_class(_name))
