"""Twelve programs with a known cause (`cause_programs.py`): the cause is the first card, and its advice works.

`bench/cause_costs.py` compares the costs of the same programs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import config
from pycompiler.debug import advice
from pycompiler.debug.causes import summary
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from tests.debug.cause_programs import CHANGES, KNOWN, PROGRAMS, Make, branching, growing, hooked

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


def steps_of(make: Make) -> Callable[..., None]:
    """Runs a few steps on four elements."""

    def run(compile: Callable[..., Any]) -> None:
        step = make(compile, 4)
        for k in range(CHANGES):
            step(k)

    return run


@pytest.fixture(autouse=True)
def _plain_state() -> Any:
    KNOWN.clear()
    with config.patch(recompile_limit=8):
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_is_the_first_card_and_its_advice_works(name: str) -> None:
    program = PROGRAMS[name]
    document = document_of(steps_of(program.caused))
    first = document.data["causes"][0]
    assert program.what in first["what"], first
    assert program.do in first["do"], first
    assert document.line(first["where"]).endswith("# the cause"), first
    assert document.data["advice"][0]["what"] == first["what"]
    after = document_of(steps_of(program.advised))
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
    (cause,) = document_of(steps_of(hooked(True))).data["causes"]
    kinds = {row["what"].partition("]")[0] for row in cause["follows"]}
    assert kinds == {"graph break [builtin-call", "graph break [running-iterator"}


def test_a_recompile_for_the_value_of_a_broken_statement_follows_from_the_break() -> None:
    (cause,) = document_of(steps_of(PROGRAMS["item"].caused)).data["causes"]
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


# the accounting, with given times ------------------------------------------------------------------------------------
FILE = "/program/train.py"
STATEMENT = {"print": "print('loss')", "branch": "if y.sum() > 0:", "operator": "z = plain(y)"}


def frame(number: int, line: int | None = None, *, models: tuple[int, ...] = (), broke: dict[str, Any] | None = None,
          seconds: float = 0.0) -> dict[str, Any]:  # fmt: skip
    """The event of a frame of `step`; line: where it resumes."""
    function = f"resume_in_step_at_{line}" if line else "step"
    source = [(3, STATEMENT["print"]), (4, STATEMENT["branch"]), (5, STATEMENT["operator"])]
    return {"event": "frame", "number": number, "models": list(models), "function": function, "file": FILE, "line": 1,
            "parameters": [], "source": source, "hooked": False, "inlined": [], "seconds": seconds, "operators": 1,
            "graph": None, "guards": [], "break": broke, "id": f"[0/{number}]", "title": "step"}  # fmt: skip


def broken(kind: str, reason: str, line: int) -> dict[str, Any]:
    stack = [{"file": FILE, "line": line, "function": "step", "text": ""}]
    return {"kind": kind, "reason": reason, "hint": "no hint", "stack": stack}


def graph_events(number: int, *nanoseconds: float) -> list[dict[str, Any]]:
    """A graph of model `number`, of one kernel for each time."""
    steps = [{"name": f"kernel {k}", "kind": "kernel", "operators": [], "reads": 0, "writes": 0, "work": 0}
             for k in range(len(nanoseconds))]  # fmt: skip
    return [
        {"event": "graph", "number": number, "model": number, "kind": "inference", "steps": steps, "nodes": [],
         "memory": {}, "unfused": [], "code": "", "phases": {}},
        {"event": "calls", "graph": number, "calls": 10, "least": list(nanoseconds), "total": [], "rest": 0.0},
    ]  # fmt: skip


def steps_event(**parts: Any) -> dict[str, Any]:
    """Ten steps of frame 0; parts: nanoseconds of one step."""
    found = {part: {k: 10 * ns for k, ns in parts.get(part, {}).items()}
             for part in ("before", "guards", "graph", "dispatch", "operators", "functions")}  # fmt: skip
    return {
        "event": "steps",
        "root": 0,
        "function": "step",
        "calls": 20,
        "steps": 10,
        "outside": 1e4,
        "last": [],
        **found,
    }


def cost_of(*events: dict[str, Any]) -> dict[str, float]:
    (cause,) = Document.of([{"event": "start"}, *events]).data["causes"]
    found: dict[str, float] = cause["cost"]
    assert cause["gain"] == pytest.approx(sum(found.values()))
    return found


PARTS = {
    "guards": {0: 1.0, 1: 2.0, 2: 3.0}, "before": {1: 100.0, 2: 200.0}, "dispatch": {0: 10.0, 2: 20.0},
    "graph": {0: 500.0, 2: 900.0},
}  # fmt: skip
PRINTED = "call of a builtin: print(Tensor)"


def test_the_cost_of_a_break_is_that_of_both_continuations() -> None:
    """The fusion is that of the cheaper kernel beside both breaks, with its share of the graph's median time."""
    events = [frame(0, models=(0,), broke=broken("builtin-call", PRINTED, 3)),
              frame(1, 3, broke=broken("builtin-call", PRINTED, 3)), frame(2, 3, models=(2,)),
              *graph_events(0, 100.0, 300.0), *graph_events(2, 150.0, 300.0), steps_event(**PARTS)]  # fmt: skip
    expected = {"eager": 300.0, "guards": 5.0, "dispatch": 20.0, "fusion": 300.0, "compiles": 0.0}
    assert cost_of(*events) == pytest.approx(expected)  # min(300 * 500 / 400, 150 * 900 / 450)


def test_a_value_that_later_code_needs_saves_no_kernel() -> None:
    events = [frame(0, models=(0,), broke=broken("data-dependent-jump", "branch on a tensor", 4)), frame(1, 4, models=(2,)),
              *graph_events(0, 300.0), *graph_events(2, 300.0), steps_event(**PARTS)]  # fmt: skip
    assert cost_of(*events) == pytest.approx(
        {"eager": 100.0, "guards": 2.0, "dispatch": 20.0, "fusion": 0.0, "compiles": 0.0}
    )


def test_a_custom_operator_itself_is_no_cost_of_its_break() -> None:
    reason = f"an operator raised: {advice.NO_FAKE}"
    events = [frame(0, models=(0,), broke=broken("operator-failed", reason, 5)), frame(1, 5, models=(2,)),
              *graph_events(0, 300.0), *graph_events(2, 300.0),
              steps_event(**PARTS, functions={1: 60.0}, operators={1: 50.0})]  # fmt: skip
    assert cost_of(*events) == pytest.approx(
        {"eager": 40.0, "guards": 2.0, "dispatch": 20.0, "fusion": 0.0, "compiles": 0.0}
    )


def test_the_cost_of_a_frame_that_nothing_continues() -> None:
    """The frame runs eagerly to its end, without its operators, which a graph would run."""
    events = [frame(0, broke=broken("builtin-call", "call of a builtin: total([1, 2])", 3)),
              steps_event(guards={0: 1.0}, before={0: 700.0}, operators={0: 300.0})]  # fmt: skip
    assert cost_of(*events) == {"eager": 400.0, "guards": 0.0, "dispatch": 0.0, "fusion": 0.0, "compiles": 0.0}


@pytest.mark.parametrize(("aspect", "seconds"), [("number", 0.75), ("sizes", 0.5)])
def test_the_cost_of_recompiles_is_their_time_over_all_calls(aspect: str, seconds: float) -> None:
    """A program with dynamic sizes compiles once more: one of the recompiles stays."""
    difference = {"kind": "equal", "text": "n == 3", "stack": [], "source": "L['n']", "aspects": [aspect], "seen": "4"}
    events = [frame(0, seconds=1.0)]
    for k in (1, 2, 3):
        events += [frame(k, seconds=0.25 - 0.0625 * (k == 3)),
                   {"event": "recompile", "function": "step", "file": FILE, "line": 1, "reasons": ["n == 3"],
                    "differences": [difference], "id": f"[0/{k}]", "title": "step"}]  # fmt: skip
    events += [{"event": "phase", "name": "backward", "seconds": 0.0625, "id": "[0/3]"}, steps_event(guards={0: 1.0})]
    assert cost_of(*events) == {"eager": 0.0, "guards": 0.0, "dispatch": 0.0, "fusion": 0.0,
                                "compiles": pytest.approx(seconds * 1e9 / 20)}  # fmt: skip


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
