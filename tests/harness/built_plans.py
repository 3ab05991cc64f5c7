"""The plans that a test's compiles build: what was compiled, and how."""

from __future__ import annotations

from typing import Any

from pycompiler.ir import phases
from pycompiler.ir.plan import Aten, Plan


class BuiltPlans(phases.Observer):
    """An observer of compiles."""

    def __init__(self) -> None:
        self.found: list[Plan] = []

    def artefact(self, name: str, value: Any) -> None:
        if name == "plan":
            self.found.append(value[0])

    def count(self, kind: type) -> int:
        """Steps of one kind in all plans."""
        return sum(isinstance(step, kind) for plan in self.found for step in plan.steps)

    def operators(self) -> list[str]:
        """The names of ATen's operators in all plans, in order."""
        steps = (step for plan in self.found for step in plan.steps if isinstance(step, Aten))
        return [step.op._schema.name.partition("::")[2] for step in steps]
