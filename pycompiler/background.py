"""Background compiles: one pool of worker threads for the process.

In: `submit(name, job)`; a job is a callable without arguments.  Out: a worker runs the jobs in the order of submission,
after a short delay in which the submitting call returns.  `wait(timeout)` reports whether all jobs are done.
The exception of a job is logged once.

At the end of the process no new job starts.  The running job ends at its next safe point
(`torch_compat.interrupts.check`), or with the C++ compiler, which is killed.  A forked process inherits the unfinished
jobs, and starts workers of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from pycompiler import config
from pycompiler.logs import stage
from pycompiler.torch_compat import interrupts

log = stage("background")

SWITCH_S = 0.0005  # switch interval while a worker runs: calls in other threads get the interpreter after this time
GRACE_S = 0.1  # delay before a job starts, unless `wait` is active, so that the submitting call returns first

Job = Callable[[], None]


class Pool:
    """At most `config.background_workers` threads, which end when no job is left."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        # the last item: time.monotonic() at which the job may start
        self.waiting: deque[tuple[str, Job, float]] = deque()
        self.hurried = 0  # number of active calls of `wait`
        self.running: dict[threading.Thread, tuple[str, Job, float]] = {}
        self.workers = 0
        self.stopping = False
        self.interval = 0.0  # the program's switch interval
        self.ours = 0.0  # our interval as rounded by the interpreter, which counts microseconds

    def submit(self, name: str, job: Job) -> None:
        with self.changed:
            if self.stopping:
                return
            self.waiting.append((name, job, time.monotonic() + GRACE_S))
            self.start_worker()

    def start_worker(self) -> None:
        if self.workers < config.background_workers and self.waiting:
            self.workers += 1
            if self.workers == 1:
                self.interval = sys.getswitchinterval()
                sys.setswitchinterval(min(self.interval, SWITCH_S))
                self.ours = sys.getswitchinterval()
            threading.Thread(target=self.work, name="pycompiler background", daemon=True).start()

    def work(self) -> None:
        me = threading.current_thread()
        interrupts.stop_with(lambda: self.stopping)
        while True:
            with self.changed:
                self.running.pop(me, None)
                while (
                    self.waiting
                    and not self.stopping
                    and not self.hurried
                    and (left := self.waiting[0][2] - time.monotonic()) > 0
                ):
                    self.changed.wait(left)
                if not self.waiting or self.stopping or self.workers > config.background_workers:
                    self.workers -= 1
                    if self.workers == 0 and sys.getswitchinterval() == self.ours:
                        sys.setswitchinterval(self.interval)
                    self.changed.notify_all()
                    return
                name, job, _ = self.running[me] = self.waiting.popleft()
            try:
                job()
            except interrupts.Stopped:
                log.debug("%s: not compiled, the process ends", name)
            except BaseException as error:  # any exception only ends this job
                log.warning("%s stays eager: its compile in the background failed: %s: %s", name,
                            type(error).__name__, error, exc_info=error if config.verbose else None)  # fmt: skip
            finally:
                del job

    def wait(self, timeout: float | None) -> bool:
        with self.changed:
            if timeout == 0:
                return not self.waiting and not self.running
            self.hurried += 1
            self.changed.notify_all()
            try:
                return self.changed.wait_for(lambda: not self.waiting and not self.running, timeout)
            finally:
                self.hurried -= 1

    def stop(self) -> None:
        """At the end of the process: a thread that runs torch during interpreter shutdown would crash it."""
        with self.changed:
            self.stopping = True
            self.waiting.clear()
        while not self.wait(0.05):
            interrupts.stop_now()

    def after_fork(self) -> None:
        left = [*self.running.values(), *self.waiting]
        if self.workers and sys.getswitchinterval() == self.ours:
            sys.setswitchinterval(self.interval)
        self.__init__()  # type: ignore[misc]
        self.waiting.extend(left)
        with self.changed:
            self.start_worker()


POOL = Pool()
atexit.register(POOL.stop)
os.register_at_fork(after_in_child=POOL.after_fork)

submit = POOL.submit


def inside() -> bool:
    """Whether this thread is a worker, which has no work to postpone."""
    return threading.current_thread() in POOL.running


def wait(timeout: float | None = None) -> bool:
    """Wait until all background compiles are done, at most `timeout` seconds; returns whether they are."""
    return POOL.wait(timeout)
