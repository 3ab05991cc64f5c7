"""The training fuzzer by fixed seeds; it detects planted faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from fuzz.training import generate, reduced
from fuzz.training_check import BEHIND, EAGER_ALONE, OURS_ALONE, UNSTEADY, difference, reason_of, too_many
from fuzz.training_programs import Scale
from pycompiler.autograd.decomp.activations import sigmoid_backward
from pycompiler.autograd.decompositions import default_decompositions

aten = torch.ops.aten
PROGRAMS, EACH = 100, 50


@pytest.mark.parametrize("first", range(0, PROGRAMS, EACH))
def test_random_programs_do_as_eager_does(first: int) -> None:
    reasons: Counter[str] = Counter()
    for seed in range(first, first + EACH):
        text, ended_by = generate(seed).source(), set[str]()
        assert (found := difference(text, ended_by=ended_by)) is None, f"seed {seed}: {found}\n{text}"
        reasons.update(ended_by)
    assert not too_many(reasons, EACH), reasons


def test_reasons_are_whole_errors() -> None:
    """Only a whole error message of the exact class ends a comparison: no part of a message, no similar class name."""
    text = "Can't detach views in-place. Use detach() instead. If you are"
    assert reason_of(("error", ("RuntimeError", text)), EAGER_ALONE) == "eager alone detaches no view"
    assert reason_of(("error", ("RuntimeError", f"wrong: {text}")), EAGER_ALONE) is None
    assert reason_of(("error", ("ValueError", text)), EAGER_ALONE) is None
    ours = "double backward through the compiled graph 'g': the graph writes x"
    assert reason_of(("error", ("DoubleBackwardError", ours)), OURS_ALONE) is not None
    assert reason_of(("error", ("RuntimeError", f"DoubleBackwardError {ours}")), OURS_ALONE) is None
    assert reason_of(("gradients", None), EAGER_ALONE) is None


def test_many_that_end_early_fail() -> None:
    assert too_many(Counter({UNSTEADY: 1}), 100) == []
    assert too_many(Counter({UNSTEADY: 5}), 1000) == []
    (line,) = too_many(Counter({UNSTEADY: 6, BEHIND: 2}), 1000)
    assert line == "6 of 1000 programs ended early, at most 0.5% may: eager moves as well"


@pytest.mark.parametrize("first", range(1000, 1030, 10))
def test_kernels_do_as_eager_does(first: int) -> None:
    for seed in range(first, first + 10):
        text = generate(seed).source()
        assert (found := difference(text, "native")) is None, f"seed {seed}: {found}\n{text}"


class Once(torch.autograd.Function):
    """A Function whose gradients have no history."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.detach()


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a gradient is dropped": torch.detach,
    "a gradient is wrong": lambda t: Scale.apply(t, 1.0001),
    "a gradient has no history": Once.apply,
    "a write goes unseen": torch.clone,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_and_cut_down(fault: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrongly(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return lambda *args: tuple(fault(t) if t.requires_grad and not t.is_leaf else t for t in fn(*args))

    monkeypatch.setattr(pycompiler, "compile", wrongly)
    program = next(p for p in map(generate, range(200)) if difference(p.source()) is not None)
    small = reduced(program, lambda text: difference(text) is not None)
    assert difference(small.source()) is not None
    assert len(small.lines) + len(small.steps) <= 5, small.source()


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sigmoid_backward(grad, y) * 1.01

    monkeypatch.setitem(default_decompositions()._known, aten.sigmoid_backward.default, wrong)
    texts = [text for seed in range(100) if ".sigmoid()" in (text := generate(seed).source())]
    assert any("gradients" in (difference(text, "native") or "") for text in texts)


def test_programs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that runs eagerly would agree with eager: programs must be compiled."""
    made: list[Any] = []
    compile_ = pycompiler.compile

    def noted(fn: Callable[..., Any], **options: Any) -> Any:
        made.append(compile_(fn, **options))
        return made[-1]

    monkeypatch.setattr(pycompiler, "compile", noted)
    for seed in range(40):
        difference(generate(seed).source())
    counted = [pycompiler.counters(compiled) for compiled in made]
    assert sum(c["compiles"] > 0 and not c["eager_calls"] for c in counted) >= 0.8 * len(counted) > 0


def test_a_seed_is_one_program() -> None:
    assert generate(11).source() == generate(11).source()
