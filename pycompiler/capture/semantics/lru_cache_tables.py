"""Tables of functools.lru_cache: what they keep is read without a call, and what a graph computed is put there.

In: existing cached functions.  Out: `Keeps`, a question about an object that leads to what is kept for a call with it;
`Keeping`, which has a result kept.  CPython keeps what a call gave, and offers nothing else: so the cached function is called,
and the frame of the function inside is answered by the frame hook.
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
from pycompiler.ir.source import const

Found = tuple[
    Any, dict[Any, Any], Any
]  # a cached function's own function, its table, and what is between arguments and keywords in its keys
CALM = frozenset({*LITERALS, *TORCH_CONSTANTS})
"""Classes of parts of keys whose equality runs nothing of the program's."""


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


def limit_of(fn: Any) -> int | None:
    """How many results are kept; None: all."""
    limit: int | None = fn.cache_parameters()["maxsize"]
    return limit


def _in_order(fn: Any, table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and results of a table with a limit, the one used longest ago first: each link is visited as key, result, class."""
    found = gc.get_referents(fn)
    end = next(i for i, r in enumerate(found) if r is table)
    links = found[1:end]
    if len(links) != 3 * len(table) or any(r is not _link() for r in links[2::3]):
        raise AttributeError("not CPython's functools.lru_cache")
    return list(zip(links[::3], links[1::3], strict=True))


def kept_for(fn: Any, table: dict[Any, Any], key: Any) -> tuple[Any, ...]:
    """What a table keeps for a key, as a tuple of one, or an empty one; nothing is counted.  Raises AttributeError where the
    key that is kept says only by code of its own that it is this one."""
    if key not in table:
        return ()
    if limit_of(fn) is None:
        return (table[key],)
    for known, result in _in_order(fn, table):
        if _is_part(known, key):
            return (result,)
    raise AttributeError("a key of other objects")


def _is_part(kept: Any, asked: Any) -> bool:
    """Whether parts of two keys are equal, of which one may be anything: it is not asked."""
    if kept is asked:
        return True
    if type(kept) is type(asked) is tuple:
        return len(kept) == len(asked) and all(map(_is_part, kept, asked))
    return all(any(type(v) is cls for cls in CALM) for v in (kept, asked)) and bool(kept == asked)


# what is kept ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Leaf:
    """An argument, or a part of one, that is no constant, by its number."""

    number: int


class Keeps:
    """A question about the object that is leaf 0 of a call: what the cached function keeps for it, as a tuple of one, or an
    empty one.  The other leaves are `pins` (`reference`)."""

    def __init__(self, fn: Any, args: list[Any], kwargs: dict[str, Any], pins: list[Any]) -> None:
        self.fn, self.args, self.kwargs, self.pins = fn, args, kwargs, pins
        found = table_of(fn)
        if found is None:
            raise AttributeError("not CPython's functools.lru_cache")
        self.table, self.mark = found[1:]

    def __str__(self) -> str:
        return f"kept of {self.fn!r}"

    def __call__(self, leaf: Any) -> tuple[Any, ...]:
        leaves = [leaf, *(p() if isinstance(p, weakref.ref) else p for p in self.pins)]
        args = [_filled(a, leaves) for a in self.args]
        key = key_of(self.fn, self.mark, args, {k: _filled(v, leaves) for k, v in self.kwargs.items()})
        return kept_for(self.fn, self.table, key)


def _filled(part: Any, leaves: list[Any]) -> Any:
    if type(part) is Leaf:
        return leaves[part.number]
    return tuple(_filled(p, leaves) for p in part) if type(part) is tuple else part


# what is put there -----------------------------------------------------------------------------------------------
class _Given(threading.local):
    """The result that the frame of a function that is called from `frame` has."""

    result: Any = None
    frame: Any = None

    @property
    def waits(self) -> bool:
        return self.frame is not None and sys._getframe(1) is self.frame


_given = _Given()


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
    """Runs as `function`, but for a frame that a result waits for."""
    made = _native.CompiledFunction(function, _no_compile)
    waits = Guard("equals", const(_given).attr("waits"), True)
    made.install(_native.Entry([waits], _take, "plan", ("graph", 0), ()))
    made.set_mode("run")
    return made


class Keeping:
    """Has results of a cached function kept; `inside`: the function that it calls."""

    def __init__(self, fn: Any, inside: types.FunctionType) -> None:
        self.fn = fn
        functions: list[Any] = [inside, _probe]
        answers = {f.__code__: _answering(f) for f in functions}
        self._call_for = _native.CompiledFunction(_call_for, _no_compile)
        hook = _native.FrameHook(lambda code, _: answers.get(code))
        self._call_for.install(_native.Entry([], _call_for, "function", frame_hook=hook))
        self._call_for.set_mode("run")

    def put(self, names: tuple[str, ...], result: Any, *args: Any) -> None:
        """A call that the table does not know, which gave `result`; `names`: those of the last arguments."""
        self._call_for(result, self.fn, *_named(names, args))

    def hit(self, names: tuple[str, ...], *args: Any) -> None:
        """A call that the table knows."""
        given, named = _named(names, args)
        self.fn(*given, **named)

    def only_open(self, calls: int) -> None:
        """Generated code calls this first: raises `Unfit` where no frame is looked at now, and where what has to go out for so
        many calls ends in running code."""
        if not self._call_for(True, _probe, (), {}):
            raise Unfit("nothing can be put into a table while frames are not looked at")
        limit, found = limit_of(self.fn), table_of(self.fn)
        if limit is None or found is None or len(found[1]) + calls <= limit:
            return
        for link in _in_order(self.fn, found[1])[:calls]:
            if any(map(runs_code, link)):
                raise Unfit("the end of what a table lets go of runs code")


def _named(names: tuple[str, ...], args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    at = len(args) - len(names)
    return args[:at], dict(zip(names, args[at:], strict=True))
