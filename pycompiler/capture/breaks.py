"""Graph breaks: the table of graph-break kinds, and the exceptions that carry control inside a capture.

In: a construct that cannot be captured.
Out: `Break` with a stable id, a reason, and a hint.
Example: `raise Break("data-dependent-jump", "branch on a tensor's value")`.  The caller of a capture gets a
`BreakRecord`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.ir.guards import UserFrame

# id → (construct that cannot be captured, advice to the user).
# `tests/capture/interpreter/test_breaks.py` has a test for each id.
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
        "keep the value as a tensor, or set config.capture_scalar_outputs to capture .item()",
    ),
    "dynamic-output-shape": (
        "an operator whose result's shape depends on data",
        "use an operator of fixed shape (torch.where, not a mask), or set config.capture_dynamic_output_shape_ops",
    ),
    "unsupported-opcode": ("bytecode instruction that is not captured", "rewrite this construct, or accept the break"),
    "unsupported-attribute": (
        "attribute access that cannot be captured",
        "read the attribute outside of the compiled region",
    ),
    "unsupported-type": ("value of a type that is not captured", "pass tensors and plain Python values"),
    "unsupported-operation": ("operation on values that is not captured", "rewrite the operation, or accept the break"),
    "tensor-attribute-store": ("assignment to a tensor's attribute", "use an in-place operator instead"),
    "tensor-subclass": (
        "use of a tensor subclass that is not captured",
        "convert to a plain tensor before the compiled region",
    ),
    "operator-failed": (
        "an operator raised while its shapes were computed",
        "see the message: eager may raise the same error",
    ),
    "uncaught-exception": ("an exception leaves the frame", "none needed: the statement runs eagerly and raises"),
    "recursion": ("inlined calls are nested too deep", "limit the recursion depth inside the compiled region"),
    "generator-state": (
        "a generator or iterator that is still in use where the graph ends",
        "use a list instead of a generator",
    ),
    "running-iterator": (
        "use of an iterator that was started before this graph",
        "pass a list instead, or remove the graph break from the loop's body: each graph takes one element of such a loop",
    ),
    "explicit-break": ("pycompiler.graph_break() was called", "remove the call"),
    "mutation-unsupported": (
        "change of an object that generated code cannot repeat after the graph",
        "change the object outside of the compiled region",
    ),
    "finalizer": (
        "drop of an object whose end runs code (a finalizer, a weak reference's callback, a generator)",
        "drop the object outside of the compiled region, or accept the break",
    ),
    "global-state": (
        "change of global torch state that is not captured",
        "change the state outside of the compiled region",
    ),
    "inner-graph": (
        "code that the graph of a passed function cannot contain (transform, checkpoint, control flow, autograd Function)",
        "move that code out of the passed function, or accept the break",
    ),
    "import": ("import with side effects inside the compiled region", "import at module level"),
    "trace-budget": (
        "the capture exceeded its budget of instructions or elements",
        "move the loop out of the compiled region",
    ),
}


class Break(LeavesCompile):
    """The current instruction cannot be captured.  `kind` is a row of BREAK_KINDS.

    `step`: the step of the root frame to stop before, if it is not the current step.
    `gives_end`: the instruction's result has an end that the program sees.
    `rests_on`: the (source, value) pairs that made it break.
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
        """A copy of this break, to be raised.

        A stored break must not be raised itself: its traceback would hold the frames that hold the break.
        """
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
    """This call has no capture; `breaks`: the breaks met until then."""

    breaks: tuple[BreakRecord, ...] = ()


class SkipFrame(NotCaptured):
    """The whole frame runs eagerly; the message has the reason."""


class EagerOnce(NotCaptured):
    """This call of the frame runs eagerly, since its effect happens only once.  The next call is captured.

    The message has the reason.
    """


class RestartCapture(LeavesCompile):
    """The capture of the frame starts again: an assumption of the capture is now known better."""


class Raised(LeavesCompile):
    """A Python exception raised inside the captured program; `value` is the exception object."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(repr(value))
