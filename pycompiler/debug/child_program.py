"""A program in a child of this process; its events are written to a file at once, so they survive a crash.

In: a `UserProgram`, a folder.  Out: how it ended; and in the folder the events (`debug/events.py`) of the program and of its
child processes.

Example: `Ended(signal=11)` for a program that crashed, beside the events of the frames that it had compiled.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from pycompiler import config
from pycompiler.debug.describe import Data
from pycompiler.debug.events import Recorder, event_of
from pycompiler.debug.program import UserProgram, at_exits

POLL = 0.05  # seconds between two looks at a child whose page is written while it runs
VARIABLE = "PYCOMPILER_TRACE"
EVENTS = "0.jsonl"  # the program's own events, sorted before other processes' (`debug/trace.py`)
# Signals sent to our process that are meant for the program.  A terminal sends Ctrl-C to both.
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Server(Protocol):
    """A server of the report (`report_server.py`)."""

    def start(self) -> None: ...
    def server_close(self) -> None: ...


@dataclass(frozen=True)
class Ended:
    """The exit status of a program, or the signal that ended it."""

    code: int = 0
    signal: int = 0

    @property
    def status(self) -> int:
        """The status as a shell reports it: 128 plus the number for a signal."""
        return 128 + self.signal if self.signal else self.code

    def event(self) -> Data:
        return event_of("end", status=self.status, signal=self.signal_name, what=self.what)

    @property
    def signal_name(self) -> str | None:
        try:
            return signal.Signals(self.signal).name if self.signal else None
        except ValueError:  # a real-time signal
            return f"signal {self.signal}"

    @property
    def what(self) -> str | None:
        return signal.strsignal(self.signal) if self.signal else None

    def __str__(self) -> str:
        """A line for the terminal if a signal ended the program."""
        return f"the program was ended by signal {self.signal} ({self.signal_name}: {self.what})" if self.signal else ""


def run(
    program: UserProgram,
    folder: Path,
    *,
    costs: bool,
    every: float | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    server: Server | None = None,
) -> Ended:
    """Run the program; see the module.  `meanwhile` is called `every` so many seconds until the program ends.

    `server` starts in this process after the fork, since threads do not survive one; the child closes its socket.
    If this process has computed gradients, the child cannot compute any, since autograd's threads do not survive a fork.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child == 0:
        if server is not None:
            server.server_close()
        _inside(program, folder, costs)
    if server is not None:
        server.start()
    with _forwarding_signals(child):
        status = _wait(child, every, meanwhile)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    return Ended(os.waitstatus_to_exitcode(status))


def _wait(child: int, every: float | None, meanwhile: Callable[[], None]) -> int:
    """The child's status, as `os.waitpid` returns it."""
    if not every or every <= 0:
        return os.waitpid(child, 0)[1]
    due = time.monotonic() + every
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= due:
            meanwhile()
            due = time.monotonic() + every
        time.sleep(min(POLL, every))


@contextlib.contextmanager
def _forwarding_signals(child: int) -> Iterator[None]:
    def send(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {}
    with contextlib.suppress(ValueError):  # threads other than the main thread have no signals
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in PASSED_ON:
            before[number] = signal.signal(number, send)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# in the child ---------------------------------------------------------------------------------------------------------
def _inside(program: UserProgram, folder: Path, costs: bool) -> NoReturn:
    status, leave, own = 70, os._exit, os.getpid()
    try:
        sys.argv = [program.name, *program.arguments]  # the title of the page
        _trace_children(folder)
        with (folder / EVENTS).open("w", encoding="utf-8") as file:
            lock = threading.Lock()

            def take(event: Data) -> None:
                if os.getpid() == own:  # forks of the child write traces
                    with lock:
                        file.write(json.dumps(event, default=str) + "\n")
                        file.flush()

            recorder = Recorder(take, costs=costs)
            with at_exits(lambda _: recorder.tell_calls()), recorder:
                status = program.status()
                threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads, as Python does
            atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        leave(status & 0xFF)


def _trace_children(folder: Path) -> None:
    """Let child processes and forks of the program write traces to `folder`, unless they already write traces elsewhere."""
    if config.trace_dir is not None:
        return

    def trace() -> None:
        if folder.exists():  # the folder is removed at the end
            config.set_knob("trace_dir", str(folder))

    os.register_at_fork(after_in_child=trace)
    os.environ[VARIABLE] = str(folder)
