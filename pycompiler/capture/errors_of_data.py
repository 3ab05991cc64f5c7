"""What errors a graph may raise when it runs, and whether the program would see that they came early.

Capture finds no error that depends on data: an index out of range is one when the graph runs.  Eager has done by then what stands
before the operator, none of what stands behind it, and goes on at the program's handlers.  A graph that has done nothing that
cannot be done twice leaves all of that to eager: the frame runs again from its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Running(Protocol):
    """A frame that is being captured."""

    @property
    def current(self) -> Any: ...


@dataclass
class ErrorsOfData:
    """refuses: an operator may raise.  caught: where the program handles it.  once: something cannot be done twice (random
    numbers, writes to inputs).  switches: state of torch's is switched, which would stay switched."""

    refuses: bool = False
    caught: bool = False
    once: bool = False
    switches: bool = False

    def note(self, *, refuses: bool, once: bool, frames: Sequence[Running]) -> None:
        """An operator is recorded while `frames` run."""
        self.refuses |= refuses
        self.once |= once
        self.caught = self.caught or refuses and any(f.current.handler is not None for f in frames)

    def are_seen_by(self, effects: bool) -> bool:
        """Whether an error is left to eager; `effects`: the frame has some, which come after the graph."""
        return self.refuses and not self.once and (self.caught or effects)
