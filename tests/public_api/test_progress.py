"""The progress line on a terminal: its time, its content, and its complete removal."""

from __future__ import annotations

import gc
import io
import os
import pty
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import progress
from pycompiler.ir import phases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A pseudo-terminal: `stream` for the program, `read` for the output since the last read."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.stream = os.fdopen(self.theirs, "w")

    def read(self) -> str:
        os.write(self.theirs, b"\0")  # a read returns all bytes so far: this byte marks the end
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(self.ours, 10_000)
        return text[:-1].decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.ours)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made.stream))  # pytest replaces the real one
    monkeypatch.setenv("TERM", "xterm")
    yield made
    monkeypatch.undo()
    made.close()


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> progress.Display:
    made = progress.Display(Clock(), threaded=False)
    monkeypatch.setattr(progress, "DISPLAY", made)
    return made


def slow_backend(display: Any, terminal: Terminal, seconds: float, seen: list[str]) -> Any:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        display.clock.now += seconds
        display.tick()
        seen.append(terminal.read())
        return gm.forward

    return backend


def test_slow_compile(terminal: Terminal, display: Any) -> None:
    seen: list[str] = []

    def slow_function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    pycompiler.compile(slow_function, backend=slow_backend(display, terminal, 1.5, seen))(torch.ones(2))
    line = slow_function.__code__.co_firstlineno
    text = f"compiling, 1.5 s, backend: {slow_function.__qualname__} (test_progress.py:{line})"
    assert seen == [f"{progress.CLEAR}{text[:79]}\r"]
    assert terminal.read() == f"{progress.CLEAR}\r"
    assert display.running == []


@pytest.mark.parametrize("why", ["quick", "no terminal", "knob", "dumb"])
def test_nothing_is_written(why: str, terminal: Terminal, display: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    other = io.StringIO()
    if why == "no terminal":
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=other))
    if why == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    with pycompiler.config.patch(progress=why != "knob"):
        backend = slow_backend(display, terminal, 0.5 if why == "quick" else 5.0, seen)
        pycompiler.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert (seen, terminal.read(), other.getvalue()) == ([""], "", "")


def test_the_backward_is_named_after_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append((progress.current_name(), gc.get_threshold()[2] > 10**6))
        return gm.forward

    monkeypatch.setattr(pycompiler.pipeline.own_backends, "compile_aten", compiler)
    x = torch.ones(2, requires_grad=True)
    pycompiler.compile(torch.nn.Tanh())(x).sum().backward()
    forward, backward = (name.split(" (")[0] for name, _ in seen)
    assert backward == f"backward of {forward}"
    assert all(resting for _, resting in seen)
    assert progress.current_name() == ""


def test_phases_and_kernels(terminal: Terminal, display: Any) -> None:
    with progress.compiling("f"):
        display.clock.now = 2.0
        with phases.phase("scheduling"):
            display.tick()
            progress.note_kernels(1)
            with phases.phase("build"):
                display.tick()
            progress.note_kernels(2)
        display.tick()
    shown = [line for line in terminal.read().replace(progress.CLEAR, "").split("\r") if line]
    assert shown == [f"compiling, 2.0 s, {what}: f" for what in
                     ("scheduling", "build, 1 kernel", "capture, 3 kernels")]  # fmt: skip


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_cleared_after_an_exception(error: type[BaseException], terminal: Terminal, display: Any) -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        display.clock.now += 2
        display.tick()
        raise error

    with pytest.raises(error):
        pycompiler.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert [line[:9] for line in terminal.read().split(progress.CLEAR)] == ["", "compiling", "\r"]
    assert display.running == []


def test_one_line_for_many_threads(terminal: Terminal, display: Any) -> None:
    started, go = threading.Barrier(4), threading.Event()

    def compile(number: int) -> None:
        with progress.compiling(f"f{number}"):
            started.wait(300)
            go.wait(300)

    threads = [threading.Thread(target=compile, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    started.wait(300)
    display.clock.now = 3.0
    display.tick()
    line = terminal.read()
    assert line == f"{progress.CLEAR}compiling 3 functions, 3.0 s, capture: {line[-3:-1]}\r"
    go.set()
    for t in threads:
        t.join(300)
    assert terminal.read() == f"{progress.CLEAR}\r"


def test_the_thread_ends_with_the_last_compile(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    display = progress.Display()
    monkeypatch.setattr(progress, "DISPLAY", display)
    with progress.compiling("f"):
        thread = display.thread
        assert thread is not None
        assert thread.is_alive()
    thread.join(300)
    assert display.thread is None
    assert not thread.is_alive()


def test_a_closed_stream_does_not_disturb(terminal: Terminal, display: Any) -> None:
    with progress.compiling("f"):
        terminal.stream.close()
        display.clock.now = 2.0
        display.tick()
    assert display.stream is None


def test_old_garbage_waits_for_the_compile() -> None:
    before, seen = gc.get_threshold(), []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append(gc.get_threshold())
        return gm.forward

    pycompiler.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert seen[0][:2] == before[:2]
    assert seen[0][2] > 10**6
    assert gc.get_threshold() == before
