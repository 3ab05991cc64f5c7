"""Traces with fields of wrong types are refused, with the field's name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug import event_fields
from pycompiler.debug.events import EVENTS, Recorder
from pycompiler.debug.report import trace_main
from pycompiler.debug.trace import read
from pycompiler.errors import ArgumentError


def program(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x.sin().cumsum(0) * n
    pycompiler.graph_break()
    return y.softmax(-1).sum()


def skipped(x: torch.Tensor) -> int:
    return sys._getframe().f_lineno


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    """Every kind of event, as read from a file."""
    made: list[dict[str, Any]] = []
    with Recorder(made.append, costs=True):
        fn = pycompiler.compile(program, dynamic=False)
        for size in (4, 4, 4, 4, 5):
            x = torch.randn(size, 3, requires_grad=True)
            fn(x, size).backward()
        pycompiler.compile(skipped)(x)
    pycompiler.reset()
    found = [json.loads(json.dumps(event, default=str)) for event in made]
    assert {event["event"] for event in found} >= set(EVENTS) - {"hint", "end"}  # only a child's program has an end
    return found


def test_every_kind_of_event_has_its_fields(events: list[dict[str, Any]]) -> None:
    assert event_fields.FIELDS.keys() == EVENTS.keys()
    for event in events:
        event_fields.check(event, "line 1")


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of the strings and numbers in an event."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [at]
    return [place for key, item in items for place in places(item, (*at, key))]


# Fields that the page does not read, or lists of any content.
LEFT_ALONE = {"pid", "holds", "tried", "work", "event"}


def test_a_field_of_another_type_is_refused_wherever_it_is(events: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    seen = set()
    for event in {e["event"]: e for e in events}.values():
        for place in places(event):
            pattern = (event["event"], *("*" if isinstance(key, int) or key.isdigit() else key for key in place))
            if LEFT_ALONE & set(place) or pattern in seen:
                continue
            seen.add(pattern)
            changed = json.loads(json.dumps(event))
            holder = changed
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = {"<img>": 1}
            file.write_text(json.dumps(changed) + "\n")
            with pytest.raises(
                ArgumentError,
                match=r"t\.jsonl, line 1, is not an event of pycompiler: .*(is a table, expected|has no field)",
            ):
                list(read(file))
    assert len(seen) > 50


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda e: e.update(number='"><img src=x>'), "graph.number is a text, expected an integer"),
        (lambda e: e.update(number=True), "graph.number is a truth value, expected an integer"),
        (lambda e: e.pop("nodes"), "graph has no field nodes"),
        (lambda e: e["phases"].update({"build": "1"}), r"graph.phases\['build'\] is a text, expected a number"),
        (lambda e: e.update(model=1.5), "graph.model is a float, expected an integer"),
        (
            lambda e: e["phases"].update({"build": float("nan")}),
            r"graph.phases\['build'\] is nan, expected a finite number",
        ),
        (lambda e: e["nodes"][1].update(inputs=["0"]), r"graph.nodes\[1\].inputs\[0\] is a text, expected an integer"),
        (lambda e: e.update(steps=None), "graph.steps is null, expected a list"),
    ],
)
def test_the_field_is_named(events: list[dict[str, Any]], change: Any, text: str) -> None:
    event = json.loads(json.dumps(next(e for e in events if e["event"] == "graph")))
    change(event)
    with pytest.raises(ArgumentError, match=f"here is not an event of pycompiler: {text}"):
        event_fields.check(event, "here")


def test_the_device_of_a_step_is_checked(events: list[dict[str, Any]]) -> None:
    event = next(e for e in events if e["event"] == "steps" and any(e["inner"]))
    for device in (None, [], [["a kernel", 1.0, 2.0, 7]]):
        event_fields.check(event | {"device": device}, "here")
    for device, text in (
        ([["k", 1.0, 2.0]], "is a list, expected a list of 4"),
        ([["k", 1.0, "<b>", 7]], "expected a number"),
    ):
        with pytest.raises(ArgumentError, match=text):
            event_fields.check(event | {"device": device}, "here")


def test_positions_are_numbers(events: list[dict[str, Any]]) -> None:
    event = json.loads(json.dumps(next(e for e in events if e["event"] == "entry")))
    event["each"] = {"<b>": 1.0}
    with pytest.raises(ArgumentError, match="a key of entry.each is not a position"):
        event_fields.check(event, "here")


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text('{"event": "phase", "at": 0, "thread": 1, "name": 3}\nnot a line\n')

    class Options:
        folder, out, serve = str(tmp_path), None, None

    assert trace_main(Options) == 2  # type: ignore[arg-type]
    assert "line 1, is not an event of pycompiler: phase.name is an integer, expected a text" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]
