"""Ctrl-C during a compile.

torch calls Python from C++ functions that must not throw: an exception of a signal handler there ends the process.  So
handlers wait for a safe point of the compile.  A second signal does not wait.

    with deferred():            # around a compile
        check()                 # a safe point: runs the handlers of pending signals
        with allowed(): ...     # code that may be interrupted anywhere

CPython checks for signals after calls, at backward jumps and at function starts, in this file too.  The state is
consistent at each such point, and stays so if a handler raises.  While no block is open, `_on` does what the user's
handler does.  While a block is open, a signal that arrives inside a function of this file waits for its next `check`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)


class HandlerRaised(BaseException):
    """Carries an exception of a user's handler through a compile, which would treat an Exception as an error of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Stopped(BaseException):
    """Ends the work of another thread at a safe point, because the process ends, or the thread that waits for it was
    interrupted."""


_background = threading.local()
stop_callbacks: list[Callable[[], None]] = []  # end waits of background threads outside of Python


def stop_now() -> None:
    for stopper in stop_callbacks:
        stopper()


def stop_with(asked: Callable[[], bool]) -> None:
    """From now on, this thread's safe points raise `Stopped` when `asked()` is true."""
    _background.asked = asked


pending: list[tuple[int, FrameType | None]] = []
_handlers: dict[
    int, Any
] = {}  # the user's handlers, replaced by `_on`; never dropped, since other code may have read `_on` and may set it again
_blocks = 0  # number of open `deferred` blocks; only in the main thread
_waiting = False  # whether handlers wait; only the main thread reads and writes it


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _on(number: int, frame: FrameType | None) -> None:
    """The installed signal handler, in place of the user's."""
    here = frame is not None and frame.f_globals is globals()
    if _waiting or (_blocks and here):
        again = any(n == number for n, _ in pending)
        pending.append((number, frame))
        if again and not here:
            check()
    else:
        _call(number, frame)


def _call(number: int, frame: FrameType | None) -> None:
    """Call the user's handler.  Inside of a `deferred` block, its exception is carried to the block's end."""
    handler = _handlers.get(number)
    if handler is not None:
        try:
            handler(number, frame)
        except Exception as error:
            if not _blocks:
                raise
            raise HandlerRaised(error) from None


def _install() -> None:
    """Replace the user's Python handlers by `_on`."""
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not _on:
            _handlers[number] = handler
            signal.signal(number, _on)


def _put_back() -> None:
    """Restore the user's handlers, even if one of them raises meanwhile."""
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is _on:
                signal.signal(number, _handlers[number])
    except BaseException:
        _put_back()
        raise


def check() -> None:
    """A safe point.  Only the main thread runs handlers, as everywhere in Python."""
    asked = getattr(_background, "asked", None)
    if asked is not None and asked():
        raise Stopped
    while pending and _is_main():
        _call(*pending.pop(0))


class deferred:
    """Context manager: handlers wait while the block runs in the main thread, and run at its end."""

    def __enter__(self) -> None:
        global _blocks, _waiting
        self.outermost = _is_main() and not _waiting
        if self.outermost:
            try:
                _install()
            except BaseException:
                if not _blocks:
                    _put_back()
                raise
            _blocks += 1
            _waiting = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        global _blocks, _waiting
        if not self.outermost:
            return
        _blocks -= 1
        _waiting = False
        raised = error
        try:
            check()
        except HandlerRaised as carried:
            if _blocks:
                raise
            raised = carried
        finally:
            if not _blocks:
                _put_back()
        if isinstance(raised, HandlerRaised) and not _blocks:
            own = raised.error
            context = own.__context__
            try:
                raise own
            finally:
                own.__context__ = context
                del own, error, raised


class allowed:
    """Context manager inside of `deferred`: handlers run at once."""

    def __enter__(self) -> None:
        global _waiting
        self.inside = _is_main() and _waiting
        if self.inside:
            _waiting = False
            check()

    def __exit__(self, *exc: object) -> None:
        global _waiting
        if self.inside:
            try:
                _install()  # the block may have set handlers
            finally:
                _waiting = True
