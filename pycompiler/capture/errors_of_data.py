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
from pycompiler.capture.bytecode.tables import EXIT_DEPTH

EXPECTED = "the program raises where this is false"
"""What an operator says that looks at what is assumed."""


class Running(Protocol):
    """A frame that is being captured."""

    @property
    def current(self) -> Any: ...
    @property
    def instructions(self) -> Sequence[Any]: ...
    @property
    def stack(self) -> Sequence[Any]: ...
    @property
    def ways_out(self) -> dict[Any, WayOut]: ...


class WayOut:
    """Where an error goes in a frame from where one handler of its table is the innermost: by the `exits` of `with` statements,
    places on the stack, the innermost first, to a handler of the program's (`handled`) or out of the frame."""

    def __init__(self, frame: Running, handler: Any) -> None:
        self.exits: list[slice] = []
        self.handled = False
        self._left: list[Any] = []  # what was on the stack when it was last asked
        self._answer: bool | None = None
        while handler is not None:
            landed = [*frame.instructions[frame.instructions.index(handler.target) :][:2]]
            cleanup = handler.target.handler
            if landed[-1].opname != "WITH_EXCEPT_START" or cleanup is None:
                self.handled = landed[0].opname == "PUSH_EXC_INFO"
                break
            self.exits.append(slice(handler.depth + 3 - EXIT_DEPTH, handler.depth))  # from 3.14 on with its receiver
            handler = cleanup.target.handler

    def catches(self, stack: Sequence[Any]) -> bool:
        """Whether the program handles the error, or a manager may that is none of torch's, which put back state."""
        left = [v for at in self.exits for v in stack[at]]
        if self._answer is None or any(a is not b for a, b in zip(left, self._left, strict=True)):
            try:
                self._answer = self.handled or not all(_is_torchs(stack[at]) for at in self.exits)
            except Break:  # nobody has looked at it
                return True
            self._left = left
        return self._answer


def _is_torchs(leave: Sequence[Any]) -> bool:
    """Whether it is by a manager of torch's that a `with` statement is left."""
    managers = [getattr(v, "receiver", v) for v in leave if v.describe() != "NULL"]
    return any(m.python_type().__module__.partition(".")[0] == "torch" for m in managers)


def catches(frame: Running) -> bool:
    """Whether the program handles what the current instruction raises: also by `with`, but for managers of torch's, which put
    back state."""
    handler = frame.current.handler
    if handler is None:
        return False
    way = frame.ways_out.get(handler)
    if way is None:
        way = frame.ways_out[handler] = WayOut(frame, handler)
    return way.catches(frame.stack)


@dataclass
class ErrorsOfData:
    """refuses: an operator may raise.  seen: where the program handles it, or has had effects, which come behind the graph.
    writes: inputs are written.  acts: something else happens once.  switches: state of torch's is switched, and would stay so.
    behind: an operator of another library, which may raise anything, comes behind effects.
    meets: processes meet in a call, which none of them can repeat alone.
    once: so do operators, not only numbers of Python's or NumPy's that were drawn.
    draws: the devices of random numbers.  written: the positions of inputs whose versions count the writes.  whole: no break.
    late: an operator may raise when inputs are written, or while it writes them.
    counting: an error would be seen in the count of a table's misses.
    handled: an operator is computed where the program handles errors, also those that any may have: of memory.
    levelled: the graph runs under transforms, which may refuse any operator.
    shown: the frame does more than compute, which comes behind the graph: its caller sees what an error left undone.
    expected: the truth of a tensor is assumed (`GraphBuilder.expect`), of which the program raises an error of its own."""

    whole: bool = False
    expected: bool = False
    levelled: bool = False
    refuses: bool = False
    handled: bool = False
    shown: bool = False
    seen: bool = False
    writes: bool = False
    late: bool = False
    acts: bool = False
    once: bool = False
    counting: int = 0
    switches: bool = False
    behind: bool = False
    meets: bool = False
    draws: dict[torch.device, None] = field(default_factory=dict)
    written: tuple[int, ...] = ()

    def note(
        self,
        *,
        refuses: bool,
        fails: bool,
        acts: bool,
        meets: bool,
        draws: Iterable[torch.device],
        frames: Sequence[Running],
        effects: bool,
    ) -> None:
        """An operator is recorded while `frames` run, after `effects`."""
        if self.levelled and (acts or meets):
            raise Break("inner-graph", "an operator that acts, under a transform")
        self.handled = self.handled or any(map(catches, frames))
        caught = fails and self.handled and any(map(catches, frames))
        if caught and acts:
            raise Break("unsupported-operation", "an operator that acts, whose errors the program handles")
        self.refuses |= refuses or fails
        self.behind |= fails and effects
        self.acts |= acts
        self.once |= acts
        self.meets |= meets
        self.draws |= dict.fromkeys(draws)
        self.seen |= (
            caught or refuses and (effects or self.counting > 0 or any(f.current.handler is not None for f in frames))
        )
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
        if self.levelled:
            return True
        seen = self.seen or self.behind
        return (
            self.refuses and not self.meets and not (seen and self.acts) and (seen or self.writes or bool(self.draws))
        )

    @property
    def undone(self) -> bool:
        """Whether the program sees any error, of a graph that has done nothing by then which a second time would do twice."""
        seen = self.handled or (self.shown and not self.acts)
        return seen and not (self.written or self.once or self.meets or self.draws)

    @property
    def undoable(self) -> bool:
        """The same of what is seen, and put back, where the graph is called: inputs not written yet, numbers drawn."""
        return self.handled and not (self.acts or self.meets) and bool(self.written or self.draws)
