"""One callable, many threads: right values, no deadlock, one compilation at a time."""

from __future__ import annotations

import threading
import time
from typing import Any

from pycompiler import _native
from tests.native.engine import equality_compiler

SECONDS = 1.0


def run_threads(n: int, body: Any) -> None:
    errors: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            body(i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
        assert not t.is_alive(), "deadlock"
    assert not errors, errors[0]


def f(x: int) -> int:
    return x * 10


def test_call_compile_and_reset() -> None:
    compiling = threading.Semaphore(1)
    plain = equality_compiler(f, lambda d: d["x"] * 10)

    def compile(s: Any, l: Any, r: Any) -> Any:
        assert compiling.acquire(blocking=False), "two compilations of one function at a time"
        time.sleep(0.0005)
        compiling.release()
        return plain(s, l, r)

    c = _native.CompiledFunction(f, compile)
    stop = time.monotonic() + SECONDS
    modes = ("compile", "run", "eager", "compile")

    def body(i: int) -> None:
        k = 0
        while time.monotonic() < stop:
            k += 1
            assert c(k % 11) == k % 11 * 10
            if i == 0 and k % 7 == 0:
                c.reset()
            elif i == 1 and k % 5 == 0:
                c.set_mode(modes[k % 4])
            elif i == 2:
                c.counters(), c.entries, c.explain_miss(3)

    run_threads(8, body)
    c.set_mode("compile")
    c.reset()
    assert c(3) == 30


def test_waiting_threads_use_the_first_compilation() -> None:
    plain = equality_compiler(f, lambda d: ("compiled", threading.get_ident()))

    def compile(s: Any, l: Any, r: Any) -> Any:
        time.sleep(0.1)
        return plain(s, l, r)

    c = _native.CompiledFunction(f, compile)
    run_threads(8, lambda i: c(1))
    n = c.counters()
    assert (n["compiles"], n["hits"], n["eager_calls"]) == (1, 7, 0)


def test_two_functions_that_compile_each_other() -> None:
    """Each compilation calls the other function: threads that compile do not wait for one another."""

    def g(x: int) -> int:
        return x * 100

    compile_f, compile_g = equality_compiler(f, lambda d: d["x"] * 10), equality_compiler(g, lambda d: d["x"] * 100)

    def for_f(s: Any, l: Any, r: Any) -> Any:
        time.sleep(0.002)
        assert cg(l["x"]) == l["x"] * 100
        return compile_f(s, l, r)

    def for_g(s: Any, l: Any, r: Any) -> Any:
        time.sleep(0.002)
        assert cf(l["x"]) == l["x"] * 10
        return compile_g(s, l, r)

    cf, cg = _native.CompiledFunction(f, for_f), _native.CompiledFunction(g, for_g)

    def body(i: int) -> None:
        for k in range(40):
            assert (cf(k % 5) == k % 5 * 10) if i % 2 else (cg(k % 5) == k % 5 * 100)
            if k % 10 == 0:
                cf.reset(), cg.reset()

    run_threads(8, body)
