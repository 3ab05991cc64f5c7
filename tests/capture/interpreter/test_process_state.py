"""Process state during a compile: signal handlers, trace functions, the random generator."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import pipeline
from pycompiler.capture.interpreter import frame


def slow(x):
    for _ in range(400):
        x = x + 1
    return x


class Stopped(Exception):
    pass


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_an_exception_of_a_signal_handler_leaves_the_compile(backend):
    def handler(number, frame):
        raise Stopped("by a signal")

    def program(x):
        return slow(x)

    def calls_the_signal(gm, inputs):
        signal.raise_signal(signal.SIGALRM)
        return gm.forward

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Stopped, match="by a signal") as caught:
            pycompiler.compile(program, backend=calls_the_signal)(torch.ones(2))
        assert caught.value.__context__ is None
        compiled = pycompiler.compile(program, backend=backend)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Stopped):
            while True:
                compiled(torch.ones(2))
                pycompiler.reset()
        assert signal.getsignal(signal.SIGALRM) is handler
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 401.0))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("setter", [sys.settrace, sys.setprofile])
def test_trace_functions_are_not_compiled_and_see_no_compiler(setter, monkeypatch):
    seen, made = [], []
    genuine = pipeline.Family.compiled
    monkeypatch.setattr(
        pipeline.Family, "compiled", lambda self, f, **k: made.append(f.__name__) or genuine(self, f, **k)
    )

    def helper(name):
        seen.append(name)

    def trace(frame, event, arg):
        helper((frame.f_code.co_filename, frame.f_code.co_name, event))
        return trace

    def callee(x):
        pycompiler.graph_break()
        return x * 2

    def program(x):
        y = x + 1
        pycompiler.graph_break()
        return callee(y).sin()

    compiled = pycompiler.compile(program, backend="eager")
    before = sys.gettrace(), sys.getprofile()
    gc.collect()
    gc.disable()  # finalizers would call functions of other tests
    setter(trace)
    try:
        result = compiled(torch.zeros(1))
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        gc.enable()
    assert torch.equal(result, program(torch.zeros(1)))
    assert not [name for file, name, _ in seen if "/pycompiler/capture/" in file and "rebuild" not in file]
    assert len(seen) < 5000  # entry and exit of five compiles; the smallest capture alone makes 7,600
    assert not {"trace", "helper"} & set(made)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_compile_neither_draws_random_numbers_nor_rewinds_the_generator(backend, monkeypatch):
    def program(x):
        y = torch.dropout(x * torch.rand(()), 0.5, True)
        return y + torch.empty(3).normal_(), torch.randperm(4)

    torch.manual_seed(0)
    program(torch.ones(3))
    wanted = torch.get_rng_state()
    torch.manual_seed(0)
    state = random.getstate()
    pycompiler.compile(program, backend=backend)(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), wanted)
    assert random.getstate() == state

    drawn = []

    def meanwhile(*args):
        if not drawn:
            thread = threading.Thread(target=lambda: drawn.append(torch.rand(()).item()))
            thread.start()
            thread.join()
        return capture_frame(*args)

    capture_frame = frame._CaptureAttempts.run
    monkeypatch.setattr(frame._CaptureAttempts, "run", meanwhile)
    pycompiler.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    assert len(drawn) == 1
    assert torch.rand(()).item() != drawn[0]


def test_setters_of_what_is_so_already_are_captured() -> None:
    def same(x: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(False, warn_only=False)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(torch.get_num_threads())
        torch.set_float32_matmul_precision("highest")
        return x + 1

    def once(x: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        return x + 1

    x = torch.ones(2)
    assert pycompiler.explain(same)(x).graph_break_count == 0
    compiled = pycompiler.compile(once, backend="eager")
    try:
        compiled(x)
        assert torch.are_deterministic_algorithms_enabled()
        assert pycompiler.explain(once)(x).graph_break_count == 0
        torch.use_deterministic_algorithms(True, warn_only=True)
        compiled(x)
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def within(x: torch.Tensor) -> Any:
    before = torch.ones(2) + x
    torch.set_default_dtype(torch.float64)
    made = torch.ones(3), torch.tensor([1.5]), torch.arange(2) / 2, torch.get_default_dtype(), x * 2
    torch.set_default_dtype(torch.float32)
    return before, made, torch.ones(3)


def left(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(2)


def without_a_graph(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    return torch.get_default_dtype()


def around_a_break(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(2) + x
    pycompiler.graph_break()
    z = torch.zeros(2)
    torch.set_default_dtype(torch.float32)
    return y, z, torch.zeros(2)


def then_raises(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    y = torch.zeros(2) + x
    raise ValueError(str(y.dtype))


def then_an_error_of_data(x: torch.Tensor) -> Any:
    y = torch.zeros(2)
    torch.set_default_dtype(torch.float64)
    return torch.embedding(torch.ones(2, 2), (x * 7).long()), y


def within_a_handler(x: torch.Tensor) -> Any:
    y = torch.zeros(2)
    torch.set_default_dtype(torch.float64)
    try:
        return torch.embedding(torch.ones(2, 2), (x * 7).long()), y
    except IndexError:
        return torch.zeros(1), y
    finally:
        torch.set_default_dtype(torch.float32)


def then_expected(x: torch.Tensor) -> Any:
    y = torch.zeros(2)
    torch.set_default_dtype(torch.float64)
    if (x > 0).all():
        raise ValueError("above")
    return y, torch.zeros(2)


def refused_dtype(x: torch.Tensor) -> Any:
    try:
        torch.set_default_dtype(torch.int64)
    except TypeError as e:
        return x + 1, len(str(e)), torch.zeros(1)


def with_gradients(x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    torch.set_default_dtype(torch.float64)
    y = (x * torch.ones(2)).sum()
    torch.set_default_dtype(torch.float32)
    return y.detach(), *torch.autograd.grad(y, x)


def dtypes_after(fn: Any, x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float32)
    try:
        try:
            found = fn(x)
        except Exception as e:
            found = type(e), str(e)
        return (
            str(found),
            str(torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.dtype, found)),
            torch.get_default_dtype(),
        )
    finally:
        torch.set_default_dtype(torch.float32)


DTYPES = (within, left, without_a_graph, around_a_break, then_raises, then_an_error_of_data, within_a_handler, then_expected, refused_dtype, with_gradients)  # fmt: skip


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", DTYPES)
def test_a_default_dtype_that_is_set_inside(fn: Any, backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=fn in (within, left, refused_dtype, with_gradients))
    for _ in range(2):
        assert dtypes_after(compiled, torch.ones(2)) == dtypes_after(fn, torch.ones(2))


def test_a_default_dtype_that_another_thread_sets_during_a_capture_stays(monkeypatch: Any) -> None:
    run = frame._CaptureAttempts.run

    def meanwhile(*args: Any) -> Any:
        captured = run(*args)
        thread = threading.Thread(target=torch.set_default_dtype, args=(torch.float64,))
        thread.start()
        thread.join()
        return captured

    monkeypatch.setattr(frame._CaptureAttempts, "run", meanwhile)
    try:
        pycompiler.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
