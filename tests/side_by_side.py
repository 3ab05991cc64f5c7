"""Parallel works in forked children.

A work is a generator: it yields a function for a child and a limit in seconds, and receives the child's exit
status:

    def work() -> Work:
        status = yield lambda: 3, 10.0  # a child ends with status 3
        assert status == 3  # None if it had not ended after 10 seconds
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator

BROKE = 70  # exit status of a child that raised
Step = tuple[Callable[[], int], float]  # a function for a child, and its limit in seconds
Work = Generator[Step, "int | None", None]  # receives the child's exit status, or None after the limit


def side_by_side(works: Iterator[Work], jobs: int) -> None:
    """Run each work's steps one after the other, in forked children; `jobs` works at a time. The next work is fetched
    when a place is free."""
    running: dict[int, tuple[Work, float]] = {}

    def advance(work: Work, answer: int | None, begun: bool) -> None:
        try:
            run, seconds = work.send(answer) if begun else next(work)
        except StopIteration:
            return
        child = os.fork()
        if child == 0:
            status = BROKE
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setsid()
                status = run()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        running[child] = work, time.monotonic() + seconds

    def ended(child: int, answer: int | None) -> None:
        end_session(child)
        advance(running.pop(child)[0], answer, True)

    try:
        while True:
            while len(running) < jobs and (work := next(works, None)) is not None:
                advance(work, None, False)
            if not running:
                return
            child, status = os.waitpid(-1, os.WNOHANG)
            if child in running:
                ended(child, os.waitstatus_to_exitcode(status))
                continue
            for late in [child for child, (_, end) in running.items() if time.monotonic() > end]:
                end_session(late)
                os.waitpid(late, 0)
                ended(late, None)
            time.sleep(0.02)
    finally:
        for child in running:
            end_session(child)


def end_session(child: int) -> None:
    """Each child leads a session of its own, which contains the processes that its tests started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
