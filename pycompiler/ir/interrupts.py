"""Ctrl-C during a compile.

torch calls Python from C++ functions that must not throw: an exception of a signal handler there ends the process.  So
handlers wait for a safe point of the compile.  A signal that comes a second time does not wait.

    with deferred():            # around a compile
        check()                 # a safe point: runs the handlers of signals that came
        with allowed(): ...     # code that may be interrupted anywhere
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)

pending: list[tuple[int, FrameType | None]] = []
_handlers: dict[int, Any] = {}  # the user's, while they are deferred
_waiting = False  # whether handlers are deferred; only the main thread reads and writes it


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _note(number: int, frame: FrameType | None) -> None:
    again = any(n == number for n, _ in pending)
    pending.append((number, frame))
    if again:
        check()


def _install() -> None:
    global _waiting
    _waiting = True
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not _note:
            _handlers[number] = handler
            signal.signal(number, _note)


def _put_back() -> None:
    global _waiting
    _waiting = False
    for number in SIGNALS:
        if number in _handlers and signal.getsignal(number) is _note:
            signal.signal(number, _handlers[number])


def check() -> None:
    """A safe point.  Only the main thread runs handlers, as everywhere in Python."""
    while pending and _is_main():
        number, frame = pending.pop(0)
        handler = _handlers.get(number)
        if handler is not None:
            handler(number, frame)


class deferred:
    """Handlers wait while this block runs in the main thread; what waits runs at its end."""

    def __enter__(self) -> None:
        self.outermost = _is_main() and not _waiting
        if self.outermost:
            _install()

    def __exit__(self, *exc: object) -> None:
        if self.outermost:
            _put_back()
            check()


class allowed:
    """Handlers run at once while this block runs inside of `deferred`."""

    def __enter__(self) -> None:
        self.inside = _is_main() and _waiting
        if self.inside:
            _put_back()
            check()

    def __exit__(self, *exc: object) -> None:
        if self.inside:
            _install()
