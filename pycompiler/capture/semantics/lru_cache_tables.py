"""Tables of functools.lru_cache: results are read without a call, and results of a graph are stored.

In: existing cached functions.  Out: `CachedResultQuery`, a query that returns the cached result for a call with an object;
`ResultStore`, which stores a result.  CPython has no API to store one.  So the cached function is called, and the frame
hook answers the call of the function inside.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
import weakref
from dataclasses import dataclass
from typing import Any

from pycompiler import _native
from pycompiler.capture.values.constant import LITERALS, TORCH_CONSTANTS
from pycompiler.capture.values.finalizers import runs_code
from pycompiler.errors import Unfit
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import const_source

Found = tuple[
    Any, dict[Any, Any], Any
]  # a cached function's own function, its table, and the separator of arguments and keywords in its keys
PLAIN_EQUALITY = frozenset({*LITERALS, *TORCH_CONSTANTS})
"""Classes whose equality, as a part of a key, runs no code of the program."""


@functools.cache
def _link() -> Any:
    """The internal link class of lru_cache, which only cached functions refer to."""
    return next(r for r in reversed(gc.get_referents(functools.lru_cache(maxsize=1)(len))) if _names_links(r))


def _names_links(found: Any) -> bool:
    return type(found) is type and found.__name__ == "_lru_list_elem"


def table_of(fn: Any) -> Found | None:
    """The table of `fn`, found in the order of its tp_traverse: ..., table, function, mark, class of links, ...

    CPython does not guarantee this order, so the result is checked.
    """
    found = gc.get_referents(fn)
    at = max((i for i, r in enumerate(found) if r is _link()), default=0)
    if at < 3 or type(found[at - 3]) is not dict or type(found[at - 1]) is not object:
        return None
    return found[at - 2], found[at - 3], found[at - 1]


def key_of(fn: Any, mark: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The key of a call in the table, as `lru_cache_make_key` builds it.

    Raises AttributeError if `fn` does not report whether its keys include types.
    """
    typed = fn.cache_parameters()["typed"]
    if not typed and not kwargs:
        return args[0] if len(args) == 1 and type(args[0]) in (str, int) else tuple(args)
    key = [*args, *((mark, *(x for item in kwargs.items() for x in item)) if kwargs else ())]
    return tuple([*key, *map(type, args), *map(type, kwargs.values())] if typed else key)


def limit_of(fn: Any) -> int | None:
    """The number of cached results; None: unlimited."""
    limit: int | None = fn.cache_parameters()["maxsize"]
    return limit


def _in_order(fn: Any, table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and results of a limited table, least recently used first: each link is visited as key, result, class."""
    found = gc.get_referents(fn)
    end = next(i for i, r in enumerate(found) if r is table)
    links = found[1:end]
    if len(links) != 3 * len(table) or any(r is not _link() for r in links[2::3]):
        raise AttributeError("not CPython's functools.lru_cache")
    return list(zip(links[::3], links[1::3], strict=True))


def cached_result(fn: Any, table: dict[Any, Any], key: Any) -> tuple[Any, ...]:
    """The cached result for a key, as a tuple of one, or an empty tuple.  No hit is counted.

    Raises AttributeError if only code of the program could decide that the stored key is equal.
    """
    if key not in table:
        return ()
    if limit_of(fn) is None:
        return (table[key],)
    for known, result in _in_order(fn, table):
        if _is_part(known, key):
            return (result,)
    raise AttributeError("a key of other objects")


def _is_part(kept: Any, asked: Any) -> bool:
    """Whether parts of two keys are equal, without a call of the program's `__eq__`."""
    if kept is asked:
        return True
    if type(kept) is type(asked) is tuple:
        return len(kept) == len(asked) and all(map(_is_part, kept, asked))
    return all(any(type(v) is cls for cls in PLAIN_EQUALITY) for v in (kept, asked)) and bool(kept == asked)


# cached results ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Leaf:
    """The number of an argument, or of a part of one, that is not a constant."""

    number: int


class CachedResultQuery:
    """A query on the object that is leaf 0 of a call: the cached result as a tuple of one, or an empty tuple.

    The other leaves are `pins` (`reference`).
    """

    def __init__(self, fn: Any, args: list[Any], kwargs: dict[str, Any], pins: list[Any]) -> None:
        self.fn, self.args, self.kwargs, self.pins = fn, args, kwargs, pins
        found = table_of(fn)
        if found is None:
            raise AttributeError("not CPython's functools.lru_cache")
        self.table, self.mark = found[1:]

    def __str__(self) -> str:
        return f"the cached results of {self.fn!r}"

    def __call__(self, leaf: Any) -> tuple[Any, ...]:
        leaves = [leaf, *(p() if isinstance(p, weakref.ref) else p for p in self.pins)]
        args = [_filled(a, leaves) for a in self.args]
        key = key_of(self.fn, self.mark, args, {k: _filled(v, leaves) for k, v in self.kwargs.items()})
        return cached_result(self.fn, self.table, key)


def _filled(part: Any, leaves: list[Any]) -> Any:
    if type(part) is Leaf:
        return leaves[part.number]
    return tuple(_filled(p, leaves) for p in part) if type(part) is tuple else part


# storing results -----------------------------------------------------------------------------------------------
class _PendingResult(threading.local):
    """The result for the frame of a function that is called from `frame`."""

    result: Any = None
    frame: Any = None

    @property
    def waits(self) -> bool:
        return self.frame is not None and sys._getframe(1) is self.frame


_given = _PendingResult()


def _take() -> tuple[Any]:
    result, _given.result, _given.frame = _given.result, None, None
    return (result,)


def _call_for(result: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before = _given.result, _given.frame
    _given.result, _given.frame = result, sys._getframe()
    try:
        return fn(*args, **kwargs)
    finally:
        _given.result, _given.frame = before


def _no_compile(*_: Any) -> None:
    return None


def _probe() -> bool:
    return False


def _answering(function: Any) -> _native.CompiledFunction:
    """A function that runs as `function`, except if a result waits for its frame."""
    made = _native.CompiledFunction(function, _no_compile)
    waits = Guard("equals", const_source(_given).attr("waits"), True)
    made.install(_native.Entry([waits], _take, "plan", ("graph", 0), ()))
    made.set_mode("run")
    return made


class ResultStore:
    """Stores results of a cached function.  `inside`: the function that it wraps."""

    def __init__(self, fn: Any, inside: types.FunctionType) -> None:
        self.fn = fn
        functions: list[Any] = [inside, _probe]
        answers = {f.__code__: _answering(f) for f in functions}
        self._call_for = _native.CompiledFunction(_call_for, _no_compile)
        hook = _native.FrameHook(lambda code, _: answers.get(code))
        self._call_for.install(_native.Entry([], _call_for, "function", frame_hook=hook))
        self._call_for.set_mode("run")

    def put(self, names: tuple[str, ...], result: Any, *args: Any) -> None:
        """A call that misses the table and returns `result`.  `names`: keywords of the last arguments."""
        self._call_for(result, self.fn, *_named(names, args))

    def hit(self, names: tuple[str, ...], *args: Any) -> None:
        """A call that hits the table."""
        given, named = _named(names, args)
        self.fn(*given, **named)

    def only_open(self, calls: int) -> None:
        """Called first by generated code.  Raises `Unfit` if the frame hook is inactive, or if evictions would run
        code.

        `calls`: the number of calls to come.
        """
        if not self._call_for(True, _probe, (), {}):
            raise Unfit("no result can be stored in a cache while the frame hook is off")
        limit, found = limit_of(self.fn), table_of(self.fn)
        if limit is None or found is None or len(found[1]) + calls <= limit:
            return
        for link in _in_order(self.fn, found[1])[:calls]:
            if any(map(runs_code, link)):
                raise Unfit("the end of an evicted cache entry would run code")


def _named(names: tuple[str, ...], args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    at = len(args) - len(names)
    return args[:at], dict(zip(names, args[at:], strict=True))
