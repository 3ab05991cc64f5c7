"""Inference mode that a frame enters and leaves.

In the graph it is only the grad mode.  A tensor created inside is an inference tensor where it leaves the graph
(`runtime_helpers.as_inference`).  The memory decides: a view is an inference tensor iff its base is.  Operations that would
behave differently break the graph: a write outside, gradients, versions.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.fact_log import FactLog
from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass

KIND = "unsupported-operation"


class Inference:
    """The open regions, as (grad mode before, step of entry), and the tensors created in any region."""

    def __init__(self, facts: FactLog) -> None:
        self.facts = facts
        self.open = facts.regions
        self._begun = False

    def is_made(self, fake: torch.Tensor) -> bool:
        """Whether the program sees an inference tensor."""
        return self._begun and any(s.in_inference for s in self.facts.known([fake]))

    def look(self, name: str, operands: list[torch.Tensor], results: Iterable[torch.Tensor]) -> None:
        """Call after each call of the graph."""
        if not (self.open or self._begun):
            return
        results = [*results]
        if self.open:
            self._begun = True
            self._note(name, operands, results)
        elif any(t.requires_grad for t in results) and any(map(self.is_made, operands)):
            raise Break(KIND, f"{name} of an inference tensor, whose result requires grad")

    def _note(self, name: str, operands: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        given = {memory_of(t) for t in operands if t.layout is torch.strided}
        for t in results:
            if t.layout is not torch.strided or is_tensor_subclass(type(t)):
                raise Break(KIND, f"{name} in inference mode, whose result is sparse or a tensor subclass")
            if memory_of(t) not in given:
                if t.requires_grad:
                    raise Break(KIND, f"{name} in inference mode, whose result requires grad")
                self.facts.storage(t).in_inference = True
            elif name == "view" and any(t.dtype != o.dtype for o in operands if o.layout is torch.strided):
                raise Break(KIND, "a view of another dtype in inference mode")  # eager treats it as a new tensor
