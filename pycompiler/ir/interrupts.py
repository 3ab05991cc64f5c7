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
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)


class HandlerRaised(BaseException):
    """Carries an exception of a user's handler through a compile, which takes an Exception for an error of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Stopped(BaseException):
    """Ends the work of a background thread at a safe point, because the process ends."""


_background = threading.local()
stoppers: list[Callable[[], None]] = []  # end what background threads wait for outside of Python


def stop_now() -> None:
    for stopper in stoppers:
        stopper()


def stop_with(asked: Callable[[], bool]) -> None:
    """From now on this thread's safe points raise `Stopped` when `asked()`."""
    _background.asked = asked


pending: list[tuple[int, FrameType | None]] = []
_handlers: dict[int, Any] = {}  # the user's, while they are deferred
_blocks = 0  # of `deferred` that are open, and whose handlers are deferred or carried; only in the main thread
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
            if handler is not _call:
                _handlers[number] = handler
            signal.signal(number, _note)


def _put_back(inside: bool = False) -> None:
    """Handlers run at once; `inside` of a `deferred` block what they raise is carried to its end."""
    global _waiting
    _waiting = False
    for number in SIGNALS:
        if number in _handlers and signal.getsignal(number) in (_note, _call):
            signal.signal(number, _call if inside else _handlers[number])


def _call(number: int, frame: FrameType | None) -> None:
    """The user's handler."""
    handler = _handlers.get(number)
    if handler is not None:
        try:
            handler(number, frame)
        except Exception as error:
            raise HandlerRaised(error) from None


def check() -> None:
    """A safe point.  Only the main thread runs handlers, as everywhere in Python."""
    asked = getattr(_background, "asked", None)
    if asked is not None and asked():
        raise Stopped
    while pending and _is_main():
        _call(*pending.pop(0))


class deferred:
    """Handlers wait while this block runs in the main thread; what waits runs at its end."""

    def __enter__(self) -> None:
        global _blocks
        self.outermost = _is_main() and not _waiting
        if self.outermost:
            _blocks += 1
            _install()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        global _blocks
        if not self.outermost:
            return
        _blocks -= 1
        _put_back(inside=_blocks > 0)
        try:
            check()
        except HandlerRaised as raised:
            if _blocks:
                raise
            error = raised
        if isinstance(error, HandlerRaised) and not _blocks:
            own = error.error
            context = own.__context__
            try:
                raise own
            finally:
                own.__context__ = context
                del own, error


class allowed:
    """Handlers run at once while this block runs inside of `deferred`."""

    def __enter__(self) -> None:
        self.inside = _is_main() and _waiting
        if self.inside:
            _put_back(inside=True)
            check()

    def __exit__(self, *exc: object) -> None:
        if self.inside:
            _install()
