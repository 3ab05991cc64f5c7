"""Deferred values: computed by generated code outside of the graph, with only their class known to the capture.

Example: the time of a clock, and arithmetic on it.  `compute` accepts functions that raise nothing and return the same
class for all such values.  A use of the value itself breaks the graph.
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
from pycompiler.capture.values.base import NEEDED, Capture, Value, class_name
from pycompiler.capture.values.constant import AddressStr, Const, Identity, reference
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.distributed_objects import assume

MOST, WORD = 1e300, 2.0**64


LASTING = (os.getpid, os.getppid)
"""Functions whose result stays the same for long.  A condition on such a result is guarded."""


def join(*parts: str) -> str:
    """The str of an f-string."""
    return "".join(parts)


class Deferred(Value):
    """`make(*parts)`.  `sample`: the result of the call now.  `limit`: an upper bound of the number's magnitude."""

    def __init__(self, make: Callable[..., Any], parts: Sequence[Value], sample: Any, limit: float = math.inf) -> None:
        self.make, self.parts, self.sample, self.limit = make, list(parts), sample, limit

    def describe(self) -> str:
        return f"a {class_name(type(self.sample))} that is known only after the graph"

    __repr__ = describe

    def python_type(self) -> type:
        if isinstance(self.sample, threading.Thread):  # another call may run in a thread of another class
            raise self.is_asked()
        return type(self.sample)

    def is_asked(self) -> Break:
        return Break("builtin-call", f"{self.describe()} is used")

    def identity(self) -> object:
        return ("deferred", id(self))

    def const(self, why: str = NEEDED) -> Any:
        raise self.is_asked()

    def truth(self, cx: Capture) -> bool:
        read = list(self.reads())
        if not all(isinstance(r, Reading) and r.make in LASTING for r in read):
            raise self.is_asked()
        for reading in read:
            assume(cx, (reading.make,), reading.make, "the capture depends on the process id")
        return bool(self.sample)

    def reads(self) -> Iterator[Deferred]:
        """The readings that it is computed from."""
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
    """The result of a call that only reads.

    `first`: the call may run before the graph.  Otherwise it runs after the graph, and no operator may come between.
    `told` is the graph break to raise if one does.
    """

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Value], sample: Any, limit: float, told: Break | None
    ) -> None:
        super().__init__(fn, args, sample, limit)
        self.first, self.told = told is None, told
        self.behind: Any = None  # the last graph node before the call


def read(cx: Capture, fn: Callable[..., Any], args: Sequence[Value], limit: float, *, timed: bool) -> Value:
    graph = cx.graph
    if hasattr(graph, "outer"):
        raise Break("inner-graph", f"{getattr(fn, '__name__', fn)}() inside of a transformed function")
    last = next((n for n in reversed(graph.graph.nodes) if n.op.startswith("call")), None)
    told = None
    if timed and last is not None:
        told = cx.frames[-1].here(Break("builtin-call", f"{getattr(fn, '__name__', fn)}() between operators"))
    made = Reading(fn, args, fn(*[a.const() for a in args]), limit, told)
    made.behind = last
    cx.effects.read(made)
    return made


class ThreadIdent(Identity):
    """`threading.get_ident()`: a number unequal to all other keys (reprlib uses it as a key), read anew in each call."""

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
NEVER_RAISE: dict[Any, Callable[..., bool]] = {
    **dict.fromkeys((*NUMBERS, *COMPARISONS, *TEXTS, *METHODS), _any),
    **dict.fromkeys((int, round, math.floor, math.ceil, math.trunc), _finite),
    **dict.fromkeys((operator.truediv, operator.floordiv), lambda a, b: _is_nonzero(b)),
    operator.mod: lambda a, b: _is_nonzero(b) or isinstance(a, Const) and isinstance(a.value, str),
}
"""Functions -> a predicate on the arguments: whether the function cannot raise for them."""
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
    return value.const("beside a value that is known only after the graph")


def compute(cx: Capture, fn: Any, values: Sequence[Value]) -> Deferred:
    """fn(*values), at least one of them deferred.  A graph break if the function might raise or uses the value."""
    asked = Break("builtin-call", f"{getattr(fn, '__name__', fn)} of {', '.join(v.describe() for v in values)}")
    values = [cx.realize(v) for v in values]
    raises = fn in DIVISIONS and _may_raise_behind(cx, values)
    if not (raises or fn in NEVER_RAISE and NEVER_RAISE[fn](*values)):
        raise asked
    try:
        sample = fn(*map(sample_of, values))
    except Exception:  # the program's own error, if generated code ever calls it
        raise asked from None
    if sample is NotImplemented:
        raise asked
    made = Deferred(fn, values, sample, _limit(fn, values))
    if raises:
        cx.effects.readings.append(made)
    return made


def _may_raise_behind(cx: Capture, values: Sequence[Value]) -> bool:
    """Whether an error of a division may be raised by generated code after the graph.

    True if no frame handles exceptions here, there are no other side effects, and no operator follows.
    """
    late = any(isinstance(r, Reading) and not r.first for r in cx.effects.readings)
    plain = all(isinstance(v, Deferred) or v.python_type() in (int, float) for v in values)
    return late and plain and not cx.effects and all(f.current.handler is None for f in cx.frames)


def call(cx: Capture, fn: Any, args: Sequence[Value]) -> Value | None:
    """A call of a builtin function or class with a deferred argument; None for all other calls."""
    if not any(map(holds, args)):
        return None
    try:
        known = fn in NEVER_RAISE
    except TypeError:  # not hashable
        return None
    return compute(cx, fn, args) if known else None


def _is_this_thread(cx: Capture, thread: Value) -> bool:
    """Guard and return whether an existing thread object is the thread that runs the frame."""
    real = thread.real  # type: ignore[attr-defined]
    assert thread.source is not None
    cx.guard("id_is", thread.source, reference(real))

    def asks() -> bool:
        return threading.current_thread() is real

    assume(cx, ("this thread", id(real)), asks, "the capture depends on the thread")
    return asks()


def is_one(cx: Capture, a: Value, b: Value) -> bool:
    """`a is b`, where one of the values is deferred."""
    for asked, thread in ((a, b), (b, a)):
        runs = isinstance(asked, Reading) and asked.make is threading.current_thread
        if runs and thread.source is not None and isinstance(getattr(thread, "real", None), threading.Thread):
            return _is_this_thread(cx, thread)
    known = [v.value for v in (a, b) if isinstance(v, Const)]
    if a is b or known and any(known[0] is c for c in (None, Ellipsis, NotImplemented)):
        return a is b
    raise next(v for v in (a, b) if isinstance(v, Deferred)).is_asked()


def joined(cx: Capture, parts: Sequence[Value]) -> Value | None:
    """Concatenate parts of a str, one of them deferred; None if none is."""
    if not any(isinstance(v, Deferred) for v in parts):
        return None
    if any(isinstance(v, AddressStr) for v in parts):
        return Deferred(join, parts, "")
    return compute(cx, join, parts)
