"""Clocks and queries about the running thread or process: each call reads them at the program's place."""

from __future__ import annotations

import datetime
import logging
import os
import re
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.errors import Unsupported
from tests.children import python

BACKENDS = ("eager", "aot_eager", "native")
X = torch.arange(6.0).reshape(2, 3)
LOGGER = logging.getLogger("tests.clocks")


class Timer:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.last = 0.0


TIMER = Timer()


def around(x: Any) -> Any:
    begin = time.perf_counter_ns()
    y = x @ x.T
    return y, begin, time.perf_counter_ns()


def measured(x: Any) -> Any:
    begin = time.time()
    y = x + 1
    return y, time.time() - begin, round((time.time() - begin) * 1e3, 2), int(time.time() * 1000)


def rate(x: Any) -> Any:
    begin = time.perf_counter()
    y = x + 1
    return y, x.shape[0] / (time.perf_counter() - begin)


def stored(x: Any) -> Any:
    begin = time.monotonic()
    y = x + 1
    TIMER.times.append(time.monotonic() - begin)
    TIMER.last = begin
    return y


def told(x: Any) -> Any:
    begin = time.time()
    y = x + 1
    spent = time.time() - begin
    text = f"{spent:.3f} s {y.shape}"
    return y, text, "%.2f of %d" % (spent, os.getpid()), "{:>8.3f}".format(spent) + str(os.getpid())


def dates(x: Any) -> Any:
    begin = datetime.datetime.now()
    y = x + 1
    spent = datetime.datetime.now() - begin
    return y, spent.total_seconds(), begin.strftime("%Y"), begin.year, time.strftime("%Y-%m") + "_run"


def date_of_numbers(x: Any) -> Any:
    first = time.strftime("%Y", (2024, 3, 2, 3, 4, 5, 0, 1, -1))
    y = x + 1
    return y * 2, first, time.strftime("%m", (2024, 3, 2, 3, 4, 5, 0, 1, -1))


def runners(x: Any) -> Any:
    return x + 1, threading.current_thread().name, threading.get_ident(), os.getpid(), str(uuid.uuid4())


def compared_with_none(x: Any) -> Any:
    begin = time.time()
    return x + 1 if begin is not None and begin is begin else x


def classes(v: Any) -> Any:
    if isinstance(v, torch.Tensor):
        return v.tolist()
    return [*map(classes, v)] if isinstance(v, tuple) else type(v)


@pytest.mark.parametrize(
    "fn",
    [around, measured, rate, stored, told, dates, date_of_numbers, runners, compared_with_none],
    ids=lambda fn: fn.__name__,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        assert classes(compiled(X)) == classes(fn(X))
    report = pycompiler.explain(fn)(X)
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_a_date_of_numbers_is_that_date() -> None:
    compiled = pycompiler.compile(date_of_numbers, backend="eager", fullgraph=True)
    assert compiled(X)[1:] == date_of_numbers(X)[1:] == ("2024", "03")


def test_the_work_is_between_the_readings() -> None:
    ran = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(time.perf_counter_ns())
            return gm(*args)

        return run

    compiled = pycompiler.compile(around, backend=backend, fullgraph=True)
    for _ in range(2):
        before = time.perf_counter_ns()
        _, begin, end = compiled(X)
        assert before < begin < ran[-1] < end < time.perf_counter_ns()


def test_values_are_those_of_the_call() -> None:
    compiled = pycompiler.compile(runners, backend="eager", fullgraph=True)
    first = compiled(X)
    assert first[1:4] == (threading.current_thread().name, threading.get_ident(), os.getpid())
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(compiled(X)), name="another")
    thread.start()
    thread.join()
    assert results[0][1:3] == ("another", thread.ident) and results[0][4] != first[4]
    assert len(re.findall("-", first[4])) == 4


def test_what_is_stored_is_read_by_each_call() -> None:
    compiled = pycompiler.compile(stored, backend="eager", fullgraph=True)
    TIMER.times.clear()
    before = time.monotonic()
    compiled(X)
    first = TIMER.last
    compiled(X)
    assert before <= first <= TIMER.last <= time.monotonic()
    assert len(TIMER.times) == 2 and all(0 <= t < 60 for t in TIMER.times)


def test_a_record_that_waits_has_what_was_read(caplog: pytest.LogCaptureFixture) -> None:
    def logs(x: Any) -> Any:
        begin = time.time()
        y = x + 1
        LOGGER.warning("took %.1f s in %s", time.time() - begin, os.getpid())
        return y

    compiled = pycompiler.compile(logs, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(X)
    assert [r.getMessage() for r in caplog.records] == [f"took 0.0 s in {os.getpid()}"] * 2


def two_parts(x: Any) -> Any:
    first = time.perf_counter()
    y = x + 1
    second = time.perf_counter()
    z = y * 2
    return z, first, second, time.perf_counter()


def decides(x: Any) -> Any:
    begin = time.time()
    y = x + 1
    return y * 2 if time.time() - begin > 1000 else y


def in_the_graph(x: Any) -> Any:
    return x * 0 + (time.time() > 0) * time.time() / time.time()


def caught(x: Any) -> Any:
    begin = time.perf_counter()
    y = x + 1
    try:
        return y, 1 / (time.perf_counter() - begin)
    except ZeroDivisionError:
        return y, 0.0


@pytest.mark.parametrize("fn", [two_parts, decides, in_the_graph, caught], ids=lambda fn: fn.__name__)
def test_breaks(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        found, expected = compiled(X), fn(X)
        assert classes(found) == classes(expected)
        if fn is two_parts:
            assert found[1] < found[2] < found[3]
    with pytest.raises(Unsupported):
        pycompiler.compile(fn, backend="eager", fullgraph=True)(X)


def test_parts_that_are_measured_one_by_one_are_graphs_of_their_own() -> None:
    report = pycompiler.explain(two_parts)(X)
    assert (report.graph_count, report.graph_break_count) == (2, 1)
    assert "between operators" in report.break_reasons[0].reason


def test_a_division_by_a_time_raises_as_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> float:
        return 0.0

    compiled = pycompiler.compile(rate, backend="eager", fullgraph=True)
    compiled(X)
    monkeypatch.setattr(time, "perf_counter", nothing)  # another function, which is inlined
    with pytest.raises(ZeroDivisionError):
        pycompiler.compile(rate, backend="eager")(X)


def of_a_process(x: Any, owner: int) -> Any:
    return x + 1 if os.getpid() == owner else x - 1


FORKS = """
import os, sys, torch
from tests.capture.library.standard.test_clocks import X, of_a_process
import pycompiler

compiled = pycompiler.compile(of_a_process, backend="eager", fullgraph=True)
owner = os.getpid()
assert torch.equal(compiled(X, owner), X + 1)
child = os.fork()
if not child:
    os._exit(0 if torch.equal(compiled(X, owner), X - 1) else 1)
assert torch.equal(compiled(X, owner), X + 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_question_about_the_process_is_guarded() -> None:
    done = subprocess.run([python(), "-c", FORKS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def as_an_index(x: Any) -> Any:
    n = os.getpid() * 0 + 1
    try:
        return [x, x + 1][n], range(5)[n:], divmod(7, n), [0] * n
    except TypeError as error:
        return str(error)


def as_an_operand(x: Any) -> Any:
    n = os.getpid() * 0 + 2
    return x * n, torch.full((2,), n), x.repeat(n, 1), {n: 1}, hash(n), max(n, 1), [n].count(2), n in (1, 2), n or x


def in_containers(x: Any) -> Any:
    n = os.getpid() * 0 + 2
    held = [n, *(n,), {"n": n}]
    n += 1
    return x + 1, held, str(n), f"{n:04d} {n!r}", n // 2, (lambda: n)(), -n, n == 3


@pytest.mark.parametrize("fn", [as_an_index, as_an_operand, in_containers])
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_known_late_are_numbers(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        assert str(compiled(X)) == str(fn(X))


def of_the_main_thread(x: Any) -> Any:
    return x + 1 if threading.current_thread() is threading.main_thread() else x - 1


def test_a_question_about_the_thread_is_guarded() -> None:
    compiled = pycompiler.compile(of_the_main_thread, backend="eager", fullgraph=True)
    results = [compiled(X)]
    for _ in range(2):
        thread = threading.Thread(target=lambda: results.append(compiled(X)))
        thread.start()
        thread.join()
    results.append(compiled(X))
    for found, expected in zip(results, (X + 1, X - 1, X - 1, X + 1), strict=True):
        torch.testing.assert_close(found, expected)
