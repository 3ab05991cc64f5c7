"""Twelve programs with a known cause: the cause is the first card, and the advice works when it is followed.

Each program has its line marked `# the cause`; `advised` is the same program with the advice followed.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import config
from pycompiler.debug import advice
from pycompiler.debug.causes import summary
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder

X = torch.ones(4)


def document_of(run: Callable[[Callable[..., Any]], None]) -> Document:
    """The document of `run(compile)`, where `compile` compiles with the eager backend."""
    events: list[Any] = []
    with Recorder(events.append, costs=True):
        run(functools.partial(pycompiler.compile, backend="eager"))
    pycompiler.reset()
    return Document.of(events)


def called(fn: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> Callable[..., None]:
    """Calls `fn`, compiled, with each of the arguments."""

    def run(compile: Callable[..., Any]) -> None:
        compiled = compile(fn, **options)
        for arguments in calls:
            compiled(*arguments)

    return run


def printing(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print("half way")  # the cause
    return y + 1


def printed_later(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + 1


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:  # the cause
        y = y + 1
    return y * 3


def choosing(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y = torch.where(y.sum() > 0, y + 1, y)
    return y * 3


def reading_item(x: torch.Tensor) -> torch.Tensor:
    n = (x * 2).sum().item()  # the cause
    return x * n


def keeping_tensor(x: torch.Tensor) -> torch.Tensor:
    n = (x * 2).sum()
    return x * n


def calling_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    scale = np.interp(0.5, [0.0, 1.0], np.genfromtxt(["1", "3"]))  # the cause
    return y * float(scale)


SCALE = float(np.interp(0.5, [0.0, 1.0], np.genfromtxt(["1", "3"])))


def without_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y * SCALE


def of_sizes(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1  # the cause


def of_numbers(x: torch.Tensor, n: Any) -> torch.Tensor:
    return x * n  # the cause


class Hooked(nn.Module):
    def __init__(self, prints: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_forward_hook(self.noisy if prints else self.silent)

    def noisy(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        print("largest", out.max())  # the cause

    def silent(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        self.largest = out.max()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


@functools.lru_cache
def total(sizes: Any) -> int:
    return sum(sizes)


def unhashable(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    try:
        n = total(sizes)  # the cause
    except TypeError:
        n = 1
    return x * n


def hashed_outside(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


def in_threads(x: torch.Tensor) -> torch.Tensor:  # the cause
    return x * 2


def threads(grads: tuple[bool, ...]) -> Callable[..., None]:
    def run(compile: Callable[..., Any]) -> None:
        compiled = compile(in_threads)

        def call(grad: bool) -> None:
            with torch.set_grad_enabled(grad):
                compiled(X)

        for grad in grads:
            thread = threading.Thread(target=call, args=(grad,))
            thread.start()
            thread.join()

    return run


@torch.library.custom_op("test_causes::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("test_causes::faked", mutates_args=())
def faked(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@faked.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def without_fake(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = plain(y)  # the cause
    return z * 3


def with_fake(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = faked(y)
    return z * 3


KNOWN: dict[str, torch.Tensor] = {}
FIXED = {str(k): torch.zeros(()) for k in range(5)}


def growing(x: torch.Tensor, key: str) -> torch.Tensor:
    KNOWN[key] = x.sum()
    return torch.stack(list(KNOWN.values())).mean()  # the cause


def keeping_keys(x: torch.Tensor) -> torch.Tensor:
    FIXED["0"] = x.sum()
    return torch.stack(list(FIXED.values())).mean()


def optimized(compile: Callable[..., Any]) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()  # the cause
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = compile(step)
    for _ in range(4):
        compiled(X)


def hooked(prints: bool) -> Callable[..., None]:
    def run(compile: Callable[..., Any]) -> None:
        compiled = compile(Hooked(prints))
        for _ in range(3):
            compiled(X)

    return run


SIZES = [(torch.ones(n),) for n in (4, 5, 6, 7)]
# name -> the program, a part of its first card, a part of the advice, the program that follows the advice
PROGRAMS: dict[str, tuple[Callable[..., None], str, str, Callable[..., None]]] = {
    "print": (
        called(printing, *[(X,)] * 4), "graph break [builtin-call]", "Remove `print(", called(printed_later, *[(X,)] * 4)
    ),
    "branch": (
        called(branching, *[(X,)] * 4), "graph break [data-dependent-jump]", "choose with torch.where",
        called(choosing, *[(X,)] * 4),
    ),
    "item": (
        called(reading_item, *[(X * k,) for k in range(4)]), "graph break [data-dependent-value]", "Keep the value as a tensor",
        called(keeping_tensor, *[(X * k,) for k in range(4)]),
    ),
    "numpy call": (
        called(calling_numpy, *[(X,)] * 4), "graph break [", "out of the compiled function", called(without_numpy, *[(X,)] * 4)
    ),
    "changing size": (
        called(of_sizes, *SIZES, dynamic=False), "was compiled again 3 times", "without dynamic=False", called(of_sizes, *SIZES)
    ),
    "changing int": (
        called(of_numbers, *[(X, n) for n in range(3, 7)], dynamic=False), "was compiled again 3 times", "Pass `n` as a tensor",
        called(of_numbers, *[(X, torch.tensor(n)) for n in range(3, 7)], dynamic=False),
    ),
    "optimizer warm-up": (optimized, "was compiled again", "this is warm-up (it was None in the first call)", optimized),
    "hook": (hooked(True), "graph break [builtin-call]", "Remove `print(", hooked(False)),
    "unhashable": (
        called(unhashable, *[(X, [1, 2])] * 3), "graph break [builtin-call]", "before the compiled function",
        called(hashed_outside, *[(X, 1)] * 3),
    ),
    "thread switching": (
        threads((True, False) * 2), "grad mode False, expected True", "the same grad mode", threads((True,) * 4)
    ),
    "custom operator": (
        called(without_fake, *[(X,)] * 3), "graph break [operator-failed]", "Register a fake kernel (register_fake)",
        called(with_fake, *[(X,)] * 3),
    ),
    "growing container": (
        called(growing, *[(X, str(k)) for k in range(4)]), "was compiled again 3 times", "Keep the keys of `KNOWN`",
        called(keeping_keys, *[(X,)] * 4),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _plain_state() -> Any:
    KNOWN.clear()
    with config.patch(recompile_limit=8):
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_is_the_first_card_and_its_advice_works(name: str) -> None:
    run, what, do, advised = PROGRAMS[name]
    document = document_of(run)
    first = document.data["causes"][0]
    assert what in first["what"], first
    assert do in first["do"], first
    assert document.line(first["where"]).endswith("# the cause"), first
    assert document.data["advice"][0]["what"] == first["what"]
    after = document if advised is run else document_of(advised)  # nothing to do
    assert [cause["what"] for cause in after.data["causes"] if not cause["warm_up"]] == []


def test_a_statement_with_several_breaks_is_one_cause() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        print("loss", x.sum().item())
        return x + 1

    (cause,) = document_of(called(step, *[(X,)] * 3)).data["causes"]
    assert re.match(
        r"line \d+: graph break \[data-dependent-value\].*, for a print; 1 further graph break follows", cause["what"]
    )
    assert cause["do"].startswith("Remove `print(")
    assert cause["follows"][0]["what"].startswith("graph break [builtin-call]")


def test_breaks_of_a_hook_follow_from_its_print() -> None:
    (cause,) = document_of(hooked(True)).data["causes"]
    kinds = {row["what"].partition("]")[0] for row in cause["follows"]}
    assert kinds == {"graph break [builtin-call", "graph break [running-iterator"}


def test_a_recompile_for_the_value_of_a_broken_statement_follows_from_the_break() -> None:
    (cause,) = document_of(PROGRAMS["item"][0]).data["causes"]
    assert [row["kind"] for row in cause["follows"]] == ["recompile"]
    assert "1 recompile follows from it" in cause["what"]


def test_the_limit_follows_from_the_recompiles() -> None:
    with config.patch(recompile_limit=2), pytest.warns(pycompiler.errors.RecompileLimitWarning):
        document = document_of(called(growing, *[(X, str(k)) for k in range(5)]))
    (cause,) = document.data["causes"]
    assert [row["what"] for row in cause["follows"]] == ["growing runs eagerly: its recompile limit is reached"]
    assert "1 function at the recompile limit" in summary(document)


@pytest.mark.captures_nothing("the frame is skipped")
def test_a_frame_that_runs_eagerly_is_a_cause() -> None:
    import sys

    def reads_frame(x: torch.Tensor) -> Any:
        return x + 1, sys._getframe().f_lineno

    (cause,) = document_of(called(reads_frame, *[(X,)] * 2)).data["causes"]
    assert cause["kind"] == "eager" and "reads_frame runs eagerly: " in cause["what"]
    assert cause["do"].startswith("Remove the cause named above")


def test_costs_are_parts_of_a_step() -> None:
    document = document_of(called(branching, *[(X,)] * 12))
    steps = document.main_steps
    assert steps is not None and steps["function"] == "branching" and steps["steps"] >= 9
    (cause,) = document.data["causes"]
    assert cause["cost"]["eager"] > 0 and cause["cost"]["guards"] > 0
    assert sum(cause["cost"][part] for part in ("eager", "guards", "dispatch")) < steps["step"]
    assert " a step" in document.data["advice"][0]["cost"]
    assert summary(document).startswith("1 break costs about ") and summary(document).endswith(" a step")


def test_a_single_call_has_no_costs() -> None:
    report = pycompiler.explain(branching)(X)
    (cause,) = report.document.data["causes"]
    assert cause["cost"] is None and report.document.main_steps is None


def test_a_recompile_prints_no_numbers_of_tensors() -> None:
    def step(x: torch.Tensor, state: dict[Any, int]) -> torch.Tensor:
        return x + len(list(state))

    weight = nn.Parameter(torch.full((2, 3), 1.2345))
    states = [{}, {weight: 1}, {weight: 1, "other": 2}]
    document = document_of(called(step, *[(X, s) for s in states]))
    text = str(document)
    assert "1.2345" not in text and "Parameter containing" not in text
    assert "Parameter[2, 3]" in text


def test_names_are_the_programs() -> None:
    assert advice.in_words("vars(G['opt'])['state']") == "opt.state"
    assert advice.in_words("list(vars(G['opt'])['state'].values())[0]['step']") == "opt.state[0]['step']"
    assert advice.in_words("L['x']") == "x"
    assert advice.in_words("L['__stack0']") == "the value of the broken statement"


def test_every_aspect_has_advice() -> None:
    from pycompiler.ir.guard_differences import ASPECTS

    assert advice.BY_ASPECT.keys() == ASPECTS
