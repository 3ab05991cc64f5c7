"""What errors a graph may raise when it runs, and whether the program would see that they came early.

Capture finds no error that depends on data: an index out of range is one when the graph runs.  Eager has done by then what
stands before the operator, none of what stands behind it, and goes on at the program's handlers.  All of that is left to eager:
the frame runs again from its start.  So the graph's random numbers are put back, and compiled graphs write inputs when nothing
can be refused any more.  What else happens once (operators that act) is in no graph with errors that the program would see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pycompiler.capture.breaks import Break

EXPECTED = "the program raises where this is false"
"""What an operator says that looks at what is assumed."""


class Running(Protocol):
    """A frame that is being captured."""

    @property
    def current(self) -> Any: ...


@dataclass
class ErrorsOfData:
    """refuses: an operator may raise.  seen: where the program handles it, or has had effects, which come behind the graph.
    writes: inputs are written.  acts: something else happens once.  switches: state of torch's is switched, and would stay so.
    draws: the devices of random numbers.  written: the positions of inputs whose versions count the writes.  whole: no break.
    late: an operator may raise when inputs are written, or while it writes them.
    counting: an error would be seen in the count of a table's misses.
    expected: the truth of a tensor is assumed (`GraphBuilder.expect`), of which the program raises an error of its own."""

    whole: bool = False
    expected: bool = False
    refuses: bool = False
    seen: bool = False
    writes: bool = False
    late: bool = False
    acts: bool = False
    counting: int = 0
    switches: bool = False
    draws: dict[torch.device, None] = field(default_factory=dict)
    written: tuple[int, ...] = ()

    def note(
        self, *, refuses: bool, acts: bool, draws: Iterable[torch.device], frames: Sequence[Running], effects: bool
    ) -> None:
        """An operator is recorded while `frames` run, after `effects`."""
        self.refuses |= refuses
        self.acts |= acts
        self.draws |= dict.fromkeys(draws)
        self.seen |= refuses and (effects or self.counting > 0 or any(f.current.handler is not None for f in frames))
        if (refuses or acts) and self.seen and self.acts and (self.expected or not self.whole):
            raise Break(
                "unsupported-operation", "an error of data, seen by the program, beside a call that cannot be undone"
            )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A cached function runs: eager counts the call before it."""
        self.counting += 1
        try:
            yield
        finally:
            self.counting -= 1

    @property
    def are_eagers(self) -> bool:
        """Whether an error is left to eager: the program sees what happened before it."""
        return self.refuses and not (self.seen and self.acts) and (self.seen or self.writes or bool(self.draws))
