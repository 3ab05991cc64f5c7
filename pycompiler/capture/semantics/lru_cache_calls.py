"""Calls of functions under functools.lru_cache: a cached result is used without a call.

In: a cached function and arguments.  Out: the cached object, guarded like an object that existed before.

Constant arguments without a cached result: the call is first captured as a trial, and the trial is discarded.  If the
function neither raises nor has side effects, the capture calls it, once for all.  Otherwise the graph breaks before the
program's call.

Objects and tensors without a cached result: the function is inlined, and a side effect stores the result
(`lru_cache_tables.ResultStore`).
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.semantics.lru_cache_tables import (
    CachedResultQuery,
    Leaf,
    ResultStore,
    cached_result,
    key_of,
    limit_of,
    table_of,
)
from pycompiler.capture.values.attributes import lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import reference
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.functions import Builtin, Function
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.ir.source import Source, const_source

TRIAL = 20_000  # instructions of a trial
TRIAL_OF = ("trial",)  # key of the results that a trial has computed so far
Refused = Callable[[], Break]
SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Cached:
    """The cached result for these arguments, as attributes: read by guards and by the code that loads the result.

    - `pure`: a call has no visible effects.  An artefact in another process calls the function to fill the table.
    - `called`: the capture has made the call that the frame would make, and it was counted.
    """

    __slots__ = ("__dict__", "_found")

    def __init__(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.call = (fn, args, kwargs)
        self.pure = self.called = False
        self._found = self._find()

    def _find(self) -> tuple[dict[Any, Any], Any]:
        fn, args, kwargs = self.call
        found = table_of(fn)
        if found is None:
            raise AttributeError("not CPython's functools.lru_cache")
        return found[1], key_of(fn, found[2], args, kwargs)

    @property
    def kept(self) -> bool:
        """Whether a result is cached: then a call runs no code of the program."""
        try:
            table, key = self._found
        except AttributeError:  # loaded from an artefact
            table, key = self._found = self._find()
            if self.pure and key not in table:
                self()
        return key in table

    @property
    def result(self) -> Any:
        if not self.kept:
            raise AttributeError("no result is cached")
        return cached_result(self.call[0], *self._found)[0]

    def __call__(self) -> Any:
        fn, args, kwargs = self.call
        self.called = True
        return fn(*args, **kwargs)

    def hit(self) -> None:
        """The program's call is a hit: count it."""
        fn, args, kwargs = self.call
        if not self.called:
            fn(*args, **kwargs)
        self.called = False


class RestartAfterTrial(LeavesCompile):
    """A trial has ended: the capture restarts and uses its verdict."""


def call_cached(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a function under functools.lru_cache.  Library functions are inlined, since libraries cache pure functions."""
    wrapped = fn.__wrapped__
    if isinstance(wrapped, types.FunctionType) and inlining_rules.is_library(wrapped):
        return _inline_cached(cx, fn, args, kwargs)
    cached = _cached(cx, fn, args, kwargs)
    if cached is None:
        return _call_of_objects(cx, fn, args, kwargs)
    if _frame_of(cx, fn).put and limit_of(fn) is not None:  # an entry may have been evicted
        raise _refused(fn, args)
    if not cached.kept and TRIAL_OF in cx.kept:
        return _call_in_trial(cx, cached, args, kwargs)
    if not cached.kept and not _call(cx, cached, args, kwargs):
        rests_on = ((const_source(cached).attr("kept"), False),)
        raise Break("builtin-call", f"{describe_call(fn, args)}, which has not been called before", rests_on=rests_on)
    try:
        result = cached.result
    except AttributeError:
        raise _refused(fn, args) from None
    cx.effects.hit(cached)
    return cx.wrap(result, const_source(cached).attr("result"))


ARGUMENT = "as an argument of a function with functools.lru_cache"


def _cached(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Cached | None:
    """The cached call, if each argument is an immutable constant; else None."""
    args, kwargs = [*args], {**kwargs}
    cx.realize_all(args, kwargs, ARGUMENT)
    if not all(v.is_const() for v in (*args, *kwargs.values())):
        return None
    known = [v.const() for v in args], {k: v.const() for k, v in kwargs.items()}
    key = (fn, *map(repr, known))
    if key not in cx.kept:
        try:
            cx.kept[key] = cx.tried.get(key) or Cached(fn, *known)
            hash(cx.kept[key]._found[1])
        except (AttributeError, TypeError):
            return None
    found: Cached = cx.kept[key]
    cx.tried[key] = found
    return found


def _call(cx: Capture, cached: Cached, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Fill the cache, if the program cannot see when the result is computed.  Raises Tried after a trial."""
    if cx.effects:
        return False
    if cx.errors_of_data.whole:  # the capture cannot be restarted
        cached.pure = False
    elif cached not in cx.verdicts:
        cx.verdicts[cached] = cached.pure = _is_pure(cx, cached, args, kwargs)
        raise RestartAfterTrial
    elif not cx.verdicts[cached]:
        return False
    try:
        cached()
    except Exception:
        if cx.errors_of_data.whole:
            raise Break("builtin-call", f"{describe_call(cached.call[0], args)}, which raises") from None
        return False
    return cached.kept


def _is_pure(cx: Capture, cached: Cached, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether the function, captured, returns and has no side effects."""
    found = table_of(cached.call[0])
    before, graph, fakes = cx.effects.mark(), cx.graph, cx.fake_mode
    drawn, graph.happened, cx.budget = fakes.seen.draws, False, cx.steps + TRIAL
    refused = cx.errors_of_data.refuses
    cx.kept[TRIAL_OF] = {}
    try:
        cx.call(cx.make(found and found[0]), args, kwargs)
    except (Break, Raised):
        return False
    finally:
        del cx.kept[TRIAL_OF]
    quiet = cx.effects.quiet_since(before) and drawn == fakes.seen.draws and refused == cx.errors_of_data.refuses
    return quiet and not graph.happened


def _call_in_trial(cx: Capture, cached: Cached, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of another cached function within a trial: it belongs to the trial and is captured."""
    results: dict[Cached, Value] = cx.kept[TRIAL_OF]
    if cached not in results:
        found = table_of(cached.call[0])
        results[cached] = cx.call(cx.make(found and found[0]), args, kwargs)
    return results[cached]


def _inline_cached(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Inline it.  If it only defers a call (logging once), the call of the cached function itself is deferred instead."""
    before, nodes = cx.effects.mark(), len(cx.graph.graph.nodes)
    result = cx.call(cx.make(fn.__wrapped__), args, kwargs)
    if cx.effects.calls_since(before) and nodes == len(cx.graph.graph.nodes) and not kwargs:
        cx.effects.forget_since(before)
        cx.effects.defer(Builtin(fn), args)
    return result


# objects and tensors --------------------------------------------------------------------------------------------
@dataclass
class FrameCalls:
    """The frame's use of a table: its calls, and the results that it has stored, by a key of values."""

    keeping: ResultStore | None = None
    calls: int = 0
    put: dict[Any, Value] = field(default_factory=dict)


def _frame_of(cx: Capture, fn: Any) -> FrameCalls:
    found: FrameCalls = cx.kept.setdefault(("frame", fn), FrameCalls())
    return found


def _refused(fn: Any, args: list[Value]) -> Break:
    return Break("builtin-call", f"{describe_call(fn, args)}, a function with functools.lru_cache")


def _call_of_objects(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    # No exception object yet: it would hold the frames that it passes.
    refused: Refused = functools.partial(_refused, fn, args)
    found, frame = table_of(fn), _frame_of(cx, fn)
    inside = found and found[0]
    if not isinstance(inside, types.FunctionType) or inside.__code__.co_flags & SUSPENDABLE:
        raise refused()
    if not hasattr(fn, "cache_parameters"):
        raise refused()
    args, kwargs = [*args], {**kwargs}
    cx.realize_all(args, kwargs, ARGUMENT)
    leaves: list[Value] = []
    parts = [_part(cx, v, leaves, refused) for v in args], {k: _part(cx, v, leaves, refused) for k, v in kwargs.items()}
    limit, names, given = limit_of(fn), tuple(kwargs), [*args, *kwargs.values()]
    types_ = tuple(v.python_type() for v in given) if fn.cache_parameters()["typed"] else ()
    key = (cx.key_of(Tuple(given)), names, types_)
    frame.keeping = frame.keeping or ResultStore(fn, inside)
    frame.calls += 1
    if key in frame.put:
        cx.effects.keep(frame.keeping, names, None, given)
        return frame.put[key]
    kept, source = _cached_and_source(cx, fn, parts, leaves, key, refused)
    if source is not None and kept:
        if frame.put and limit is not None:  # the entry may have been evicted
            raise refused()
        result = cx.wrap(kept[0], source.item(0))
        cx.effects.keep(frame.keeping, names, None, given)
        return result
    with cx.errors_of_data.counted():
        try:
            result = cx.realize(cx.call(cx.make(inside), args, kwargs))
        except Raised:
            raise refused() from None
    if limit != 0:
        frame.put[key] = result
    if limit and len(frame.put) > limit:
        raise refused()
    cx.effects.keep(frame.keeping, names, result, given)
    return result


def _part(cx: Capture, value: Value, leaves: list[Value], refused: Refused) -> Any:
    """A part of a key: a constant, a tuple of parts, or a leaf that equals only itself."""
    value = cx.realize(value, ARGUMENT)
    if isinstance(value, Tuple) and value.cls is tuple and not value.is_const():
        return tuple(_part(cx, v, leaves, refused) for v in value.items)
    if isinstance(value, Class) and value.made is not None:
        raise refused()
    if value.is_const():
        known = value.const()
        if type(known).__hash__ is None or known != known or type(known) is frozenset:  # NaN
            raise refused()
        return known
    if isinstance(value, Object):
        own = lookup(cx, value.cls, "__hash__"), lookup(cx, value.cls, "__eq__")
        if own != (object.__hash__, object.__eq__) or value.storage is not None:
            raise refused()
    elif not isinstance(value, Function) and not (isinstance(value, Tensor) and not value.is_special):
        raise refused()
    if not any(v is value for v in leaves):
        leaves.append(value)
    return Leaf(next(i for i, v in enumerate(leaves) if v is value))


def _cached_and_source(
    cx: Capture, fn: Any, parts: tuple[list[Any], dict[str, Any]], leaves: list[Value], key: Any, refused: Refused
) -> tuple[tuple[Any, ...], Source | None]:
    """The cached result and its source: a query on the last tensor, with the other objects guarded by identity.

    Nothing is cached for objects created by the frame.
    """
    if not leaves:
        raise refused()
    if any(v.source is None for v in leaves):
        return (), None
    base = max(range(len(leaves)), key=lambda i: (isinstance(leaves[i], Tensor), i))
    order = [leaves[base], *(v for i, v in enumerate(leaves) if i != base)]
    numbers = {i: next(n for n, v in enumerate(order) if v is leaf) for i, leaf in enumerate(leaves)}
    args, kwargs = parts
    pins = []
    for other in order[1:]:
        assert other.source is not None
        pins.append(reference(other.real))  # type: ignore[attr-defined]
        if isinstance(other, (Object, Opaque)) and not isinstance(pins[-1], weakref.ref):
            raise refused()  # the guard would hold it, but its end belongs to the table
        cx.guard("id_is", other.source, pins[-1])
    if ("keeps", fn, key) not in cx.kept:
        args = [_renumbered(a, numbers) for a in args]
        cx.kept["keeps", fn, key] = CachedResultQuery(
            fn, args, {k: _renumbered(v, numbers) for k, v in kwargs.items()}, pins
        )
    keeps: CachedResultQuery = cx.kept["keeps", fn, key]
    assert order[0].source is not None
    source = order[0].source.then("begun", keeps)
    try:
        kept = keeps(order[0].real)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise refused() from None
    cx.guard("length", source, len(kept))
    return kept, source


def _renumbered(part: Any, numbers: dict[int, int]) -> Any:
    if type(part) is Leaf:
        return Leaf(numbers[part.number])
    return tuple(_renumbered(p, numbers) for p in part) if type(part) is tuple else part


def describe_call(fn: Any, args: list[Value]) -> str:
    return f"{Builtin(fn).describe()}({', '.join(a.describe() for a in args)})"
