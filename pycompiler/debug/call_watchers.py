"""Watchers of calls of compiled callables: the engine has one watcher, which calls all of these.

In: `with watching(watcher):`.  Out: `watcher(kind, ...)` for each call of any thread, as in `guards-rs/src/watch.rs:
Eye`.  An exception of a watcher does not affect the call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pycompiler import _native
from pycompiler.ir import phases

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
        _native.set_watcher(notify if _watchers else None)


def notify(kind: str, *told: Any) -> bool:
    """Call all watchers, as the engine does."""
    wanted = False
    for watcher in _watchers:
        with phases.observer_errors_logged(watcher):
            wanted = bool(watcher(kind, *told)) or wanted
    return wanted
