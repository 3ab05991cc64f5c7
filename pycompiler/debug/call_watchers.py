"""Who looks at calls of what was compiled: the engine has one watcher, which tells all of these.

In: `with watching(watcher):`.  Out: `watcher(kind, ...)` for each call of any thread, as `guards-rs/src/watch.rs: Eye` says; what
it raises changes no call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pycompiler import _native
from pycompiler.ir import watch

Watcher = Callable[..., Any]

_lock = threading.Lock()
_watchers: tuple[Watcher, ...] = ()


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    _change(lambda before: (*before, watcher))
    try:
        yield
    finally:
        _change(lambda before: tuple(w for w in before if w is not watcher))


def _change(change: Callable[[tuple[Watcher, ...]], tuple[Watcher, ...]]) -> None:
    global _watchers
    with _lock:
        _watchers = change(_watchers)
        _native.set_watcher(_tell if _watchers else None)


def _tell(kind: str, *told: Any) -> bool:
    wanted = False
    for watcher in _watchers:
        with watch.apart(watcher):
            wanted = bool(watcher(kind, *told)) or wanted
    return wanted
