"""Guards by object and line, in the program's words."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import pycompiler
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from pycompiler.debug.guard_groups import group_text, groups_of


class Settings:
    def __init__(self) -> None:
        self.scale = 2.0
        self.names = ["a", "b", "c"]


SETTINGS = Settings()


def step(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return model(x) * SETTINGS.scale + len([n for n in SETTINGS.names if n])


def document_of(fn: Any, *args: Any) -> Document:
    events: list[Any] = []
    with Recorder(events.append, costs=True):
        compiled = pycompiler.compile(fn, backend="eager")
        for _ in range(4):
            compiled(*args)
    return Document.of(events)


def test_guards_are_grouped_by_object_and_line() -> None:
    document = document_of(step, torch.ones(4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    groups = groups_of(document)
    assert sum(len(group.guards) for group in groups) == len(document.ranked_guards())
    words = {group.words for group in groups}
    assert "Settings `SETTINGS`: scale" in words
    assert any(word.startswith("Sequential `model`") for word in words), words
    assert [g.nanoseconds for g in groups] == sorted((g.nanoseconds for g in groups), reverse=True)
    scale = next(group for group in groups if group.part == "scale")
    assert scale.where.endswith(f":{step.__code__.co_firstlineno + 1}")
    assert group_text(document, scale).endswith("of step)")


def test_the_state_of_an_optimizer_has_a_name() -> None:
    """One group for the step counters of all parameters, not one for each."""
    frame = {"run": 1, "number": 0, "function": "train", "break": None, "inlined": [], "file": "t.py", "line": 1,
             "source": [], "models": [], "entry": {"call": 9.0, "all": 154.0, "each": {0: 4.0, 1: 4.5}}}  # fmt: skip
    stack = [{"file": "t.py", "line": 7, "function": "train", "text": "opt.step()"}]
    guards = [
        {"kind": "data", "text": "...", "stack": stack, "others": 20, "owner": ["AdamW", "G['opt']"],
         "source": f"list(vars(G['opt'])['state'].values())[{k}]['step'].item()"} for k in range(2)
    ]  # fmt: skip
    data = {"frames": [{**frame, "guards": guards}], "graphs": [], "recompiles": []}
    (group,) = groups_of(Document(data))
    assert group.words == "AdamW's step counters of 42 parameters"
    assert (group.nanoseconds, group.where, len(group.guards)) == (8.5, "t.py:7", 2)
