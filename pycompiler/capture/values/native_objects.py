"""Objects of C classes that the frame creates from constants: buffers, hashes, locks, random generators, byte arrays.

In: calls that create or use such an object, with constants and other such objects as arguments.  The capture performs
each call on an object of its own, so the result is known.  No other code has that object.

Out: if the object leaves the graph, generated code repeats all calls of its journal in order (`NativeCall`).  Each class has
a row in `KINDS`.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.attributes import lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import LITERALS, Const
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.ir.source import const_source


def _never(own: Any, name: str, args: list[Any], words: dict[str, Any]) -> bool:
    return False


@dataclass(frozen=True)
class NativeKind:
    """Properties of the instances of a class."""

    shown: bool = False  # whether its str shows the contents, not the address
    equals: bool = False  # whether `==` compares contents
    reads: tuple[str, ...] = ()  # methods without side effects
    refused: tuple[str, ...] = ()  # attributes that depend on other state, or change an argument
    depends: Callable[..., bool] = _never  # whether a call would wait, or depends on more than constants


KINDS: dict[type, NativeKind] = {}
MAKERS: list[Any] = []
"""Functions and classes that create such objects."""
TEXTS = (str, repr, ascii, format, hash)
ADDRESSES = ("__repr__", "__str__", "__format__", "__hash__")  # of objects that are not `shown`
READS = (getattr, len, bool, operator.getitem, operator.contains)
REFUSED = (
    "__reduce__",
    "__reduce_ex__",
    "__sizeof__",
    "__getstate__",
    "__dict__",
    "__weakref__",
    "__init__",
    "__del__",
)
EXIT = "__exit__"  # its arguments are irrelevant for these classes


@dataclass(eq=False)
class NativeCall:
    """A recorded call.  `made`: the new object that it returned, if any; `raised`: whether it raised."""

    fn: Any
    args: list[Value]
    kwargs: dict[str, Value]
    made: NativeObject | None = None
    raised: bool = False


class NativeObject(Value):
    """One of these objects.  `own`: the capture's real object."""

    def __init__(self, own: Any, journal: list[NativeCall]) -> None:
        self.own = own
        self.journal = journal  # calls on this object, and on objects that it was used with

    @property
    def kind(self) -> NativeKind:
        return KINDS[type(self.own)]

    def describe(self) -> str:
        return f"{type(self.own).__qualname__} object"

    __repr__ = describe

    def python_type(self) -> type:
        return type(self.own)

    def getattr(self, cx: Capture, name: str) -> Value:
        cls = type(self.own)
        if name == "__class__":
            return cx.make(cls)
        if name in REFUSED or name in self.kind.refused:
            raise Break("unsupported-attribute", f"{self.describe()}.{name}")
        raw = mro_lookup(cls, name)
        if name not in getattr(self.own, "__dict__", ()):
            if isinstance(raw, types.FunctionType):
                source = const_source(cls).then("mro_lookup", name)
                return Method(self, PythonMethod(cx.wrap(lookup(cx, cls, name), source)))
            if isinstance(raw, types.MethodDescriptorType | types.WrapperDescriptorType):
                return Method(self, Builtin(raw))
        return run(cx, getattr, [self, Const(name)], {})

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if name.startswith("__"):  # the class would change
            super().setattr(cx, name, value)
        run(cx, setattr, [self, Const(name), value], {})

    def delattr(self, cx: Capture, name: str) -> None:
        if name.startswith("__"):
            super().delattr(cx, name)
        run(cx, delattr, [self, Const(name)], {})

    def getitem(self, cx: Capture, key: Value) -> Value:
        return run(cx, operator.getitem, [self, key], {})

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        run(cx, operator.setitem, [self, key, value], {})

    def delitem(self, cx: Capture, key: Value) -> None:
        run(cx, operator.delitem, [self, key], {})

    def is_iterator(self) -> bool:
        return hasattr(type(self.own), "__next__")

    def iterate(self, cx: Capture) -> Iterator[Value]:
        if not hasattr(type(self.own), "__getitem__"):
            cx.throw(TypeError, f"{class_name(type(self.own))!r} object is not iterable")
        return self._items(cx)

    def _items(self, cx: Capture) -> Iterator[Value]:
        at = 0
        while at < self.length(cx).const():
            yield self.getitem(cx, Const(at))
            at += 1

    def next(self, cx: Capture) -> Value | None:
        """The next element of an iterator, or None at its end."""
        try:
            return run(cx, type(self.own).__next__, [self], {})
        except Raised as e:
            if not issubclass(e.value.python_type(), StopIteration):
                raise
            return None

    def length(self, cx: Capture) -> Value:
        return run(cx, len, [self], {})

    def truth(self, cx: Capture) -> bool:
        return bool(run(cx, bool, [self], {}).const())

    def contains(self, cx: Capture, item: Value) -> bool:
        return bool(run(cx, operator.contains, [self, item], {}).const())


class PythonMethod(Value):
    """A Python method of such a class, always inlined."""

    def __init__(self, function: Value) -> None:
        self.function = function

    def python_type(self) -> type:
        return types.FunctionType

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.inline(self.function, args, kwargs)


def takes(fn: Any, args: list[Value], kwargs: dict[str, Value], is_pure: Callable[[Any], bool]) -> bool:
    """Whether the capture performs a call itself: a method of such an object, or a function that only reads constants."""
    if not any(isinstance(v, NativeObject) for v in (*args, *kwargs.values())):
        return False
    of = getattr(fn, "__objclass__", None)
    if of is not None and args and isinstance(args[0], NativeObject):
        return of is not object and issubclass(type(args[0].own), of)
    if _is_among(fn, TEXTS):
        return bool(args) and isinstance(args[0], NativeObject) and args[0].kind.shown
    return _is_among(fn, MAKERS) or is_pure(fn)


def _is_among(fn: Any, known: Any) -> bool:
    return any(fn is other for other in known)


def run(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], *, reads: bool = False) -> Value:
    """fn(*args, **kwargs), performed by the capture.  `reads`: it has no side effects."""
    args = [cx.realize(a) for a in args]
    name = getattr(fn, "__name__", "")
    if name == EXIT:
        args = [args[0], *[Const(None)] * (len(args) - 1)]
    given, words = [_known(cx, a) for a in args], {k: _known(cx, v) for k, v in kwargs.items()}
    owners = [v for v in (*args, *kwargs.values()) if isinstance(v, NativeObject)]
    for owner in owners:
        cx.effects.allow(owner, owner.describe())
        if name in owner.kind.refused or (name in ADDRESSES and not owner.kind.shown):
            raise Break("builtin-call", f"{owner.describe()}.{name}()")
        if owner.kind.depends(owner.own, name, given[1:], words):
            raise Break("builtin-call", f"{owner.describe()}.{name}(), which depends on more than constants")
    kept = [v if isinstance(v, NativeObject) else cx.make(r) for v, r in zip(args, given, strict=True)]
    step = NativeCall(fn, kept, {k: v if isinstance(v, NativeObject) else cx.make(words[k]) for k, v in kwargs.items()})
    reads = bool(owners) and (reads or _is_among(fn, READS) or all(name in o.kind.reads for o in owners))
    journal = _joined(owners)
    try:
        found = cx.evaluate_raw(fn, *given, **words)
    except Raised:
        step.raised = True
        _note(cx, journal, step, owners, reads)
        raise
    value = _given(cx, found, journal, step)
    _note(cx, journal, step, owners, reads and step.made is None)
    return value


def _note(cx: Capture, journal: list[NativeCall], step: NativeCall, owners: list[NativeObject], reads: bool) -> None:
    if not reads:
        journal.append(step)
        cx.effects.changes += bool(owners)


def _joined(owners: list[NativeObject]) -> list[NativeCall]:
    """The common journal of objects that are used together: their journals are merged."""
    if not owners:
        return []
    journal = owners[0].journal
    for owner in owners[1:]:
        if owner.journal is not journal:
            other = owner.journal
            journal += other
            for member in [step.made for step in other if step.made is not None]:
                member.journal = journal
    return journal


def _known(cx: Capture, value: Value) -> Any:
    """The argument for the capture's call: its own object, or a constant."""
    value = cx.realize(value)
    if isinstance(value, NativeObject):
        return value.own
    return cx.snapshot(value, "as an argument of a call that the capture makes")


def _given(cx: Capture, found: Any, journal: list[NativeCall], step: NativeCall) -> Value:
    """The result of the call, as a value."""
    known = cx.by_id.get(id(found))
    if isinstance(known, NativeObject):
        return known
    if any(type(found) is cls for cls in KINDS):
        step.made = made = NativeObject(found, journal)
        cx.remember(found, made)
        return made
    if not is_plain(found):
        raise Break(
            "builtin-call", f"{getattr(step.fn, '__qualname__', step.fn)}, which returns a {type(found).__qualname__}"
        )
    return cx.make(found)


def is_plain(found: Any) -> bool:
    """Whether it consists of numbers, str, bytes and containers of them."""
    if type(found) in (list, tuple, set, frozenset):
        return all(map(is_plain, found))
    if type(found) is dict:
        return all(map(is_plain, (*found, *found.values())))
    return type(found) in LITERALS


def compute(cx: Capture, fn: Any, values: list[Value], *, reads: bool = True) -> Value:
    """An operator with such an object among its operands."""
    if fn in (operator.eq, operator.ne) and not any(isinstance(v, NativeObject) and v.kind.equals for v in values):
        if all(isinstance(v, NativeObject) or v.is_const() for v in values):
            return Const(cx.same(*values) is (fn is operator.eq))
    return run(cx, fn, values, {}, reads=reads)
