"""How faults are put in: those of a side are functions of a `Patch`, which for a whole process need not be taken back."""

from __future__ import annotations

import importlib
from typing import Any, Protocol


class Patch(Protocol):
    """What `pytest.MonkeyPatch` has of it."""

    def setattr(self, target: Any, name: str, value: Any) -> None: ...
    def setitem(self, dic: Any, name: Any, value: Any) -> None: ...


class Forever:
    def setattr(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)

    def setitem(self, dic: Any, name: Any, value: Any) -> None:
        dic[name] = value


def put_in(side: str, name: str) -> None:
    """The fault `name` of a side, where it has that one."""
    fault = getattr(importlib.import_module(side), name, None)
    if fault is not None:
        fault(Forever())
