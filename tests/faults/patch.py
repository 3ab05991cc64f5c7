"""Insertion of faults: the faults of each side are functions of a `Patch`; in a process of its own a fault is never
removed."""

from __future__ import annotations

import importlib
from typing import Any, Protocol


class Patch(Protocol):
    """The used part of `pytest.MonkeyPatch`."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...
    def setitem(self, dic: Any, name: Any, value: Any) -> None: ...


class Forever:
    def setattr(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)

    def setitem(self, dic: Any, name: Any, value: Any) -> None:
        dic[name] = value


def put_in(side: str, name: str) -> None:
    """Insert the fault `name` of a side, if the side has it."""
    fault = getattr(importlib.import_module(side), name, None)
    if fault is not None:
        fault(Forever())
