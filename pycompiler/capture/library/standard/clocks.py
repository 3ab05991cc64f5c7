"""Handlers of clocks, and of functions that identify the thread or process: numbers and strings that each call reads.

A clock read before the first operator is read before the graph; a clock read after the last operator is read after
the graph.  Between two operators the graph ends at the read, so that the program measures the code that ran in
between.  The thread and process are read at the frame's start.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.deferred import WORD, ThreadIdent, holds, read
from pycompiler.ir.source import const_source

SECONDS, NANOSECONDS = 1e13, 1e22

NAMES = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
CLOCKS: dict[Any, float] = {
    **{getattr(time, n): SECONDS for n in NAMES if hasattr(time, n)},
    **{getattr(time, f"{n}_ns"): NANOSECONDS for n in NAMES if hasattr(time, f"{n}_ns")},
    time.ctime: 0.0, time.localtime: 0.0, time.gmtime: 0.0,
}  # fmt: skip
RUNNERS: dict[Any, float] = {
    os.getpid: WORD, os.getppid: WORD, threading.get_native_id: WORD, threading.current_thread: 0.0,
    uuid.uuid4: 0.0,
}  # fmt: skip


def _reading(fn: Any, limit: float, *, timed: bool) -> None:
    @builtin(fn)
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs:
            raise Break("builtin-call", f"{fn.__name__}() with arguments")
        return read(cx, fn, [], limit, timed=timed)


for _timed, _table in ((True, CLOCKS), (False, RUNNERS)):
    for _fn, _limit in _table.items():
        _reading(_fn, _limit, timed=_timed)


@builtin(threading.main_thread)
def main_thread(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.wrap(threading.main_thread(), const_source(vars(threading)).dict_item("_main_thread"))


@builtin(threading.get_ident)
def get_ident(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        raise Break("builtin-call", "threading.get_ident() with arguments")
    return ThreadIdent()


def _now(cls: type) -> Callable[..., Any]:
    return datetime.datetime.now if cls is datetime.datetime else datetime.date.today


@builtin(vars(datetime.datetime)["now"], vars(datetime.date)["today"])
def now(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`datetime.now()` and `date.today()` in local time. Subclasses run code of the program and break."""
    cls = args[0].const()
    if len(args) > 1 or kwargs or cls not in (datetime.datetime, datetime.date):
        raise Break("builtin-call", f"now() or today() of {cls.__qualname__}, or in a timezone")
    return read(cx, _now(cls), [], 0.0, timed=True)


def _strftime(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or not args or any(map(holds, args)) or not isinstance(args[0], Const):
        raise Break("builtin-call", "time.strftime with arguments that are not constants")
    return read(cx, time.strftime, [Const(a.const()) for a in args], 0.0, timed=len(args) == 1)


builtin(time.strftime)(_strftime)
