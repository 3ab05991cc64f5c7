"""The records of a compile, for `explain` and the logs, and the parts of an entry, for artefacts."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from pycompiler.capture.breaks import BreakRecord
from pycompiler.capture.interpreter.frame import Captured
from pycompiler.capture.recipe.recipe import Recipe, weakly
from pycompiler.ir.guards import Guard
from pycompiler.ir.persistent_names import traced_through


@dataclass
class GraphRecord:
    """The results of one capture, for `explain` and the logs."""

    code: types.CodeType
    graph: fx.GraphModule | None
    guards: list[Guard]
    op_count: int
    broke: BreakRecord | None
    seconds: float
    inlined: tuple[types.CodeType, ...] = ()
    hooked: bool = False  # called during a graph break of the family


@dataclass(frozen=True)
class GuardDifference:
    """A guard that failed: `aspects` in which the call differs (`ir/guard_differences.py`), and the difference as text."""

    guard: Guard
    aspects: tuple[str, ...]
    seen: str


@dataclass(frozen=True)
class RecompileRecord:
    """A call that no entry of `code` fitted.

    `reasons`: for each entry (at most the latest few), the guard that failed and advice to the user.
    `differences`: the same as data.
    """

    code: types.CodeType
    reasons: tuple[str, ...]
    differences: tuple[GuardDifference, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.reasons)


@dataclass(frozen=True)
class EagerRecord:
    """Calls of `code` run eagerly.  kind: "skipped" (the frame cannot be captured), "failed" (its compile raised), or
    "limit" (calls that fit no entry, since the recompile limit is reached)."""

    code: types.CodeType
    kind: str
    reason: str


class BackendObserver:
    """Base of a backend that receives reports of its frames' compiles. These frames have no recompile limit."""

    def compiled(self, record: GraphRecord) -> None:
        """A frame was captured."""

    def recompiled(self, record: RecompileRecord) -> None:
        """A frame is compiled again."""


@dataclass(frozen=True)
class EntryParts:
    """The parts of an entry: the recipe, with all guards, and the compiled graph."""

    recipe: Recipe
    graph: Callable[..., Any] | None = None


def recipe_of(captured: Captured, guards: list[Guard]) -> Recipe:
    """The recipe of a capture whose graph is compiled, with the remaining `guards` and later assumptions."""
    graphs = [] if captured.graph is None else [m for m in captured.graph.modules() if isinstance(m, fx.GraphModule)]
    targets = dict.fromkeys(n.target for gm in graphs for n in gm.graph.nodes if n.op == "call_function")
    calls = [
        f"its graph holds the operators that {name} ran when it was traced"
        for t in targets
        if (name := traced_through(t))
    ]
    return weakly(replace(captured.recipe, guards=guards, process=(*captured.recipe.process, *calls)))
