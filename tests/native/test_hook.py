"""The frame hook: frames reached through other code, each cleared exactly once whatever the answer."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import _native
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import local
from tests.native.engine import equality_compiler


@contextmanager
def hook(callback: Any) -> Iterator[None]:
    _native.set_frame_hook(callback)
    _native.enter_hook()
    try:
        yield
    finally:
        _native.exit_hook()
        _native.set_frame_hook(None)


def for_codes(table: dict[Any, Any], log: list[Any] | None = None) -> Any:
    def callback(code: Any, function: Any) -> Any:
        if log is not None:
            log.append(code)
        return table.get(code)

    return callback


def compiled(fn: Any, body: Any) -> Any:
    return _native.CompiledFunction(fn, equality_compiler(fn, body))


def target(a: Any, b: Any = 2, *args: Any, k: Any = 3, **kw: Any) -> Any:
    return ("eager", a, b, args, k, kw)


def test_frames_take_the_compiled_way() -> None:
    c = compiled(target, lambda d: ("compiled", d["a"], d["b"], d["args"], d["k"], d["kw"]))
    log: list[Any] = []
    with hook(for_codes({target.__code__: c}, log)):
        for _ in range(3):
            assert target(1) == ("compiled", 1, 2, (), 3, {})
            assert target(1, 5, 6, k=7, z=8) == ("compiled", 1, 5, (6,), 7, {"z": 8})
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
            target()  # type: ignore[call-arg]
    assert target(1)[0] == "eager"
    assert log.count(target.__code__) == 1
    n = c.counters()
    assert (n["compiles"], n["hits"]) == (2, 4)


def test_answer_none_is_remembered_until_the_next_callback() -> None:
    def plain(x: int) -> int:
        return x

    log: list[Any] = []
    for _ in range(2):
        with hook(for_codes({}, log)):
            assert [plain(i) for i in range(5)] == list(range(5))
    assert log.count(plain.__code__) == 2


def helper(x: Any) -> Any:
    return x.clone()


@torch.library.custom_op("pycompiler_test_hook::copied", mutates_args=())
def copied(x: torch.Tensor) -> torch.Tensor:
    return helper(x)


@copied.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager", lambda gm, inputs: lambda *a: gm(*a)])
def test_off_while_a_graph_runs(backend: Any) -> None:
    """Python code of an operator or a backend is no part of the program."""
    x = torch.ones(3)
    made = pycompiler.compile(lambda x: copied(x) + 1, backend=backend)
    made(x)
    log: list[Any] = []
    with hook(for_codes({}, log)):
        assert torch.equal(made(x), x + 1)
        helper(x)  # the hook sees it once the graph has run
    assert [code for code in log if code.co_filename == __file__] == [helper.__code__]
    assert pycompiler.counters(made)["hits"] == 1


def test_off_unless_entered() -> None:
    c = compiled(target, lambda d: "compiled")
    _native.set_frame_hook(for_codes({target.__code__: c}))
    try:
        assert target(1)[0] == "eager"
        _native.enter_hook(), _native.enter_hook()
        assert target(1) == "compiled"
        _native.exit_hook()
        assert target(1) == "compiled"
        _native.pause_hook()
        assert target(1)[0] == "eager"
        _native.resume_hook()
        seen: list[Any] = []
        t = threading.Thread(target=lambda: seen.append(target(1)))
        t.start(), t.join()
        assert seen[0][0] == "eager"  # on in this thread only
        _native.exit_hook()
        assert target(1)[0] == "eager"
    finally:
        _native.set_frame_hook(None)


def test_closures_and_methods() -> None:
    def outer(n: int) -> Any:
        def f(x: int) -> Any:
            return ("eager", x + n)

        return f

    f, g = outer(10), outer(20)
    c = _native.CompiledFunction(f, equality_compiler(f, lambda d: ("compiled", d["x"] + d["n"].cell_contents)))
    with hook(for_codes({f.__code__: c})):
        assert (f(1), g(1), f(1)) == (("compiled", 11), ("compiled", 21), ("compiled", 11))

    # a target with free variables of its own runs with the cells of the frame's function
    def generated(n: int) -> Any:
        return lambda x: ("compiled", x + n)

    inner = generated(-5)
    d = _native.CompiledFunction(f, lambda s, l, r: _native.Entry([], inner, "function"))
    with hook(for_codes({f.__code__: d})):
        assert (f(1), g(1)) == (("compiled", 11), ("compiled", 21))
    assert d.counters()["hits"] == 1

    class Host:
        def method(self, x: int) -> Any:
            return ("eager", x)

    m = compiled(Host.method, lambda d: ("compiled", d["self"], d["x"]))
    h = Host()
    with hook(for_codes({Host.method.__code__: m})):
        assert h.method(4) == ("compiled", h, 4)


def test_exceptions_come_out_of_the_frame() -> None:
    def body(d: Any) -> Any:
        raise ZeroDivisionError("inside")

    c = compiled(target, body)
    with hook(for_codes({target.__code__: c})):
        for _ in range(3):
            with pytest.raises(ZeroDivisionError, match="inside"):
                target(1)
            with pytest.raises(ZeroDivisionError) as caught:
                target(1)
            assert caught.tb is not None
    assert c.counters()["compiles"] == 1


def test_eager_answers_run_the_frame_itself() -> None:
    def compile(s: Any, l: Any, r: Any) -> Any:
        assert target(0)[0] == "eager"  # the hook is off while this thread compiles
        return None

    c = _native.CompiledFunction(target, compile)
    with hook(for_codes({target.__code__: c})):
        assert target(1)[0] == "eager"
        assert target(2)[0] == "eager"
    e = _native.CompiledFunction(
        target, lambda s, l, r: _native.Entry([Guard("equals", local("a"), 1)], target, "eager")
    )
    with hook(for_codes({target.__code__: e})):
        assert target(1)[0] == "eager"
        assert target(1)[0] == "eager"
    assert e.counters()["hits"] == 1


def test_direct_entry_that_runs_eagerly_passes_the_hook() -> None:
    direct = _native.CompiledFunction(target, lambda *a: None)
    other = compiled(target, lambda d: "compiled")
    with hook(for_codes({target.__code__: other})):
        assert direct(1)[0] == "eager"
        assert target(1) == "compiled"
        assert direct(1)[0] == "eager"


def test_generators_coroutines_and_module_code_run_as_they_are() -> None:
    log: list[Any] = []

    def gen(n: int) -> Iterator[int]:
        for i in range(n):
            yield target(i)[1]

    async def coro() -> int:
        return 5

    with hook(for_codes({}, log)):
        assert list(gen(3)) == [0, 1, 2]
        c = coro()
        with pytest.raises(StopIteration):
            c.send(None)
        exec("x = [i for i in range(3)]\ndef f(): return x\nassert f() == [0, 1, 2]", {})
        assert type("T", (), {"a": property(lambda self: 7)})().a == 7
    assert gen.__code__ not in log
    assert coro.__code__ not in log
    assert target.__code__ in log


def test_tail_calls_in_a_frame() -> None:
    def resume(x: int) -> Any:
        raise AssertionError("compiled")

    r = _native.CompiledFunction(
        resume, lambda s, l, q: _native.Entry([], lambda x: x + 1, "function"), positional=True
    )
    c = compiled(target, lambda d: _native.tail_call(r, d["a"]))
    with hook(for_codes({target.__code__: c})):
        assert [target(i) for i in (1, 1, 2)] == [2, 2, 3]


def test_entry_turns_the_hook_on_for_its_own_run() -> None:
    def caller(x: int) -> Any: ...

    c = compiled(target, lambda d: "compiled")
    for frame_hook in (_native.FrameHook(for_codes({target.__code__: c})), None):
        entry = _native.Entry([], lambda x: target(x), "function", frame_hook=frame_hook)
        f = _native.CompiledFunction(caller, lambda s, l, r, entry=entry: entry)  # type: ignore[misc]
        assert [f(1), f(1)] == [target_result(frame_hook is not None)] * 2
    assert target(1)[0] == "eager"
    with pytest.raises(TypeError, match="must be callable"):
        _native.FrameHook(3)  # type: ignore[arg-type]


def test_hooks_of_two_callables_stay_apart() -> None:
    """The hook of the running entry decides, the innermost first; each is queried once."""

    def caller(x: int) -> Any: ...

    logs: list[list[Any]] = [[], []]
    inner = [compiled(target, lambda d, i=i: i) for i in range(2)]
    callers = []
    for i in range(2):
        entry = _native.Entry(
            [],
            lambda x: target(x),
            "function",
            frame_hook=_native.FrameHook(for_codes({target.__code__: inner[i]}, logs[i])),
        )
        callers.append(_native.CompiledFunction(caller, lambda s, l, r, entry=entry: entry))  # type: ignore[misc]
    for _ in range(5):
        assert [c(1) for c in callers] == [0, 1]
    assert [log.count(target.__code__) for log in logs] == [1, 1]


def test_a_code_object_keeps_no_compiled_function() -> None:
    def caller(x: int) -> Any: ...

    class Model:
        pass

    def build() -> Any:
        model = Model()
        table: dict[Any, Any] = {target.__code__: compiled(target, lambda d: model)}
        callback = for_codes(table)
        entry = _native.Entry([], lambda x: target(x), "function", frame_hook=_native.FrameHook(callback))
        c = _native.CompiledFunction(caller, lambda s, l, r: entry)
        c.back = (c, entry, callback)
        assert c(1) is model and c(2) is model
        return weakref.ref(model), weakref.ref(c), weakref.ref(table[target.__code__])

    refs = build()
    gc.collect()
    assert [r() for r in refs] == [None, None, None]


def target_result(on: bool) -> Any:
    return "compiled" if on else ("eager", 1, 2, (), 3, {})


def test_broken_callbacks_do_not_break_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: int) -> int:
        return x

    seen: list[Any] = []
    old, sys.unraisablehook = sys.unraisablehook, lambda u: seen.append(u.exc_type)
    try:
        with hook(lambda code, function: 1 // 0):
            assert f(3) == 3
        assert ZeroDivisionError in seen
        seen.clear()
        with hook(lambda code, function: 17):
            assert f(3) == 3
        assert TypeError in seen
    finally:
        sys.unraisablehook = old
    with pytest.raises(TypeError, match="callable or None"):
        _native.set_frame_hook(3)


def test_frames_leak_nothing() -> None:
    class Thing:
        pass

    def f(x: Any, *args: Any) -> Any:
        y = x
        return y

    def g(x: Any) -> Any:
        raise ValueError(x)

    cf = _native.CompiledFunction(f, lambda s, l, r: _native.Entry([], lambda x, args: x, "function"))

    def fail(x: Any) -> Any:
        raise ValueError(x)

    cg = _native.CompiledFunction(g, lambda s, l, r: _native.Entry([], fail, "function"))
    things = [Thing()]

    def rounds(n: int) -> None:
        for _ in range(n):
            assert f(things[0], things[0]) is things[0]
            try:
                g(things[0])
            except ValueError:
                pass

    with hook(for_codes({f.__code__: cf, g.__code__: cg})):
        rounds(20)
        gc.collect()
        before = sys.getrefcount(things[0]), sys.getrefcount(f), sys.getrefcount(f.__code__), sys.getallocatedblocks()
        rounds(5000)
        gc.collect()
        after = sys.getrefcount(things[0]), sys.getrefcount(f), sys.getrefcount(f.__code__), sys.getallocatedblocks()
    assert after[:3] == before[:3]
    assert after[3] - before[3] < 200
    assert cf.counters()["hits"] >= 5000
    assert cg.counters()["hits"] >= 5000
    r = weakref.ref(things.pop())
    gc.collect()
    assert r() is None


@pytest.mark.unsanitized("sanitized frames use the C stack up before Python's limit is reached")
def test_deep_recursion_through_the_hook() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    c = _native.CompiledFunction(
        down, lambda s, l, r: _native.Entry([], lambda n: 0 if n == 0 else 1 + down(n - 1), "function")
    )
    with hook(for_codes({down.__code__: c})):
        assert down(50) == 50
        with pytest.raises(RecursionError):
            down(10**6)
        assert down(50) == 50


def test_sys_settrace_and_frames_inspection_still_work() -> None:
    def f(x: int) -> Any:
        return sys._getframe(1).f_code.co_name

    c = compiled(target, lambda d: f(1))
    with hook(for_codes({target.__code__: c})):
        events: list[str] = []
        sys.settrace(lambda frame, event, arg: events.append(event))  # type: ignore[arg-type,func-returns-value]
        try:
            target(1)
        finally:
            sys.settrace(None)
        assert "call" in events
        assert target(1) is not None
