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
class Done:
    """What a graph has done when an operator of it raises, and a second run would do again.

    writes: inputs are written; `written`: the positions of those whose versions count it.
    acts: operators that happen once.  takes: random numbers of Python's or NumPy's were drawn for it, by generated code, which
    puts their generators back where the frame runs again.
    meets: processes meet in a call, which none of them can repeat alone.
    switches: state of torch's is switched, and would stay so.
    draws: the devices of random numbers; `given`: also by generators of the program's."""

    writes: bool = False
    acts: bool = False
    takes: bool = False
    meets: bool = False
    switches: bool = False
    draws: dict[torch.device, None] = field(default_factory=dict)
    given: bool = False
    written: tuple[int, ...] = ()

    @property
    def once(self) -> bool:
        """Whether something was done that nobody puts back."""
        return self.acts


@dataclass
class Seen:
    """Where an error would be seen, with what was done before it and was not.

    handled: an operator is computed where the program handles errors, also those that any may have: of memory.
    early: one that may refuse its data, too, or it comes behind effects of the frame, which come behind the graph.
    behind: an operator of another library, which may raise anything, comes behind effects."""

    handled: bool = False
    early: bool = False
    behind: bool = False


@dataclass
class ErrorsOfData:
    """The errors of one graph: what is done by then, and who sees it.

    refuses: an operator may raise.  late: when inputs are written, or while it writes them.
    redraws: what is assumed of numbers in data is looked at behind random numbers, which are put back where it is otherwise.
    expected: the truth of a tensor is assumed (`GraphBuilder.expect`), of which the program raises an error of its own.
    levelled: the graph runs under transforms, which may refuse any operator.
    While it is captured: whole: no break.  counting: an error would be seen in the count of a table's misses."""

    refuses: bool = False
    late: bool = False
    redraws: bool = False
    expected: bool = False
    levelled: bool = False
    done: Done = field(default_factory=Done)
    seen: Seen = field(default_factory=Seen)
    whole: bool = False
    counting: int = 0

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
        done, seen = self.done, self.seen
        here = (fails or not seen.handled) and any(map(catches, frames))
        seen.handled |= here
        if fails and here and acts:
            raise Break("unsupported-operation", "an operator that acts, whose errors the program handles")
        self.refuses |= refuses or fails
        done.acts |= acts
        done.meets |= meets
        done.draws |= dict.fromkeys(draws)
        seen.behind |= fails and effects
        seen.early |= fails and here
        if refuses and not seen.early:
            seen.early = effects or self.counting > 0 or any(f.current.handler is not None for f in frames)
        told = ((refuses or acts) and seen.early) or (fails and effects)
        if told and done.once and (self.expected or not self.whole):
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
    def begins_again(self) -> bool:
        """Whether there are errors that may have the frame run again."""
        return self.refuses or self.expected or self.seen.handled

    @property
    def are_eagers(self) -> bool:
        """Whether an error is left to eager: the program sees what happened before it."""
        if self.levelled:
            return True
        done, seen = self.done, self.seen.early or self.seen.behind
        left = self.refuses and not done.meets and not (seen and done.once)
        return left and (seen or done.writes or bool(done.draws))

    def again(self, *, ours: bool) -> bool | None:
        """Whether the frame runs again, as it is written, when its graph fails; None: if that had done nothing by then."""
        done, seen = self.done, self.seen
        lasts = done.writes or done.written or done.acts or done.meets or done.draws
        if not lasts and (seen.handled or (ours and not done.takes)):
            return True
        return None if ours and not done.takes else False

    @property
    def undoable(self) -> bool:
        """The same of what is seen, and put back, where the graph is called: inputs not written yet, numbers drawn."""
        done = self.done
        return self.seen.handled and not (done.once or done.meets) and bool(done.written or done.draws)
