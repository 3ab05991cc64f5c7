"""What generated code computes outside of the graph, of which the capture knows the class alone: what a clock says, and
what follows from it.

`compute` goes on with functions that raise nothing and give the same class for all values like these. Whoever asks for the
value itself has the graph end there.
"""

from __future__ import annotations

import datetime
import math
import operator
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Addressed, Const, Identity, reference
from pycompiler.capture.values.fixed import assume
from pycompiler.capture.values.sequences import Tuple

MOST, WORD = 1e300, 2.0**64


LASTING = (os.getpid, os.getppid)
"""What is the same for long: a question about it is guarded."""


def join(*parts: str) -> str:
    """An f-string's text."""
    return "".join(parts)


class Deferred(Value):
    """`make(*parts)`. `sample`: what it would be now; `limit`: the magnitude that no such number exceeds."""

    def __init__(self, make: Callable[..., Any], parts: Sequence[Value], sample: Any, limit: float = math.inf) -> None:
        self.make, self.parts, self.sample, self.limit = make, list(parts), sample, limit

    def describe(self) -> str:
        return f"a {class_name(type(self.sample))} that is known when the graph has run"

    __repr__ = describe

    def python_type(self) -> type:
        if isinstance(self.sample, threading.Thread):  # others are of other classes
            raise self.is_asked()
        return type(self.sample)

    def is_asked(self) -> Break:
        return Break("builtin-call", f"{self.describe()} is looked at")

    def identity(self) -> object:
        return ("deferred", id(self))

    def const(self) -> Any:
        raise self.is_asked()

    def truth(self, cx: Capture) -> bool:
        read = list(self.reads())
        if not all(isinstance(r, Reading) and r.make in LASTING for r in read):
            raise self.is_asked()
        for reading in read:
            assume(cx, (reading.make,), reading.make, "it depends on the number of the process")
        return bool(self.sample)

    def reads(self) -> Iterator[Deferred]:
        """What it is computed from."""
        parts = [p for p in self.parts if isinstance(p, Deferred)]
        if isinstance(self, Reading) or any(isinstance(p, Tuple) for p in self.parts):
            yield self
        for part in parts:
            yield from part.reads()

    def contains(self, cx: Capture, item: Value) -> bool:
        raise self.is_asked()

    def getattr(self, cx: Capture, name: str) -> Value:
        if any(isinstance(self.sample, cls) and name in names for cls, names in ATTRIBUTES.items()):
            return compute(cx, getattr, [self, Const(name)])
        return super().getattr(cx, name)


class Reading(Deferred):
    """What a call gives that only reads. `first`: it may be made before the graph; else behind it, and no operator comes
    between: `told` is the break where one does."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Value], sample: Any, limit: float, told: Break | None
    ) -> None:
        super().__init__(fn, args, sample, limit)
        self.first, self.told = told is None, told
        self.behind: Any = None  # the last node of the graph before it


def read(cx: Capture, fn: Callable[..., Any], args: Sequence[Value], limit: float, *, timed: bool) -> Value:
    graph = cx.graph
    if hasattr(graph, "outer"):
        raise Break("inner-graph", f"what {getattr(fn, '__name__', fn)}() gives, inside of a transformed function")
    last = next((n for n in reversed(graph.graph.nodes) if n.op.startswith("call")), None)
    told = None
    if timed and last is not None:
        told = cx.frames[-1].here(Break("builtin-call", f"{getattr(fn, '__name__', fn)}() between operators"))
    made = Reading(fn, args, fn(*[a.const() for a in args]), limit, told)
    made.behind = last
    cx.effects.read(made)
    return made


class ThreadIdent(Identity):
    """`threading.get_ident()`: a number that is no other key's (reprlib makes keys of it), and that each call reads."""

    def __init__(self) -> None:
        super().__init__(Const(None))

    def settled(self, cx: Capture) -> Value:
        return read(cx, threading.get_ident, [], WORD, timed=False)


def _is_nonzero(value: Value) -> bool:
    return isinstance(value, Const) and bool(value.value)


def _any(*values: Value) -> bool:
    return True


def _finite(*values: Value) -> bool:
    first = values[0]
    return not isinstance(first, Deferred) or not isinstance(first.sample, float) or first.limit < MOST


NUMBERS = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, float)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
TEXTS = (str, repr, ascii, format, str.format, time.strftime, time.asctime, join)
METHODS = (
    datetime.timedelta.total_seconds, datetime.datetime.timestamp, datetime.datetime.isoformat, datetime.datetime.strftime,
    datetime.datetime.date, datetime.datetime.time, datetime.date.isoformat, datetime.date.strftime, getattr,
)  # fmt: skip
TOTAL: dict[Any, Callable[..., bool]] = {
    **dict.fromkeys((*NUMBERS, *COMPARISONS, *TEXTS, *METHODS), _any),
    **dict.fromkeys((int, round, math.floor, math.ceil, math.trunc), _finite),
    **dict.fromkeys((operator.truediv, operator.floordiv), lambda a, b: _is_nonzero(b)),
    operator.mod: lambda a, b: _is_nonzero(b) or isinstance(a, Const) and isinstance(a.value, str),
}
"""Functions -> whether they raise nothing of such values."""
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    threading.Thread: ("name", "ident", "daemon", "native_id"),
    uuid.UUID: ("hex", "int", "bytes"),
    datetime.date: ("year", "month", "day"),
    datetime.datetime: ("hour", "minute", "second", "microsecond"),
    datetime.timedelta: ("days", "seconds", "microseconds"),
}
LIMITS: dict[Any, Callable[..., float]] = {
    operator.add: operator.add, operator.sub: operator.add, operator.mul: operator.mul, operator.neg: abs, operator.pos: abs,
    abs: abs, float: abs, int: abs, round: lambda n, *digits: n + 1,
}  # fmt: skip


DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)


def _limit_of(value: Value) -> float:
    if isinstance(value, Deferred):
        return value.limit
    return abs(value.value) if isinstance(value, Const) and isinstance(value.value, (int, float)) else math.inf


def _limit(fn: Any, values: Sequence[Value]) -> float:
    try:
        if fn in (operator.truediv, operator.floordiv):
            return _limit_of(values[0]) / _limit_of(values[1]) + 1
        return float(LIMITS[fn](*map(_limit_of, values))) if fn in LIMITS else math.inf
    except (ArithmeticError, TypeError):
        return math.inf


def holds(value: Value) -> bool:
    if not isinstance(value, Tuple):
        return isinstance(value, Deferred)
    if value.deferred is None:
        value.deferred = any(map(holds, value.raw))
    return value.deferred


def sample_of(value: Value) -> Any:
    if isinstance(value, Deferred):
        return value.sample
    if isinstance(value, Tuple) and value.cls is tuple:
        return tuple(map(sample_of, value.items))
    return value.settle("beside what is known when the graph has run").const()


def compute(cx: Capture, fn: Any, values: Sequence[Value]) -> Deferred:
    """fn(*values), of which one is deferred; a break where it might raise, or looks at the value."""
    asked = Break("builtin-call", f"{getattr(fn, '__name__', fn)} of {', '.join(v.describe() for v in values)}")
    values = [cx.realize(v) for v in values]
    raises = fn in DIVISIONS and _may_raise_behind(cx, values)
    if not (raises or fn in TOTAL and TOTAL[fn](*values)):
        raise asked
    try:
        sample = fn(*map(sample_of, values))
    except Exception:  # the program's, if it comes to it
        raise asked from None
    if sample is NotImplemented:
        raise asked
    made = Deferred(fn, values, sample, _limit(fn, values))
    if raises:
        cx.effects.readings.append(made)
    return made


def _may_raise_behind(cx: Capture, values: Sequence[Value]) -> bool:
    """Whether an error of a division is the frame's where generated code meets it, behind the graph: nobody handles it, nothing
    else has happened, and no operator follows."""
    late = any(isinstance(r, Reading) and not r.first for r in cx.effects.readings)
    plain = all(isinstance(v, Deferred) or v.python_type() in (int, float) for v in values)
    return late and plain and not cx.effects and all(f.current.handler is None for f in cx.frames)


def call(cx: Capture, fn: Any, args: Sequence[Value]) -> Value | None:
    """A call of a builtin or class with a deferred argument, where it is one of those; None of all others."""
    if not any(map(holds, args)):
        return None
    try:
        known = fn in TOTAL
    except TypeError:  # not hashable
        return None
    return compute(cx, fn, args) if known else None


def _is_this_thread(cx: Capture, thread: Value) -> bool:
    """Whether an existing thread is the one that runs the frame, which is guarded."""
    real = thread.real  # type: ignore[attr-defined]
    assert thread.source is not None
    cx.guard("id_is", thread.source, reference(real))

    def asks() -> bool:
        return threading.current_thread() is real

    assume(cx, ("this thread", id(real)), asks, "it depends on the thread")
    return asks()


def is_one(cx: Capture, a: Value, b: Value) -> bool:
    """`a is b` of two values of which one is deferred."""
    for asked, thread in ((a, b), (b, a)):
        runs = isinstance(asked, Reading) and asked.make is threading.current_thread
        if runs and thread.source is not None and isinstance(getattr(thread, "real", None), threading.Thread):
            return _is_this_thread(cx, thread)
    known = [v.value for v in (a, b) if isinstance(v, Const)]
    if a is b or known and any(known[0] is c for c in (None, Ellipsis, NotImplemented)):
        return a is b
    raise next(v for v in (a, b) if isinstance(v, Deferred)).is_asked()


def joined(cx: Capture, parts: Sequence[Value]) -> Value | None:
    """The parts of a text, one of which is deferred."""
    if not any(isinstance(v, Deferred) for v in parts):
        return None
    if any(isinstance(v, Addressed) for v in parts):
        return Deferred(join, parts, "")
    return compute(cx, join, parts)
