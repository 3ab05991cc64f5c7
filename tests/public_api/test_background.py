"""Compiles in the background: a miss is answered eagerly at once, and its entry becomes a compiled one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import background
from pycompiler.wrapping import compiled_of

Gate = tuple[Any, threading.Event, list[str]]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A backend that waits: (name, the event that releases it, the threads that ran it)."""
    go, seen = threading.Event(), list[str]()

    def slow(gm: Any, inputs: Any) -> Any:
        seen.append(threading.current_thread().name)
        assert go.wait(300)
        return gm.forward

    yield slow, go, seen
    go.set()
    assert pycompiler.wait_for_compiles(60)


def kinds(compiled: Any) -> list[str]:
    return [e.kind for e in compiled_of(compiled).entries]


def test_calls_are_eager_until_the_graph_is_compiled(gate: Gate) -> None:
    slow, go, seen = gate
    f = pycompiler.compile(lambda x: x.sin() + 1, backend=slow, background=True)
    x = torch.randn(4)
    for _ in range(3):
        assert torch.equal(f(x), x.sin() + 1)
    assert kinds(f) == ["eager"] and pycompiler.counters(f)["misses"] == 1
    assert pycompiler.wait_for_compiles(0) is False
    go.set()
    assert pycompiler.wait_for_compiles(60) is True
    assert kinds(f) == ["plan"] and seen == ["pycompiler background"]
    assert torch.equal(f(x), x.sin() + 1)
    assert pycompiler.counters(f) | {"guard_checks": 0} == {
        "hits": 3, "misses": 1, "compiles": 1, "eager_calls": 3, "limit_hits": 0, "guard_checks": 0, "fresh_failures": 0,
        "tail_calls": 0,
    }  # fmt: skip


def test_what_was_passed_goes_with_the_call(gate: Gate) -> None:
    _, go, _ = gate
    blocker = pycompiler.compile(lambda x: x + 1, backend=gate[0], background=True)
    blocker(torch.ones(2))
    f, x = pycompiler.compile(lambda x: x.sin() + 1, background=True), torch.ones(2)
    f(x)
    passed = weakref.ref(x)
    del x
    assert passed() is None
    go.set()
    assert pycompiler.wait_for_compiles(60) and kinds(f) == ["plan"]


def test_a_second_shape_is_another_entry(gate: Gate) -> None:
    slow, go, _ = gate
    f = pycompiler.compile(lambda x: x * 2, backend=slow, background=True)
    f(torch.ones(2)), f(torch.ones(3)), f(torch.ones(2))
    assert kinds(f) == ["eager", "eager"]
    go.set()
    assert pycompiler.wait_for_compiles(60)
    assert kinds(f) == ["plan", "plan"] and pycompiler.counters(f)["misses"] == 2


def test_training_finds_its_backward_compiled() -> None:
    m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    c, x = pycompiler.compile(m, background=True), torch.randn(3, 8)

    def grads(model: Any) -> list[torch.Tensor]:
        return list(torch.autograd.grad(model(x).sum(), list(m.parameters())))

    eager = grads(m)
    assert all(map(torch.equal, grads(c), eager))
    assert pycompiler.wait_for_compiles(120)
    before = pycompiler.compile_times("csv")
    for ours, theirs in zip(grads(c), eager, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert pycompiler.compile_times("csv") == before  # the backward compiled nothing


def test_breaks_and_closures_and_effects() -> None:
    def make(k: int) -> Any:
        def f(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
            seen.append(k)
            y = x + k
            pycompiler.graph_break()
            return y * k

        return f

    for _ in range(2):
        f = pycompiler.compile(make(3), background=True)
        x = torch.ones(2)
        for _ in range(3):
            seen: list[int] = []
            assert torch.equal(f(x, seen), (x + 3) * 3) and seen == [3]
            assert pycompiler.wait_for_compiles(120)
        assert kinds(f) == ["function"]


@pytest.mark.captures_nothing("the compile in the background fails")
def test_an_error_is_logged_once_and_the_frame_stays_eager(caplog: pytest.LogCaptureFixture) -> None:
    def bad(gm: Any, inputs: Any) -> Any:
        raise ZeroDivisionError("of the backend")

    f = pycompiler.compile(lambda x: x + 1, backend=bad, background=True)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(f(x), x + 1)
        assert pycompiler.wait_for_compiles(60)
    said = [r.getMessage() for r in caplog.records if "background" in r.name]
    assert len(said) == 1 and "of the backend" in said[0] and "stays eager" in said[0], said
    assert kinds(f) == ["eager"]


def test_the_callers_state_is_the_compiles_state(gate: Gate) -> None:
    slow, go, _ = gate
    f = pycompiler.compile(lambda x: x @ x, backend=slow, background=True)
    g = pycompiler.compile(lambda x: x @ x, background=True)
    x = torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        f(x), g(x)
        go.set()
        assert pycompiler.wait_for_compiles(60)
        assert kinds(f) == kinds(g) == ["plan"]
        assert g(x).dtype == torch.bfloat16
    with torch.inference_mode():
        assert g(x).is_inference()
        assert pycompiler.wait_for_compiles(60)
        torch.testing.assert_close(g(x), x @ x)  # other kernels, on some processors
        assert g(x).is_inference()


@pytest.mark.captures_nothing("the compile in the background is given up")
def test_global_state_that_changes_meanwhile(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    slow, go, _ = gate
    f = pycompiler.compile(lambda x: x + 1, backend=slow, background=True)
    f(torch.ones(2))
    torch.set_default_dtype(torch.float64)
    try:
        go.set()
        assert pycompiler.wait_for_compiles(60)
    finally:
        torch.set_default_dtype(torch.float32)
    assert kinds(f) == ["eager"] and "state" in caplog.text


@pytest.mark.captures_nothing("the compile in the background is given up")
def test_a_switch_of_all_threads_stays_as_the_program_sets_it(gate: Gate) -> None:
    slow, go, _ = gate
    f = pycompiler.compile(lambda x: x + 1, backend=slow, background=True)
    f(torch.ones(2))
    try:
        torch.backends.cuda.enable_flash_sdp(False)
        go.set()
        assert pycompiler.wait_for_compiles(60)
        assert not torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_a_stage_that_cannot_carry_a_symbol() -> None:
    """The worker finds the failure; the next call starts again with numbers, and the first try does not count for the
    limit."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (x,))

    made = pycompiler.compile(fn, dynamic=True, background=True, recompile_limit=1)
    for _ in range(4):
        x = torch.randn(8)
        torch.testing.assert_close(made(x), fn(x))
        assert pycompiler.wait_for_compiles(120)
    assert kinds(made) == ["plan"] and pycompiler.counters(made)["limit_hits"] == 0
    assert pycompiler.counters(made)["hits"] >= 2


def test_what_guards_look_at_changes_meanwhile(gate: Gate) -> None:
    slow, go, _ = gate
    table, linear, x = {"k": 2}, torch.nn.Linear(4, 4), torch.randn(3, 4)
    f = pycompiler.compile(lambda x: x * table["k"], backend=slow, background=True)
    m = pycompiler.compile(linear, backend=slow, background=True)
    assert torch.equal(f(x), x * 2) and torch.equal(m(x), linear(x))
    table["k"] = 5
    linear.weight = torch.nn.Parameter(torch.zeros(4, 4))
    assert torch.equal(f(x), x * 5) and torch.equal(m(x), linear.bias.expand(3, 4))
    go.set()
    assert pycompiler.wait_for_compiles(60)
    assert torch.equal(f(x), x * 5) and torch.equal(m(x), linear.bias.expand(3, 4))
    table["k"] = 2
    assert torch.equal(f(x), x * 2)
    assert kinds(f) == ["plan", "plan"] and kinds(m) == ["plan"]


@pytest.mark.parametrize("policy", ["run", "eager", "error"])
def test_policies_that_change_meanwhile(gate: Gate, policy: Any) -> None:
    """A requested compile completes; a new one does not start."""
    slow, go, _ = gate
    f = pycompiler.compile(lambda x: x + 1, backend=slow, background=True)
    x = torch.ones(2)
    f(x)
    pycompiler.set_policy(f, policy)
    assert torch.equal(f(x), x + 1)
    if policy == "error":
        with pytest.raises(pycompiler.exc.RecompileError):
            f(torch.ones(3))
    else:
        assert torch.equal(f(torch.ones(3)), torch.ones(3) + 1)
    go.set()
    assert pycompiler.wait_for_compiles(60)
    assert kinds(f) == ["plan"] and torch.equal(f(x), x + 1)


def test_a_callable_that_is_gone_or_reset(gate: Gate) -> None:
    slow, go, seen = gate
    blocker = pycompiler.compile(lambda x: x - 1, backend=slow, background=True)
    blocker(torch.ones(2))
    gone = pycompiler.compile(lambda x: x + 1, backend=slow, background=True)
    gone(torch.ones(2))
    del gone
    kept = pycompiler.compile(lambda x: x + 2, backend=slow, background=True)
    kept(torch.ones(2))
    pycompiler.reset(kept)
    kept(torch.ones(2))
    go.set()
    assert pycompiler.wait_for_compiles(60)
    assert kinds(kept) == ["plan"] and kinds(blocker) == ["plan"]


@pytest.mark.parametrize("dynamic, entries", [(False, 4), (None, 2)])
def test_many_threads_call_meanwhile(dynamic: bool | None, entries: int) -> None:
    f = pycompiler.compile(lambda x, k: (x * k).relu().sum(-1), background=True, dynamic=dynamic)
    wrong: list[int] = []

    def work(n: int) -> None:
        x = torch.randn(8, n)
        for _ in range(200):
            if not torch.allclose(f(x, n), (x * n).relu().sum(-1), atol=1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and pycompiler.wait_for_compiles(120)
    assert kinds(f) == ["plan"] * entries


@pytest.mark.parametrize("workers", [1, 2])
def test_so_many_compile_at_once(gate: Gate, workers: int) -> None:
    slow, go, seen = gate
    x, programs = torch.ones(2), [lambda x: x + 1, lambda x: x + 2, lambda x: x + 3]
    with pycompiler.config.patch(background_workers=workers):
        compiled = [pycompiler.compile(program, backend=slow, background=True) for program in programs]
        for f in compiled:
            f(x)
        deadline = time.monotonic() + 300
        while len(seen) < workers and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(seen) == workers
        go.set()
        assert pycompiler.wait_for_compiles(60)
    assert len(seen) == 3


def test_the_knob_and_wrong_arguments() -> None:
    with pycompiler.config.patch(background_compile=True):
        f = pycompiler.compile(lambda x: x + 1, backend="eager")
        g = pycompiler.compile(lambda x: x + 1, backend="eager", background=False)
    x = torch.ones(2)
    f(x), g(x)
    assert kinds(g) == ["plan"] and pycompiler.wait_for_compiles(60) and kinds(f) == ["plan"]
    with pytest.raises(TypeError, match="background"):
        pycompiler.compile(lambda x: x, background="yes")  # type: ignore[arg-type]


def test_the_call_that_captured_answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "GRACE_S", 3600.0)
    compiled, x = pycompiler.compile(lambda x: x.sin() + 1, background=True), torch.ones(3)
    for _ in range(3):
        assert torch.equal(compiled(x), x.sin() + 1)
    assert not pycompiler.wait_for_compiles(0) and not background.POOL.running and len(background.POOL.waiting) == 1
    assert pycompiler.wait_for_compiles(120)  # a waiting caller is served at once
    assert compiled.counters()["compiles"] == 1 and torch.equal(compiled(x), x.sin() + 1)


@pytest.mark.captures_nothing("the compiled function is gone before its compile in the background begins")
def test_the_switch_interval_is_put_back(gate: Gate) -> None:
    slow, go, _ = gate
    before = sys.getswitchinterval()
    pycompiler.compile(lambda x: x + 1, backend=slow, background=True)(torch.ones(2))
    assert sys.getswitchinterval() == pytest.approx(background.SWITCH_S)
    assert background.SWITCH_S < before
    go.set()
    assert pycompiler.wait_for_compiles(60)
    for t in threading.enumerate():
        if t.name == "pycompiler background":
            t.join(300)
    assert sys.getswitchinterval() == before


PROGRAM = """
import os, sys, threading, time
import torch, pycompiler
m = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))] * 20)
x = torch.randn(4, 16)
"""


def run(text: str, tmp_path: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYCOMPILER_CACHE_DIR": str(tmp_path), "PYCOMPILER_PROGRESS": "0"}
    return subprocess.run([sys.executable, "-c", PROGRAM + textwrap.dedent(text)], capture_output=True, text=True,
                          timeout=400, env=environment, check=False)  # fmt: skip


@pytest.mark.parametrize("seconds", [0, 0.3, 1])
def test_a_program_may_end_while_a_compile_runs(seconds: float, tmp_path: Any) -> None:
    done = run(f"c = pycompiler.compile(m, background=True); c(x); time.sleep({seconds}); print('end')", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_forked_process_goes_on(tmp_path: Any) -> None:
    done = run(
        """
        go = threading.Event()
        def slow(gm, inputs):
            go.wait(300)
            return gm.forward
        f = pycompiler.compile(lambda x: x + 1, backend=slow, background=True)
        f(x)
        time.sleep(0.1)  # the worker waits in the backend
        child = os.fork()
        go.set()
        ok = pycompiler.wait_for_compiles(60) and pycompiler.api.compiled_of(f).entries[0].kind == "plan"
        if child == 0:
            os._exit(0 if ok else 1)
        print(ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr


def test_a_forked_process_has_no_settings_of_compiles_that_others_run(tmp_path: Any) -> None:
    done = run(
        """
        import gc
        from pycompiler import config
        def settings():
            return gc.get_threshold(), sys.getswitchinterval(), sys.getrecursionlimit(), config.emulate_precision_casts
        inside, go = threading.Event(), threading.Event()
        def slow(gm, inputs, **options):
            inside.set()
            go.wait(300)
            return gm.forward
        pycompiler.backends.register_backend(slow, name="slow")
        before = settings()
        f = pycompiler.compile(lambda x: x + 1, backend="slow", background=True)
        compiled = pycompiler.wrapping.compiled_of(f)
        compiled._pycompiler_family.knobs = {"emulate_precision_casts": not config.emulate_precision_casts}
        f(x)
        assert inside.wait(300) and settings() != before
        child = os.fork()
        same = child != 0 or settings()[0] == before[0] and settings()[2:] == before[2:]
        go.set()
        done = pycompiler.wait_for_compiles(60) and compiled.entries[0].kind == "plan"
        for t in threading.enumerate():
            if t.name == "pycompiler background":
                t.join(300)
        ok = same and done and settings() == before
        if child == 0:
            os._exit(0 if ok else 1)
        print(ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr


def test_a_forked_process_compiles_what_another_thread_was_compiling(tmp_path: Any) -> None:
    done = run(
        """
        inside, go = threading.Event(), threading.Event()
        def slow(gm, inputs):
            inside.set()
            go.wait(300)
            return gm.forward
        f = pycompiler.compile(lambda x: x + 1, backend=slow)
        thread = threading.Thread(target=lambda: f(x))
        thread.start()
        inside.wait()
        child = os.fork()
        go.set()
        if child == 0:
            ok = torch.equal(f(x), x + 1) and pycompiler.counters(f)["compiles"] == 1
            os._exit(0 if ok else 1)
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, forks have no backward in eager, either")
def test_forks_of_a_process_that_has_compiled_have_backwards(tmp_path: Any) -> None:
    """Quirk of torch: under a fake mode it believes in a GPU; a first backward then disables all backwards in forks."""
    done = run(
        """
        w = torch.ones(3, requires_grad=True)
        f = pycompiler.compile(lambda w: (w * 2).sum(), backend="aot_eager")
        f(w).backward()
        child = os.fork()
        (w * 3).sum().backward()
        f(w).backward()
        pycompiler.compile(lambda w: w.exp().sum(), backend="aot_eager")(w).backward()
        ok = torch.allclose(w.grad, 7 + torch.ones(3).exp())
        if child == 0:
            os._exit(0 if ok else 1)
        print(ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, forks have no backward in eager, either")
def test_a_forked_process_compiles_the_backward_that_another_thread_was_compiling(tmp_path: Any) -> None:
    done = run(
        """
        inside, go = threading.Event(), threading.Event()
        from pycompiler.autograd import runtime
        boxed = runtime.boxed
        def slow(compiled):
            if threading.current_thread() is thread:
                inside.set()
                go.wait(300)
            return boxed(compiled)
        runtime.boxed = slow
        f = pycompiler.compile(lambda w: (w * 2).sum(), backend="aot_eager")
        w = torch.ones(3, requires_grad=True)
        loss, other = f(w), f(w)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        inside.wait()
        child = os.fork()
        go.set()
        if child == 0:
            import signal
            signal.alarm(300)
            other.backward()
            os._exit(0 if w.grad.tolist() == [2.0] * 3 else 1)
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
