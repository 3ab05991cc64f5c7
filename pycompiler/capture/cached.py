"""Functions under functools.lru_cache: what they keep is known without a call of theirs.

In: a cached function, constant arguments.  Out: the object that it keeps for them, with guards as an object that existed before.
What is not kept yet is tried first, in a capture that is given up afterwards: a function that neither raises nor has effects is
called by capture, once for all; any other by the program, in front of whose call the graph breaks while nothing is kept.
"""

from __future__ import annotations

import functools
import gc
import types
from typing import Any

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.functions import Builtin
from pycompiler.ir.source import const as const_source

TRIAL = 20_000  # instructions of a trial

Found = tuple[
    Any, dict[Any, Any], Any
]  # a cached function's own function, its table, and what is between arguments and keywords in its keys


@functools.cache
def _link() -> Any:
    """The class that only cached functions refer to."""
    return next(r for r in reversed(gc.get_referents(functools.lru_cache(maxsize=1)(len))) if _names_links(r))


def _names_links(found: Any) -> bool:
    return type(found) is type and found.__name__ == "_lru_list_elem"


def table_of(fn: Any) -> Found | None:
    """Where `fn` keeps its results, as its tp_traverse visits it: ..., table, function, mark, class of links, ...; a probe
    of what CPython does not promise."""
    found = gc.get_referents(fn)
    at = max((i for i, r in enumerate(found) if r is _link()), default=0)
    if at < 3 or type(found[at - 3]) is not dict or type(found[at - 1]) is not object:
        return None
    return found[at - 2], found[at - 3], found[at - 1]


def key_of(fn: Any, mark: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The key of a call in the table, as `lru_cache_make_key` makes it.  Raises AttributeError where nobody says whether `fn`
    tells types apart."""
    typed = fn.cache_parameters()["typed"]
    if not typed and not kwargs:
        return args[0] if len(args) == 1 and type(args[0]) in (str, int) else tuple(args)
    key = [*args, *((mark, *(x for item in kwargs.items() for x in item)) if kwargs else ())]
    return tuple([*key, *map(type, args), *map(type, kwargs.values())] if typed else key)


class Cached:
    """What a cached function keeps for these arguments, as attributes: read by guards, and where the result is loaded.

    `pure`: a call is nothing that the program sees; where an artefact brought this into another process, it is made there.
    """

    __slots__ = ("__dict__", "_found")

    def __init__(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.call = (fn, args, kwargs)
        self.pure = False
        self._found = self._find()

    def _find(self) -> tuple[dict[Any, Any], Any]:
        fn, args, kwargs = self.call
        found = table_of(fn)
        if found is None:
            raise AttributeError("not CPython's functools.lru_cache")
        return found[1], key_of(fn, found[2], args, kwargs)

    @property
    def kept(self) -> bool:
        """Whether there is a result: a call runs nothing of the program."""
        try:
            table, key = self._found
        except AttributeError:  # loaded
            table, key = self._found = self._find()
            if self.pure and key not in table:
                self()
        return key in table

    @property
    def result(self) -> Any:
        if not self.kept:
            raise AttributeError("no result is kept")
        return self()

    def __call__(self) -> Any:
        fn, args, kwargs = self.call
        return fn(*args, **kwargs)


class Tried(Exception):
    """A trial has ended: the capture begins anew, knowing more."""


def call_cached(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a function under functools.lru_cache.  One of a library is inlined, as libraries cache what is pure."""
    wrapped = fn.__wrapped__
    if isinstance(wrapped, types.FunctionType) and skip.is_library(wrapped):
        return _inline_cached(cx, fn, args, kwargs)
    cached = _cached(cx, fn, args, kwargs)
    if cached is None:
        raise Break("builtin-call", f"{describe_call(fn, args)}, which keeps its results")
    if not cached.kept and not _call(cx, cached, args, kwargs):
        rests_on = ((const_source(cached).attr("kept"), False),)
        raise Break("builtin-call", f"{describe_call(fn, args)}, which has not been called before", rests_on=rests_on)
    return cx.wrap(cached.result, const_source(cached).attr("result"))


def _cached(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Cached | None:
    """Where each argument is an immutable constant."""
    why = "as an argument of a function that keeps its results"
    args, kwargs = [v.settle(why) for v in args], {k: v.settle(why) for k, v in kwargs.items()}
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
    """Have a result kept, where the program does not see when it is computed; raises Tried to find out."""
    if cx.effects:
        return False
    if cx.errors_of_data.whole:  # nobody calls it again
        cached.pure = False
    elif cached not in cx.verdicts:
        cx.verdicts[cached] = cached.pure = _is_pure(cx, cached, args, kwargs)
        raise Tried
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
    """Whether the function, captured, returns, and does nothing else."""
    found = table_of(cached.call[0])
    before, graph, fakes = cx.effects.mark(), cx.graph, cx.fake_mode
    drawn, graph.happened, cx.budget = fakes.draws, False, cx.steps + TRIAL
    refused = cx.errors_of_data.refuses
    try:
        cx.call(cx.make(found and found[0]), args, kwargs)
    except (Break, Raised):
        return False
    quiet = before == cx.effects.mark() and drawn == fakes.draws and refused == cx.errors_of_data.refuses
    return quiet and not graph.happened


def _inline_cached(cx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """If all it does is a deferred call (logging once), the call of the cached function itself is deferred."""
    before, nodes = cx.effects.mark(), len(cx.graph.graph.nodes)
    result = cx.call(cx.make(fn.__wrapped__), args, kwargs)
    if cx.effects.calls_since(before) and nodes == len(cx.graph.graph.nodes) and not kwargs:
        cx.effects.forget_since(before)
        cx.effects.defer(Builtin(fn), args)
    return result


def describe_call(fn: Any, args: list[Value]) -> str:
    return f"{Builtin(fn).describe()}({', '.join(a.describe() for a in args)})"
