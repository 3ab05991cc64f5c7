"""Iterators: lazy, consumed one element at a time.

In: a Python iterator over values, or a suspended inlined frame.  Out: elements by `next`.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.base import Capture, LazyObject, Value, class_name
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict, Proxy, keys_now, last_key
from pycompiler.capture.values.containers.sequences import Deque, Sequence
from pycompiler.capture.values.containers.sets import Set, values_in
from pycompiler.capture.values.finalizers import ends_quietly, is_referred_to, only_entries_refer, runs_code
from pycompiler.ir import iterator_state
from pycompiler.ir.source import OWNED_PREFIX, Source, mro_of, namespace_of

if TYPE_CHECKING:
    from pycompiler.capture.values.interface import Frame

Recipe = tuple[Callable[..., Any], list[Value]]


# One example of each class that has an iterator class of its own.
ITERATED: tuple[Any, ...] = (
    [], (), {}, set(), frozenset(), "", b"", bytearray(), range(0), collections.deque(), collections.OrderedDict(),
    {}.keys(), {}.values(), {}.items(),
    collections.OrderedDict().keys(), collections.OrderedDict().values(), collections.OrderedDict().items(),
)  # fmt: skip


class _Indexed:
    def __getitem__(self, index: int) -> int:
        return index


INDEXING = type(iter(_Indexed()))  # the iterator of objects that have only `__getitem__`


PASSING: frozenset[Any] = frozenset(
    {map, zip, enumerate, filter, itertools.filterfalse, itertools.islice, itertools.accumulate, itertools.starmap,
     itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.pairwise}
)  # fmt: skip
"""Iterators that pass on the StopIteration of the iterator they call; others raise their own."""

GROUP: type = type(next(itertools.groupby([0]))[1])
TEE: type = itertools._tee  # type: ignore[attr-defined]
RESUMABLE = PASSING - {itertools.islice, itertools.pairwise} | {
    itertools.groupby, GROUP, TEE, type(iter(collections.deque()))
}  # fmt: skip
"""Iterators that call an ended inner iterator again, so that they may continue."""

END_ON_ERROR: frozenset[Any] = frozenset(
    {itertools.islice, itertools.pairwise, itertools.zip_longest, reversed, type(reversed(collections.deque()))}
)  # fmt: skip
"""Iterators that end when the inner iterator raises an error."""


def iterator_class(value: Value, *, backwards: bool = False) -> type:
    """The class of iter(container), or of reversed(container)."""
    make: Callable[[Any], object] = reversed if backwards else iter
    value = value.mapping if isinstance(value, Proxy) else value
    if value.is_const() and value.python_type() in (str, range):  # their iterator classes depend on the contents
        return type(make(value.const()))
    name = "__reversed__" if backwards else "__iter__"
    owner = next((c for c in mro_of(value.python_type()) if name in namespace_of(c)), None)
    example = next((e for e in ITERATED if type(e) is owner), None)
    if owner is None and not backwards:
        return INDEXING
    return type(make(() if example is None else example))


class IterationState:
    """The list, dict or set of an iterator, and its state when the iterator was created."""

    def __init__(self, container: Sequence | Dict | Set, *, backwards: bool = False) -> None:
        self.container, self.backwards = container, backwards
        self.owner = container.within  # the instance of a container subclass, if any
        self.length = len(container.items if isinstance(container, Sequence) else keys_now(container))
        self.last = None if isinstance(container, Sequence) else last_key(container)
        self.moves = container.moves if isinstance(container, Deque) else 0
        self.failed = False  # the iterator has raised for a changed container, and will again

    def is_moved(self, taken: int) -> bool:
        """Whether a new iterator, after `taken` elements, would be at another place.

        The dict or set has other keys now, the deque has invalidated its iterators, or the list has lost elements after
        the place.
        """
        container = self.container
        if self.failed:
            return True
        if isinstance(container, Deque):
            return container.moves != self.moves
        if not isinstance(container, Sequence):
            return len(keys_now(container)) != self.length or last_key(container) is not self.last
        return self.backwards and self.length - taken > len(container.items)


class Iter(Value):
    """An iterator created during capture.  `cls` is its Python type (list_iterator, zip, ...).

    - `step`: returns the next element, or None at the end.
    - `recipe`: from the number of elements taken, a function and arguments that create an iterator in the same state.
      Without a recipe the iterator cannot be alive where the graph ends.
    - `over`: the list, dict or set that it iterates.
    """

    def __init__(
        self,
        step: Callable[[], Value | None] | Iterator[Value],
        cls: type = type(iter([])),
        recipe: Callable[[int], Recipe] | None = None,
        *,
        over: IterationState | None = None,
    ) -> None:
        self.step: Callable[[], Value | None] = step if callable(step) else (lambda: next(step, None))
        self.cls = cls
        self.recipe = recipe
        self.exhausted = self.busy = False
        self.real: Any = None  # an iterator that existed before the frame
        self.taken = 0
        self.over = over
        self.indexes: Value | None = None  # for the class INDEXING: the object whose `__getitem__` it calls
        self.made_at: int | None = None  # step of the root frame's instruction that created it

    def python_type(self) -> type:
        return self.cls

    def next(self, cx: Capture) -> Value | None:
        """The next element, or None when exhausted."""
        if self.exhausted:
            return None
        cx.effects.allow(self, "an iterator")
        cx.count_element()
        if self.busy:  # reentered from its inner iterator: CPython continues in the middle of a step
            raise Break(
                "unsupported-operation", f"a {self.cls.__name__} that is advanced again while it computes an element"
            )
        self.busy = True
        try:
            value = self.step()
        except Raised:
            self.exhausted = self.cls in END_ON_ERROR
            if self.over is not None:
                self.over.failed = True
            raise
        finally:
            self.busy = False
        if value is None:
            self.exhausted = self.cls not in RESUMABLE
        else:
            self.taken += 1
        return value

    def iterate(self, cx: Capture) -> Iterator[Value]:
        while (value := cx.next_of(self)) is not None:
            yield value

    def contains(self, cx: Capture, item: Value) -> bool:
        return any(cx.alike(value, item) for value in self.iterate(cx))

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("__next__", "__iter__"):
            return IteratorMethod(self, name)
        return super().getattr(cx, name)

    def truth(self, cx: Capture) -> bool:
        return True


class ExistingIterator(Iter):
    """An iterator that existed before the frame.

    The elements ahead are read and guarded one by one: each place has its own guard.  The real iterator does not move;
    a side effect advances it by the program's steps.
    """

    def __init__(self, real: Any, source: Source) -> None:
        super().__init__(lambda: None, type(real))
        self.real = real
        self.lets_go_quietly = ends_quietly(real)  # computed before another reference to the container exists
        self.rest = source.then("begun", "rest")
        self.ahead = iterator_state.read(real, "rest")
        self.held: Any = None  # the container that it iterates
        with contextlib.suppress(IndexError, TypeError):
            self.held = iterator_state.read(real, "over")

    def is_over(self, cx: Capture, container: Value) -> bool:
        """Whether it iterates this existing container."""
        known = cx.by_id.get(id(self.held))
        return known is not None and container in (known, getattr(known, "storage", None))

    def next(self, cx: Capture) -> Value | None:
        if self.exhausted:
            return None
        cx.effects.allow(self, "an iterator")
        if self.taken >= iterator_state.MAX_ELEMENTS:
            raise Break("running-iterator", f"{iterator_state.MAX_ELEMENTS} elements of a {self.cls.__name__}")
        known = cx.by_id.get(id(self.held))
        if cx.effects.is_disturbed(self.held, known):
            raise Break("running-iterator", f"a {self.cls.__name__} over an object that the frame has changed")
        if self.taken == len(self.ahead):
            if not self.lets_go_quietly:
                raise Break(
                    "finalizer",
                    f"a {self.cls.__name__} at its end, which drops the object that it iterates over",
                    gives_end=True,
                )
            cx.guard("length", self.rest, len(self.ahead))
            cx.effects.advance(self)
            self.exhausted = True
            return None
        value = cx.wrap(self.ahead[self.taken], self.rest.item(self.taken))
        cx.effects.advance(self)
        self.taken += 1
        return value


class ExistingOuterIterator(Iter):
    """An outer iterator that existed before the frame, such as a zip: its steps advance its inner iterators as well.

    The side effect advances the outer one alone.  `step` must not refer to it: the cycle would keep values alive after
    the capture.
    """

    def __init__(self, step: Callable[[], Value | None], real: Any) -> None:
        super().__init__(step, type(real))
        self.real = real

    def next(self, cx: Capture) -> Value | None:
        if self.exhausted:
            return None
        with cx.effects.following():
            value = super().next(cx)
        cx.effects.advance(self)
        return value


ENDING = (types.GeneratorType, enumerate, zip, map, filter, weakref.ref)
"""A weak reference is included, since its callback is called only while the reference lives."""


def runs_code_at_end(value: Value) -> bool:
    """Whether code of the program may run when the last reference to an iterator or existing object goes.

    Example: an iterator over a generator, whose `finally` block runs.
    """
    if isinstance(value, LazyObject) and value.seen is not None:
        value = value.seen
    real = getattr(value, "real", None)
    cls = value.cls if isinstance(value, Iter) else type(real)
    if any(cls is kind for kind in ENDING):  # a metaclass may define `__eq__`
        return True
    if value.ends is None and real is not None:
        value.ends = runs_code(real) or is_referred_to(real) or _was_kept(value)
    return bool(value.ends) or any(map(_ends_others_too, _held(value)))


def is_seen_by_entries_alone(value: Value) -> bool:
    """Whether only this compiler's guards observe the end of an existing object, and the end runs no code.

    Expensive, since all weak references are read; called before a graph break only.
    """
    seen = value.seen if isinstance(value, LazyObject) and value.seen is not None else value
    real = getattr(seen, "real", None)
    if real is None or seen.referred or value.referred or isinstance(seen, (Sequence, Dict, Set, Iter)):
        return False
    return not runs_code(real) and not _was_kept(seen) and is_referred_to(real) and only_entries_refer(real)


KEPT = (torch.Tensor, torch.nn.Module, types.FunctionType)
"""Classes whose weak references say nothing: libraries hold some too."""


def _was_kept(value: Value) -> bool:
    """Whether the frame before a graph break passed this tensor, module or function on in a box (a list).

    It did so because the object's end can be observed.
    """
    box = None if value.source is None or value.source.kind != "item" else value.source.base
    return (
        issubclass(type(getattr(value, "real", None)), KEPT)  # a proxy may lie about its class, or raise
        and box is not None
        and box.kind == "local"
        and (str(box.arg).startswith(OWNED_PREFIX))
    )


def _held(container: Value) -> Iterable[Value]:
    """The contents of an existing list, tuple, dict or set; none for a new one, which is built where the graph ends."""
    if container.source is None or not isinstance(container, (Sequence, Dict, Set)):
        return []
    return values_in(container)


def _ends_others_too(value: Value, depth: int = 3) -> bool:
    """`ends` for the contents of a container: objects as they were, and nested containers."""
    if value.ends is None and (real := getattr(value, "real", None)) is not None:
        value.ends = runs_code(real)
    return bool(value.ends) or depth > 0 and any(_ends_others_too(v, depth - 1) for v in _held(value))


def holds_ends(value: Value, depth: int = 3) -> bool:
    """Whether a new container holds an object that weak references may refer to."""
    if value.source is not None or depth == 0 or not isinstance(value, (Sequence, Dict, Set)):
        return False
    items = values_in(value)
    return any(v.ends or holds_ends(v, depth - 1) for v in items)


class Generator(Iter):
    """A generator: an inlined frame that is suspended between elements."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(lambda: None, types.GeneratorType)
        self.frame: Frame | None = frame  # None when it has ended
        self.names = (frame.code.co_name, frame.code.co_qualname)
        self.started = False
        self.running = False

    @property
    def alive(self) -> Frame:
        """The frame of a generator that has not ended."""
        assert self.frame is not None
        return self.frame

    def next(self, cx: Capture) -> Value | None:
        return self.send(cx, Const(None))

    def send(self, cx: Capture, value: Value) -> Value | None:
        """The next yielded value, or None at the end (the return value is then in `returned`)."""
        if self.exhausted:
            return None
        if self.running:
            cx.throw(ValueError, "generator already executing")
        if not self.started and not cx.is_none(value):
            cx.throw(TypeError, "can't send non-None value to a just-started generator")
        return self._run(cx, lambda: cx.resume_generator(self.alive, value if self.started else None))

    def _run(self, cx: Capture, resume: Callable[[], tuple[str, Value]]) -> Value | None:
        """Let the frame run to its next yield, its return or its exception."""
        cx.effects.allow(self, "a generator")
        self.running = True
        if self in cx.suspended:
            cx.suspended.remove(self)
        try:
            what, result = resume()
        except Raised as raised:
            self.exhausted = True
            self.frame = None
            _leave(cx, raised.value)
            raise
        except Break:
            self.exhausted = True
            raise
        finally:
            self.running = False
            self.started = True
        if what == "yield":
            if self.alive.cleans_up():
                cx.suspended.append(self)
            return result
        self.exhausted = True
        self.returned = result
        frame, self.frame = self.alive, None
        if cx.suspended:
            frame.leave()
        return None

    returned: Value = Const(None)

    def take_returned(self) -> Value:
        """The return value, for the one StopIteration that carries it."""
        value, self.returned = self.returned, Const(None)
        return value

    def throw(self, cx: Capture, given: list[Value]) -> Value | None:
        """Raise the exception `given` by the program where the generator is suspended; its delegate receives the
        exception first."""
        inner = None if self.running or self.exhausted or not self.started else self.alive.delegate()
        if inner is None:
            exception = _made_of(cx, given)
            if self.running:
                cx.throw(ValueError, "generator already executing")
            if self.started and not self.exhausted:
                return self._run(cx, lambda: cx.throw_into_generator(self.alive, exception))
            ended, self.exhausted = self.exhausted, True
            if not ended and STOPS_BEFORE_THE_BEGIN:
                _leave(cx, exception)
            raise Raised(exception)
        self.running = True  # a reentrant call raises meanwhile
        try:
            if issubclass(_class_given(given[0]), GeneratorExit):
                _close(cx, inner)
                raise Raised(_made_of(cx, given))
            value, result = _throw(cx, inner, given)
        except Raised as raised:
            self.running, passed = False, raised.value
            return self._run(cx, lambda: cx.throw_into_generator(self.alive, passed))
        finally:
            self.running = False
        if value is not None:
            return value
        self.alive.end_delegation(result)
        return self._run(cx, lambda: cx.resume_generator(self.alive, None))

    def close(self, cx: Capture) -> Value:
        """Raise GeneratorExit where the generator is suspended, so that its `finally` blocks run.  Returns its return
        value."""
        if not self.running and (self.exhausted or not self.started):
            self.exhausted = True
            return Const(None)
        try:
            value = self.throw(cx, [cx.as_exception(cx.make(GeneratorExit))])
        except Raised as raised:
            if not issubclass(raised.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return Const(None)
        if value is not None:
            cx.throw(RuntimeError, "generator ignored GeneratorExit")
        returned = self.take_returned()
        return returned if CLOSE_RETURNS else Const(None)

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("send", "throw", "close", "__next__", "__iter__"):
            return IteratorMethod(self, name)
        return super().getattr(cx, name)


def _method(cx: Capture, inner: Value, name: str) -> Value | None:
    """`throw` or `close` of a delegate that is not a `Generator`; None for CPython's own iterators, which have neither."""
    if isinstance(inner, Iter) and inner.cls is not types.GeneratorType:
        return None
    try:
        return inner.getattr(cx, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return None


def _close(cx: Capture, inner: Value) -> None:
    """Close the delegate of a generator."""
    if isinstance(inner, Generator):
        inner.close(cx)
    elif (method := _method(cx, inner, "close")) is not None:
        cx.call(method, [], {})


def _leave(cx: Capture, exception: Value) -> None:
    """Convert a StopIteration that leaves a generator's frame."""
    if issubclass(exception.python_type(), StopIteration):
        cx.throw_from(RuntimeError, "generator raised StopIteration", exception)


def _class_given(value: Value) -> type:
    """The class of an exception given as class or instance; the own class of any other value."""
    cls = value.cls if isinstance(value, Class) else value.python_type()
    return cls if issubclass(cls, BaseException) else value.python_type()


def _made_of(cx: Capture, given: list[Value]) -> Value:
    """The exception that `throw` raises.

    It is given as a class or an instance; in the old form also as a class with a value or arguments.  If the class
    fails to create an instance, its error is returned instead.
    """
    what, value = given[0], given[1] if len(given) > 1 and not cx.is_none(given[1]) else None
    cls = _class_given(what)
    if not issubclass(cls, BaseException):
        name = class_name(cls)
        cx.throw(TypeError, f"exceptions must be classes or instances deriving from BaseException, not {name}")
    if not isinstance(what, Class):
        if value is not None:
            cx.throw(TypeError, "instance exception may not have a separate value")
        return what
    if value is not None and issubclass(value.python_type(), cls):
        return value
    try:
        if value is None:
            return cx.as_exception(what)
        return cx.as_exception(what, list(value.iterate(cx)) if value.python_type() is tuple else [value])
    except Raised as raised:
        error: Value = raised.value
        return error


def _throw(cx: Capture, inner: Value, given: list[Value]) -> tuple[Value | None, Value]:
    """Throw into the delegate of a generator: (yielded value, None) or (None, return value)."""
    if isinstance(inner, Generator):
        value = inner.throw(cx, given)
        return value, inner.take_returned() if value is None else Const(None)
    if (method := _method(cx, inner, "throw")) is None:
        raise Raised(_made_of(cx, given))
    try:
        return cx.call(method, list(given), {}), Const(None)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), StopIteration):
            raise
        return None, raised.value.getattr(cx, "value")


def _nothing() -> Iterator[None]:
    yield


TAKES = {"__iter__": (0, 0), "__next__": (0, 0), "send": (1, 1), "throw": (1, 3), "close": (0, 0)}
"""Least and greatest number of arguments, all positional, of a generator's methods."""
STOPS_BEFORE_THE_BEGIN = sys.version_info < (3, 12)
"""Whether a StopIteration thrown in before the first step becomes an error.  Since 3.12 the body has a handler for it."""
CLOSE_RETURNS = sys.version_info >= (3, 13)


class IteratorMethod(Value):
    """A bound method of an iterator."""

    def __init__(self, iterator: Iter, name: str) -> None:
        self.iterator = iterator
        self.name = name

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        it = self.iterator
        least, most = TAKES[self.name]
        given: list[Any] = [None if cx.is_none(a) else a.python_type() for a in args]
        odd = self.name == "throw" and len(args) == 3 and given[2] not in (None, types.TracebackType)
        if kwargs or odd or not least <= len(args) <= most:
            cx.evaluate_raw(getattr(_nothing(), self.name), *given, **dict.fromkeys(kwargs))  # raises CPython's error
        if len(args) > 1 and sys.version_info >= (3, 12):
            raise Break("builtin-call", f"generator.{self.name}() with several arguments, about which Python warns")
        if self.name == "__iter__":
            return it
        if self.name == "close":
            assert isinstance(it, Generator)
            return it.close(cx)
        if self.name == "__next__":
            value = cx.next_of(it)
            if value is None:
                cx.stop()
        elif self.name == "send":
            assert isinstance(it, Generator)
            value = it.send(cx, args[0])
        else:
            assert isinstance(it, Generator)
            value = it.throw(cx, args)
        if value is None:
            result = it.take_returned() if isinstance(it, Generator) else Const(None)
            cx.throw_value(StopIteration, [] if cx.is_none(result) else [result])
        assert value is not None
        return value
