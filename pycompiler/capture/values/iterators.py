"""Iterators: lazy, consumed one element at a time.

In: a Python iterator over values (a generator of ours), or a suspended inlined frame.  Out: elements by `next`.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const


class Iter(Value):
    """An iterator made during capture.  `cls` is the type Python gives it (list_iterator, zip, ...)."""

    def __init__(self, elements: Iterator[Value], cls: type = type(iter([]))) -> None:
        self.elements = elements
        self.cls = cls
        self.exhausted = False

    def python_type(self) -> type:
        return self.cls

    def next(self, cx: Capture) -> Value | None:
        """The next element, or None when exhausted."""
        if self.exhausted:
            return None
        try:
            return next(self.elements)
        except StopIteration:
            self.exhausted = True
            return None

    def iterate(self, cx: Capture) -> Iterator[Value]:
        while True:
            value = self.next(cx)
            if value is None:
                return
            yield value

    def remaining(self, cx: Capture) -> list[Value]:
        """All that is left; afterwards the iterator continues from a list."""
        left = list(self.iterate(cx))
        self.elements = iter(left)
        self.exhausted = False
        return left

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "__next__":
            return IteratorMethod(self, name)
        if name == "__iter__":
            return IteratorMethod(self, name)
        return super().getattr(cx, name)

    def truth(self, cx: Capture) -> bool:
        return True


class Generator(Iter):
    """A generator: an inlined frame that is suspended between elements."""

    def __init__(self, frame: Any) -> None:
        super().__init__(iter(()), types.GeneratorType)
        self.frame = frame
        self.started = False
        self.running = False

    def next(self, cx: Capture) -> Value | None:
        return self.send(cx, Const(None))

    def send(self, cx: Capture, value: Value) -> Value | None:
        """The next yielded value, or None at the end (the return value is then in `returned`)."""
        if self.exhausted:
            return None
        if self.running:
            cx.throw(ValueError, "generator already executing")
        self.running = True
        try:
            what, result = cx.resume_generator(self.frame, value if self.started else None)
        except (Raised, Break):
            self.exhausted = True
            raise
        finally:
            self.running = False
            self.started = True
        if what == "yield":
            return result  # type: ignore[no-any-return]
        self.exhausted = True
        self.returned = result
        return None

    returned: Value = Const(None)

    def throw(self, cx: Capture, exception: Value) -> Value | None:
        """Raise `exception` at the point where the generator is suspended."""
        if self.exhausted or not self.started:
            self.exhausted = True
            raise Raised(exception)
        self.running = True
        try:
            what, result = cx.throw_into_generator(self.frame, exception)
        except (Raised, Break):
            self.exhausted = True
            raise
        finally:
            self.running = False
        if what == "yield":
            return result  # type: ignore[no-any-return]
        self.exhausted = True
        self.returned = result
        return None

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("send", "throw", "close", "__next__", "__iter__"):
            return IteratorMethod(self, name)
        return super().getattr(cx, name)


class IteratorMethod(Value):
    """A bound method of an iterator."""

    def __init__(self, iterator: Iter, name: str) -> None:
        self.iterator = iterator
        self.name = name

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        it = self.iterator
        if self.name == "__iter__":
            return it
        if self.name == "close":
            it.exhausted = True
            return Const(None)
        if self.name == "__next__":
            value = it.next(cx)
        elif self.name == "send":
            assert isinstance(it, Generator)
            value = it.send(cx, args[0])
        else:
            assert isinstance(it, Generator)
            exception = args[1] if len(args) > 1 and not cx.is_none(args[1]) else args[0]
            value = it.throw(cx, cx.as_exception(exception))
        if value is None:
            result = it.returned if isinstance(it, Generator) else Const(None)
            cx.throw_value(StopIteration, [] if cx.is_none(result) else [result])
        assert value is not None
        return value
