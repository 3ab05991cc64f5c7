"""Inference mode that a frame enters and leaves: in the graph it is no more than the grad mode, and what was made inside is an
inference tensor where it leaves the graph (`rebuild.as_inference`).

A tensor is one if its memory was made inside: a view of another tensor is as that is, inside and outside.  What tells the two
apart otherwise breaks the graph: a write outside, gradients, versions.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pycompiler.capture.breaks import Break
from pycompiler.ir.kernels import memory_of
from pycompiler.ir.subclasses import is_wrapper

KIND = "unsupported-operation"


class Inference:
    """The regions that are open, each by the grad mode before it and the step that entered it; and what was made in any."""

    def __init__(self) -> None:
        self.open: list[tuple[bool, int | None]] = []
        self._made: dict[int, torch.Tensor] = {}  # by memory, which these keep

    def is_made(self, fake: torch.Tensor) -> bool:
        """Whether the program sees an inference tensor."""
        return bool(self._made) and fake.layout is torch.strided and memory_of(fake) in self._made

    def look(
        self, name: str, operands: list[torch.Tensor], written: list[torch.Tensor], results: Iterable[torch.Tensor]
    ) -> None:
        """After a call."""
        if not (self.open or self._made):
            return
        results = [*results]
        if self.open:
            self._note(name, operands, results)
        elif any(map(self.is_made, written)):
            raise Break(KIND, f"{name}, which writes an inference tensor")
        elif any(t.requires_grad for t in results) and any(map(self.is_made, operands)):
            raise Break(KIND, f"{name} of an inference tensor, with gradients")

    def _note(self, name: str, operands: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        given = {memory_of(t) for t in operands if t.layout is torch.strided}
        for t in results:
            if t.layout is not torch.strided or is_wrapper(type(t)):
                raise Break(KIND, f"{name} in inference mode, whose result is sparse, or of a class")
            if memory_of(t) not in given:
                if t.requires_grad:
                    raise Break(KIND, f"{name} in inference mode, whose result requires grad")
                self._made[memory_of(t)] = t
            elif name == "view" and any(t.dtype != o.dtype for o in operands if o.layout is torch.strided):
                raise Break(KIND, "a view of another dtype in inference mode")  # which eager takes for a new tensor
