"""Process settings that compiles change: the collector's thresholds, the recursion limit, knobs; and locks.

In: functions that read and write a setting.  Out: a context manager for any number of threads.
A forked process has one thread.  It restores the changes of the other threads (`os.register_at_fork`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lock:
    """``with lock():``, a lock of the threads of this process.  A forked process does not inherit or wait for its
    parent's locks."""

    def __init__(self) -> None:
        self._of: dict[int, threading.Lock] = {}

    def __call__(self) -> threading.Lock:
        process = os.getpid()
        return self._of.get(process) or self._of.setdefault(process, threading.Lock())


class WhileInside(Generic[T]):
    """A setting holds while any thread is inside: the first thread to enter sets it, the last one to leave restores it.

    Changes made by other code meanwhile are kept.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], object], wanted: Callable[[T], T]) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self.before = read()
        self.inside = 0
        self.lock = threading.Lock()
        self.own = threading.local()  # .inside: the nesting depth of this thread
        os.register_at_fork(after_in_child=self.after_fork)

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = self.read()
                self.write(self.wanted(self.before))
            self.inside += 1
            self.own.inside = getattr(self.own, "inside", 0) + 1

    def __exit__(self, *exc: object) -> None:
        with self.lock:
            self.inside -= 1
            self.own.inside -= 1
            self.put_back()

    def put_back(self) -> None:
        if self.inside == 0 and self.read() == self.wanted(self.before):
            self.write(self.before)

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        others = self.inside - getattr(self.own, "inside", 0)
        if others:
            self.inside -= others
            self.put_back()
