"""Why a capture stops: the table of graph-break kinds, and the exceptions that carry control inside a capture.

In: what was seen.  Out: `Break` with a stable id, a reason, and a hint.  Example:
`raise Break("data-dependent-jump", "branch on a tensor's value")`.  To the caller of a capture it is a `BreakRecord`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycompiler.ir.guards import UserFrame
from pycompiler.ir.leaves import Leaves

# id -> (what cannot be captured, what the user can do).  `tests/capture/test_breaks.py` has a test for each id.
BREAK_KINDS: dict[str, tuple[str, str]] = {
    "data-dependent-jump": (
        "branch on the value of a tensor",
        "compute both sides and choose with torch.where, or accept the break",
    ),
    "builtin-call": (
        "call of a builtin or C function that cannot be captured",
        "move the call out of the compiled region, or wrap it in a torch.library custom operator",
    ),
    "disabled-call": ("call of a function marked to run eagerly", "remove the mark (disable) to capture it"),
    "skipped-call": (
        "call of a library function that is not captured",
        "move the call out of the compiled region, or accept the break",
    ),
    "data-dependent-value": (
        "a Python value taken from a tensor's data",
        "keep the value as a tensor; .item() and .tolist() need the data",
    ),
    "dynamic-output-shape": (
        "an operator whose result's shape depends on data",
        "use an operator of fixed shape (torch.where instead of masks)",
    ),
    "unsupported-opcode": ("bytecode instruction that is not captured", "rewrite this construct, or accept the break"),
    "unsupported-attribute": ("attribute access that cannot be captured", "read it outside of the compiled region"),
    "unsupported-type": ("value of a type that is not captured", "pass tensors and plain Python values"),
    "unsupported-operation": ("operation on values that is not captured", "rewrite it, or accept the break"),
    "tensor-attribute-store": ("assignment to a tensor's attribute", "use an in-place operator instead"),
    "tensor-subclass": ("tensor subclass", "convert to a plain tensor before the compiled region"),
    "operator-failed": (
        "an operator raised while its shapes were computed",
        "see the message; eager may raise it, too",
    ),
    "uncaught-exception": ("an exception leaves the frame", "none needed: the statement runs eagerly and raises"),
    "recursion": ("inlining went too deep", "limit the recursion depth inside the compiled region"),
    "generator-state": (
        "a generator or iterator that is alive where the graph ends",
        "use a list instead of a generator",
    ),
    "running-iterator": (
        "an iterator that was begun before this graph: a loop with a break in it goes on one element a graph",
        "mend the break inside of the loop, or pass a list in the place of an iterator",
    ),
    "explicit-break": ("pycompiler.graph_break() was called", "remove the call"),
    "mutation-unsupported": ("mutation that cannot be replayed", "mutate the object outside of the compiled region"),
    "finalizer": (
        "the end of an object that runs code (a finalizer, a callback of a weak reference, a generator)",
        "let go of it outside of the compiled region, or accept the break",
    ),
    "global-state": ("change of global torch state that is not captured", "change the state outside of the region"),
    "inner-graph": (
        "part of a transformed, checkpointed or conditional function that its graph cannot have",
        "move it out of the function that is passed on, or accept the break",
    ),
    "import": ("import with side effects inside the compiled region", "import at module level"),
    "trace-budget": (
        "the capture grew beyond its budget (instructions, elements)",
        "move the loop out of the compiled region",
    ),
}


class Break(Leaves):
    """The current instruction cannot be captured.  `kind` is a row of BREAK_KINDS.

    `step`: that of the root frame before which to stop, when it is not the current one.  `gives_end`: what the instruction
    gives has an end that the program sees.  `rests_on`: what made it break, as values of sources.
    """

    def __init__(
        self,
        kind: str,
        seen: str = "",
        step: int | None = None,
        *,
        gives_end: bool = False,
        rests_on: tuple[tuple[Any, Any], ...] = (),
    ) -> None:
        if kind not in BREAK_KINDS:
            raise KeyError(f"unknown break kind {kind!r}")
        self.kind = kind
        self.seen = seen
        self.stack: tuple[UserFrame, ...] = ()
        self.frames: tuple[Any, ...] = ()  # the interpreter's frames at the break, outermost first
        self.step = step
        self.gives_end = gives_end
        self.rests_on = rests_on
        super().__init__(self.reason)

    def anew(self) -> Break:
        """The same break, to be raised: one that a value keeps would keep, with its traceback, the frames that hold the value."""
        made = Break(self.kind, self.seen, self.step, gives_end=self.gives_end, rests_on=self.rests_on)
        made.stack, made.frames = self.stack, self.frames
        return made

    @property
    def reason(self) -> str:
        what = BREAK_KINDS[self.kind][0]
        return f"{what}: {self.seen}" if self.seen else what

    @property
    def hint(self) -> str:
        return BREAK_KINDS[self.kind][1]


@dataclass(frozen=True)
class BreakRecord:
    """One graph break: its kind, reason, hint, and the user's stack, outermost first."""

    kind: str
    reason: str
    hint: str
    stack: tuple[UserFrame, ...]


class NotCaptured(Exception):
    """There is no capture of this call; `breaks`: what was met until then."""

    breaks: tuple[BreakRecord, ...] = ()


class SkipFrame(NotCaptured):
    """The whole frame runs eagerly; the text says why."""


class EagerOnce(NotCaptured):
    """This call of the frame runs eagerly, since what it does happens once; the next one is captured.  The text says why."""


class Again(Leaves):
    """The frame is captured anew, from its begin: what was assumed of it is known better by now."""


class Raised(Leaves):
    """A Python exception raised inside the captured program; `value` is the exception object."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(repr(value))
