"""Phases: which a compile has, how they nest, what they cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.ir import watch
from pycompiler.utils import compile_times


class Seen(watch.Observer):
    def __init__(self) -> None:
        self.stack: list[str] = []
        self.inside: dict[str, set[str]] = {}

    def begin(self, phase: str) -> None:
        self.inside.setdefault(phase, set()).update(self.stack[-1:])
        self.stack.append(phase)

    def end(self, phase: str, seconds: float) -> None:
        assert self.stack.pop() == phase
        assert seconds >= 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    made = Seen()
    monkeypatch.setattr(watch, "observers", [*watch.observers, made])
    monkeypatch.setattr(watch, "_times", {name: [] for name in watch.PHASES})
    return made


def test_every_phase_of_a_training_step_is_seen_where_it_is(seen: Seen) -> None:
    x = torch.ones(3, requires_grad=True)
    pycompiler.compile(lambda x: (x * 2).sin().sum())(x).backward()
    assert not seen.stack
    assert set(seen.inside) == set(watch.PHASES)
    assert seen.inside["compile"] == set()
    assert seen.inside["joint"] == seen.inside["partition"] == {"backend"}
    assert seen.inside["capture"] == seen.inside["backend"] == {"compile"}
    assert seen.inside["lowering"] == seen.inside["build"] == {"backend", "backward"}
    headers, cells = compile_times("csv")
    seconds = {name: [float(s) for s in cell.split(", ")] for name, cell in zip(headers, cells, strict=True)}
    assert [name for name in watch.PHASES if name in seconds] == headers
    assert len(seconds["lowering"]) == 2  # forward and backward
    assert sum(seconds["capture"] + seconds["backend"]) <= seconds["compile"][0] + 1e-5
    shown = compile_times("str", aggregate=True)
    assert isinstance(shown, str)
    assert shown.splitlines()[0] == "Compile times (seconds):"
    assert [line.split()[0] for line in shown.splitlines()[1:]] == headers


def test_a_phase_that_fails_is_over(seen: Seen) -> None:
    with pytest.raises(ZeroDivisionError), watch.phase("capture"), watch.phase("guards"):
        raise ZeroDivisionError
    assert not seen.stack
    assert set(compile_times("csv")[0]) == {"capture", "guards"}


def test_artefacts_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str, str]] = []

    class Looks(watch.Observer):
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
            assert name in watch.ARTEFACTS
            assert value is not None
            seen.append((*self.where, name))

    monkeypatch.setattr(watch, "observers", [*watch.observers, Looks()])
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
