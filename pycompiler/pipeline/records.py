"""What is kept of a compile: for `explain` and the logs, and of an entry, for artefacts."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from pycompiler.capture.breaks import BreakRecord
from pycompiler.capture.frame import Captured
from pycompiler.capture.recipe import Recipe, weakly
from pycompiler.ir.guards import Guard
from pycompiler.ir.names import traced_through


@dataclass
class GraphRecord:
    """What one capture produced, kept for `explain` and the logs."""

    code: types.CodeType
    graph: fx.GraphModule | None
    guards: list[Guard]
    op_count: int
    broke: BreakRecord | None
    seconds: float
    inlined: tuple[types.CodeType, ...] = ()


@dataclass(frozen=True)
class RecompileRecord:
    """A call that no entry of `code` fitted.

    `reasons`: for each entry (of many, for the latest) the guard that failed, and what to do."""

    code: types.CodeType
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.reasons)


class BackendObserver:
    """Base of a backend that is told what the compiles of its frames met.  There is no limit of recompiles for them."""

    def compiled(self, record: GraphRecord) -> None:
        """A frame was captured."""

    def recompiled(self, record: RecompileRecord) -> None:
        """A frame is compiled again."""


@dataclass(frozen=True)
class Made:
    """What an entry is made of: the recipe, with all guards, and the compiled graph."""

    recipe: Recipe
    graph: Callable[..., Any] | None = None


def recipe_of(captured: Captured, guards: list[Guard]) -> Recipe:
    """The recipe of a capture whose graph is compiled, with the `guards` that are left and what was assumed since."""
    graphs = [] if captured.graph is None else [m for m in captured.graph.modules() if isinstance(m, fx.GraphModule)]
    targets = dict.fromkeys(n.target for gm in graphs for n in gm.graph.nodes if n.op == "call_function")
    calls = [f"its graph holds what {name} did when it was traced" for t in targets if (name := traced_through(t))]
    return weakly(replace(captured.recipe, guards=guards, process=(*captured.recipe.process, *calls)))
