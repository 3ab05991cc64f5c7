"""Progress display: one line on a terminal while a compile takes longer than a second.

In: `with compiling(name):` around a compile, the phases of `ir.phases`, `note_kernels(n)`.
Out: on the terminal, until the compile ends,

    compiling, 3.2 s, build, 34 kernels: GPT.forward (model.py:12)

A separate thread writes the line, only if stderr is a terminal and `config.progress` is set.  It leaves the
cursor at the start of the line and changes no mode of the terminal, so only the line must be restored.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pycompiler import config
from pycompiler.ir import phases

DELAY_S, INTERVAL_S = 1.0, 0.1
CLEAR = "\r\x1b[2K"


class Compile:
    """One running compile."""

    def __init__(self, name: str, start: float) -> None:
        self.name = name
        self.start = start
        self.phases: list[str] = []  # the open phases, the innermost last
        self.kernels: int | None = None

    def describe(self, now: float) -> str:
        kernels = "" if self.kernels is None else f", {self.kernels} kernel{'s' * (self.kernels != 1)}"
        return f"{now - self.start:.1f} s, {self.phases[-1] if self.phases else 'capture'}{kernels}: {self.name}"


class Display:
    """The line on the terminal.  `tick` writes it when it is due; the end of the last compile clears it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, threaded: bool = True) -> None:
        self.clock = clock
        self.threaded = threaded
        self.running: list[Compile] = []
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.stream: Any = None  # the stream with the line; None: no line

    def begin(self, compile: Compile) -> None:
        with self.changed:
            self.running.append(compile)
            if self.threaded and self.thread is None:
                self.thread = threading.Thread(target=self.watch, name="pycompiler progress", daemon=True)
                self.thread.start()

    def end(self, compile: Compile) -> None:
        with self.changed:
            self.running.remove(compile)
            if not self.running:
                self.write("")
                self.stream = None
                self.changed.notify()

    def watch(self) -> None:
        """The thread's function: ends with the last compile."""
        with self.changed:
            while self.running:
                self.tick()
                self.changed.wait(INTERVAL_S if self.stream is not None else DELAY_S / 4)
            self.thread = None

    def tick(self) -> None:
        with self.changed:
            now = self.clock()
            slow = [c for c in self.running if now - c.start >= DELAY_S]
            if slow:
                if self.stream is None:
                    self.stream = sys.stderr
                many = f" {len(self.running)} functions" if len(self.running) > 1 else ""
                self.write(f"compiling{many}, {slow[0].describe(now)}")

    def write(self, text: str) -> None:
        """Replace the line.  A closed stream ends the display, not the compile."""
        if self.stream is None:
            return
        try:
            self.stream.write(f"{CLEAR}{text[: _columns(self.stream) - 1]}\r")
            self.stream.flush()
        except (OSError, ValueError):
            self.stream = None


def _columns(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


DISPLAY = Display()
_current = threading.local()  # of this thread: .name of the innermost compile, and .compile, if it may be shown


def _after_fork() -> None:
    global DISPLAY
    DISPLAY = Display()  # the thread stayed in the parent
    _current.__dict__.clear()


os.register_at_fork(after_in_child=_after_fork)


def on_terminal() -> bool:
    try:
        return bool(sys.stderr.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False


class compiling:
    """Context manager of one compile."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compile: Compile | None = None

    def __enter__(self) -> None:
        self.outer = current_name(), getattr(_current, "compile", None)
        _current.name = self.name
        if config.progress and on_terminal():
            self.display = DISPLAY
            _current.compile = self.compile = Compile(self.name, self.display.clock())
            self.display.begin(self.compile)

    def __exit__(self, *exc: object) -> None:
        _current.name, _current.compile = self.outer
        if self.compile is not None:
            self.display.end(self.compile)


def current_name() -> str:
    """The name of this thread's compile, or ""."""
    return getattr(_current, "name", "")


def note_kernels(count: int) -> None:
    """Add `count` kernels to this thread's compile."""
    compile = getattr(_current, "compile", None)
    if compile is not None:
        compile.kernels = (compile.kernels or 0) + count


class _Phases(phases.Observer):
    """Records the phases of this thread's compile."""

    def begin(self, phase: str) -> None:
        if (compile := getattr(_current, "compile", None)) is not None:
            compile.phases.append(phase)

    def end(self, phase: str, seconds: float) -> None:
        compile = getattr(_current, "compile", None)
        if compile is not None and phase in compile.phases[-1:]:  # the phase may have started before the compile
            compile.phases.pop()


phases.observers.append(_Phases())
