"""The error for graphs that ahead-of-time autograd refuses.

In: a reason and the place where it applies. Out: `AutogradUnsupported`, which the pipeline catches to run the graph eagerly.

Example: ``raise AutogradUnsupported("metadata mutation", "input 0 was resized", "use a functional view")``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pycompiler.errors import PyCompilerError
from pycompiler.ir.guards import UserFrame


class AutogradUnsupported(PyCompilerError, RuntimeError):
    """A graph that is legal PyTorch but cannot be compiled ahead of time; the caller runs it eagerly and logs this.

    `user`: the program's stack at the traced node, outermost first; empty if no single node is responsible.
    """

    def __init__(self, reason: str, seen: str, hint: str) -> None:
        super().__init__(f"{reason}: {seen}; {hint}")
        self.reason = reason
        self.seen = seen
        self.hint = hint
        self.user: Sequence[UserFrame] = ()
