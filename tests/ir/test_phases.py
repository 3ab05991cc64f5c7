"""Phases of a compile: their names, their nesting and their recorded seconds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.ir import phases
from pycompiler.utils import compile_times


class Seen(phases.Observer):
    def __init__(self) -> None:
        self.stack: list[str] = []
        self.inside: dict[str, set[str]] = {}
        self.ended: list[tuple[str, str, float]] = []

    def begin(self, phase: str) -> None:
        self.inside.setdefault(phase, set()).update(self.stack[-1:])
        self.stack.append(phase)

    def end(self, phase: str, seconds: float) -> None:
        self.ended.append((self.stack.pop(), phase, seconds))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    made = Seen()
    monkeypatch.setattr(phases, "observers", [*phases.observers, made])
    monkeypatch.setattr(phases, "_times", {name: [] for name in phases.PHASES})
    yield made
    assert made.ended and all(began == ended and seconds >= 0 for began, ended, seconds in made.ended)


def test_every_phase_of_a_training_step_is_seen_where_it_is(seen: Seen) -> None:
    x = torch.ones(3, requires_grad=True)
    pycompiler.compile(lambda x: (x * 2).sin().sum())(x).backward()
    assert not seen.stack
    assert set(seen.inside) == set(phases.PHASES)
    assert seen.inside["compile"] == set()
    assert seen.inside["joint"] == seen.inside["partition"] == {"backend"}
    assert seen.inside["capture"] == seen.inside["backend"] == {"compile"}
    assert seen.inside["lowering"] == seen.inside["build"] == {"backend", "backward"}
    headers, cells = compile_times("csv")
    seconds = {name: [float(s) for s in cell.split(", ")] for name, cell in zip(headers, cells, strict=True)}
    assert [name for name in phases.PHASES if name in seconds] == headers
    assert len(seconds["lowering"]) == 2  # forward graph and backward graph
    assert sum(seconds["capture"] + seconds["backend"]) <= seconds["compile"][0] + 1e-5
    shown = compile_times("str", aggregate=True)
    assert isinstance(shown, str)
    assert shown.splitlines()[0] == "Compile times (seconds):"
    assert [line.split()[0] for line in shown.splitlines()[1:]] == headers


def test_a_phase_that_fails_is_over(seen: Seen) -> None:
    with pytest.raises(ZeroDivisionError), phases.phase("capture"), phases.phase("guards"):
        raise ZeroDivisionError
    assert not seen.stack
    assert set(compile_times("csv")[0]) == {"capture", "guards"}


def test_artefacts_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str, str]] = []

    class Looks(phases.Observer):
        where = (-1, "")

        @contextlib.contextmanager
        def model(self, number: int) -> Iterator[None]:
            before, self.where = self.where, (number, "")
            yield
            self.where = before

        @contextlib.contextmanager
        def graph(self, kind: str) -> Iterator[None]:
            before, self.where = self.where, (self.where[0], kind)
            yield
            self.where = before

        def artefact(self, name: str, value: Any) -> None:
            seen.append((*self.where, name if value is not None else "nothing"))

    monkeypatch.setattr(phases, "observers", [*phases.observers, Looks()])
    compiled = pycompiler.compile(lambda x: (x * 2).sin().sum())
    loss = compiled(torch.ones(3, requires_grad=True))
    compiled(torch.ones(3))
    loss.backward()
    made = ["fx_graph", "program", "schedule", "plan"]
    (first, *_), (second, *_) = seen[0], seen[6]
    assert seen == [
        (first, "", "joint"), *((first, "forward", name) for name in made), (-1, "", "frame"),
        (second, "", "joint"), *((second, "inference", name) for name in made), (-1, "", "frame"),
        *((first, "backward", name) for name in made),
    ]  # fmt: skip
    assert first != second
    assert {name for *_, name in seen} <= phases.ARTEFACTS.keys()


class Raises(phases.Observer):
    """An observer whose methods and context managers raise: at creation, at entry or at exit."""

    wanted = phases.COSTLY

    def __init__(self, when: str) -> None:
        self.when, self.told = when, 0

    def fail(self, *told: object) -> Any:
        self.told += 1
        raise KeyError(f"oh {self.when}")

    begin = end = artefact = fail

    def model(self, number: int) -> contextlib.AbstractContextManager[Any]:
        return self.fail() if self.when == "made" else self.around()

    def graph(self, kind: str) -> contextlib.AbstractContextManager[Any]:
        return self.model(0)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        if self.when == "entered":
            self.fail()
        try:
            yield
        finally:
            self.fail()


@pytest.mark.parametrize("when", ["made", "entered", "left"])
def test_an_observer_that_raises_changes_nothing(
    when: str, seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Raises(when)
    monkeypatch.setattr(phases, "observers", [observer, *phases.observers, observer])
    monkeypatch.setattr(phases, "_failed", set())
    monkeypatch.setattr(logging.getLogger("pycompiler"), "propagate", True)
    compiled = pycompiler.compile(lambda x, n: (x * n).sin().sum())
    x = torch.ones(3, requires_grad=True)
    for n in (2, 3):
        compiled(x, n).backward()
    assert compiled.counters()["compiles"] == 2
    torch.testing.assert_close(x.grad, 2 * torch.cos(torch.full((3,), 2.0)) + 3 * torch.cos(torch.full((3,), 3.0)))
    assert observer.told > 50
    assert not seen.stack
    assert [r.getMessage().endswith(f"Raises raised KeyError: 'oh {when}'") for r in caplog.records] == [True]


def test_an_observer_keeps_no_exception_from_the_program(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    class Swallows(phases.Observer):
        def model(self, number: int) -> contextlib.AbstractContextManager[Any]:
            return contextlib.suppress(BaseException)

    monkeypatch.setattr(phases, "observers", [*phases.observers, Swallows(), Raises("left")])
    with pytest.raises(ZeroDivisionError), phases.phase("capture"), phases.model(0), phases.graph("forward"):
        raise ZeroDivisionError


def test_an_interrupt_in_an_observer_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(phases.Observer):
        def begin(self, phase: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(phases, "observers", [Interrupted()])
    with pytest.raises(KeyboardInterrupt), phases.phase("capture"):
        pass
