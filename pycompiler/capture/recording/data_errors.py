"""Errors of data: errors that depend on tensor data, such as an index out of range, and appear only when the graph
runs.

Eager raises such an error between the operations before it and the operations behind it.  Then the program's
handlers run.  To match, the frame runs again eagerly from its start.  For that the graph's random numbers are put back,
and compiled graphs write inputs only when no error can follow.  Operators that act only once are excluded from graphs
with errors that the program would see.
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
"""The message of the operator that checks an assumption."""


class Running(Protocol):
    """A frame that is being captured."""

    @property
    def current(self) -> Any: ...
    @property
    def instructions(self) -> Sequence[Any]: ...
    @property
    def stack(self) -> Sequence[Any]: ...
    @property
    def ways_out(self) -> dict[Any, ErrorPath]: ...


class ErrorPath:
    """The path of an error in a frame, from a handler of its exception table.

    `exits` are the `with` statements on the path, as stack slices of their exit functions, innermost first.  The path
    ends at a handler of the program (`handled`) or outside of the frame.
    """

    def __init__(self, frame: Running, handler: Any) -> None:
        self.exits: list[slice] = []
        self.handled = False
        self._left: list[Any] = []  # the exit functions at the last query
        self._answer: bool | None = None
        while handler is not None:
            landed = [*frame.instructions[frame.instructions.index(handler.target) :][:2]]
            cleanup = handler.target.handler
            if landed[-1].opname != "WITH_EXCEPT_START" or cleanup is None:
                self.handled = landed[0].opname == "PUSH_EXC_INFO"
                break
            self.exits.append(slice(handler.depth + 3 - EXIT_DEPTH, handler.depth))  # since 3.14 with its receiver
            handler = cleanup.target.handler

    def catches(self, stack: Sequence[Any]) -> bool:
        """Whether the program handles the error, or a context manager may.

        Context managers of torch only restore state, so they do not count.
        """
        left = [v for at in self.exits for v in stack[at]]
        if self._answer is None or any(a is not b for a, b in zip(left, self._left, strict=True)):
            try:
                self._answer = self.handled or not all(_is_torchs(stack[at]) for at in self.exits)
            except Break:  # the manager has not been used yet
                return True
            self._left = left
        return self._answer


def _is_torchs(leave: Sequence[Any]) -> bool:
    """Whether a `with` statement is left by a context manager of torch."""
    managers = [getattr(v, "receiver", v) for v in leave if v.describe() != "NULL"]
    return any(m.python_type().__module__.partition(".")[0] == "torch" for m in managers)


def catches(frame: Running) -> bool:
    """Whether the program handles an error of the current instruction.

    `with` counts too, except for context managers of torch, which only restore state.
    """
    handler = frame.current.handler
    if handler is None:
        return False
    way = frame.ways_out.get(handler)
    if way is None:
        way = frame.ways_out[handler] = ErrorPath(frame, handler)
    return way.catches(frame.stack)


@dataclass
class EffectsBefore:
    """The effects of a graph up to an operator that raises, which a second run would repeat.

    - `writes`: inputs are written.  `written`: positions of inputs whose versions count it.
    - `acts`: operators that must happen once.
    - `takes`: generated code drew random numbers of Python or NumPy, and puts the generators back if the frame runs
      again.
    - `meets`: processes meet in a call, which none of them can repeat alone.
    - `switches`: global state of torch is switched and would stay so.
    - `draws`: the devices of random numbers.  `given`: generators of the program are among the sources.
    """

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
        """Whether an effect cannot be undone."""
        return self.acts


@dataclass
class Visibility:
    """Whether the program would see an error, and how it is ordered among other effects.

    - `handled`: an operator runs where the program handles errors, including errors that any operator may have
      (memory).
    - `early`: such an operator may also raise an error of data, or effects of the frame come before it, which run after
      the graph.
    - `behind`: an operator of another library, which may raise any error, comes after effects.
    """

    handled: bool = False
    early: bool = False
    behind: bool = False


@dataclass
class ErrorsOfData:
    """The errors of one graph: the effects before them, and their visibility.

    - `refuses`: an operator may raise.  `late`: after inputs are written, or while it writes them.
    - `redraws`: assumptions on data are checked after random draws, which are put back if an assumption fails.
    - `expected`: the truth of a tensor is assumed (`GraphBuilder.expect`); the program raises its own error otherwise.
    - `levelled`: the graph runs under transforms, which may reject any operator.
    - `whole` (during capture): no graph break is allowed.
    - `counting` (during capture): the error would show in the miss count of a cache.
    """

    refuses: bool = False
    late: bool = False
    redraws: bool = False
    expected: bool = False
    levelled: bool = False
    done: EffectsBefore = field(default_factory=EffectsBefore)
    seen: Visibility = field(default_factory=Visibility)
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
        """Record an operator while `frames` run, after `effects`."""
        if self.levelled and (acts or meets):
            raise Break("inner-graph", "an operator that must run only once, under a transform")
        done, seen = self.done, self.seen
        here = (fails or not seen.handled) and any(map(catches, frames))
        seen.handled |= here
        if fails and here and acts:
            raise Break(
                "unsupported-operation", "an operator that must run only once, whose errors the program handles"
            )
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
                "unsupported-operation",
                "an error of data that the program would see, beside a call that cannot be undone",
            )

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The body of a cached function: eager counts the call before it runs."""
        self.counting += 1
        try:
            yield
        finally:
            self.counting -= 1

    @property
    def begins_again(self) -> bool:
        """Whether an error may make the frame run again."""
        return self.refuses or self.expected or self.seen.handled

    @property
    def are_eagers(self) -> bool:
        """Whether errors are left to eager, since the program sees the effects before them."""
        if self.levelled:
            return True
        done, seen = self.done, self.seen.early or self.seen.behind
        left = self.refuses and not done.meets and not (seen and done.once)
        return left and (seen or done.writes or bool(done.draws))

    def again(self, *, ours: bool) -> bool | None:
        """Whether the frame runs again in eager when its graph fails; None: only if the graph had no lasting effect by
        then."""
        done, seen = self.done, self.seen
        lasts = done.writes or done.written or done.acts or done.meets or done.draws
        if not lasts and (seen.handled or (ours and not done.takes)):
            return True
        return None if ours and not done.takes else False

    @property
    def undoable(self) -> bool:
        """Whether effects are visible but can be undone at the graph's call: inputs not written yet, numbers drawn."""
        done = self.done
        return self.seen.handled and not (done.once or done.meets) and bool(done.written or done.draws)
