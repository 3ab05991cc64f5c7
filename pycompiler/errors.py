"""The three families of errors: the user's, a graph break, a bug of ours.

In: an observation.  Out: exceptions whose message says what was seen, what was expected and what to do.

    UserError               the program asked for something impossible (unknown backend, wrong knob, double backward)
    Unsupported             a graph break: code that cannot be captured; `fullgraph=True` shows it to the user
    InternalError           a bug of ours, or of a backend: names function, file, line and operator

Example: `raise InternalError("no rule").locate(function="forward", operator="aten.mm")`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycompiler.ir.guards import UserFrame


class PyCompilerError(RuntimeError):
    """Base of every error that the compiler raises by itself (a RuntimeError, as torch.compile's errors are)."""


# ---------------------------------------------------------------- the user's


class UserError(PyCompilerError):
    """The user's program or settings ask for something impossible."""


def describe(value: object) -> str:
    """A value for messages: its shortened repr, and its type.  A `__repr__` that raises is left out."""
    try:
        text = repr(value)
    except Exception:
        text = "a value that cannot be shown"
    return f"{text if len(text) < 80 else text[:77] + '...'} of type {type(value).__name__}"


class ConfigError(UserError, AttributeError, TypeError):
    """Unknown knob, wrong type or illegal value of a knob."""


class ArgumentError(UserError, TypeError, ValueError):
    """An unusable argument of a public function (torch raises one or the other of these builtins)."""


class UnknownName(ArgumentError):
    """A backend, mode or option that does not exist."""

    @staticmethod
    def of(kind: str, seen: object, known: Sequence[str]) -> UnknownName:
        close = difflib.get_close_matches(seen, known, n=1) if isinstance(seen, str) else ()
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return UnknownName(f"unknown {kind} {seen!r}{hint}; known: {', '.join(sorted(known))}")


class RecompileError(UserError):
    """A compile would start where `error_on_recompile`, a stance or a frozen run forbids it."""


class RecompileLimitExceeded(RecompileError):
    """A callable reached its recompile limit under `fullgraph=True` or `fail_on_recompile_limit_hit`."""


class RecompileLimitWarning(RuntimeWarning):
    """A callable reached its recompile limit: calls that fit no entry run eagerly from now on."""


class DoubleBackwardError(UserError):
    """A second derivative through a compiled graph whose inputs are gone or changed."""


class ArtefactError(UserError):
    """A file that `load` refuses, or a callable without anything that `save` can write; the message says why."""


# ---------------------------------------------------------------- graph breaks


def stack_text(user: Sequence[UserFrame], indent: str = "    ") -> str:
    """The user's stack, one frame per line (with its source line below), outermost first."""
    return "\n".join(indent + str(frame).replace("\n", "\n" + indent) for frame in user)


class Unsupported(PyCompilerError):
    """A graph break as the user sees it under `fullgraph=True`.

    Attributes:
        id: The kind of break: a stable name, a row of `capture.breaks.BREAK_KINDS`.
        reason: The construct that was seen, and why it breaks the graph.
        hint: The way out.
        user: The user's stack, outermost first.
    """

    def __init__(self, id: str, reason: str, hint: str = "", user: Sequence[UserFrame] = ()) -> None:
        super().__init__(id, reason)
        self.id = id
        self.reason = reason
        self.hint = hint
        self.user = tuple(user)

    def __str__(self) -> str:
        lines = [f"graph break [{self.id}]: {self.reason}"]
        if self.hint:
            lines.append(f"  what to do: {self.hint}")
        if self.user:
            lines += ["  user code:", stack_text(self.user)]
        return "\n".join(lines)


GraphBreak = Unsupported


# ---------------------------------------------------------------- bugs of ours


@dataclass
class CompilePosition:
    """The position of a compile when it failed; unknown parts are empty.

    `compile`: the compile's id and name, as in the log: `[0/1/forward] step#1.forward`.
    """

    function: str = ""
    filename: str = ""
    lineno: int = 0
    operator: str = ""
    compile: str = ""

    def __str__(self) -> str:
        known = (
            self.compile,
            f"function {self.function}" if self.function else "",
            f"{self.filename}:{self.lineno}" if self.filename else "",
            f"operator {self.operator}" if self.operator else "",
        )
        return ", ".join(part for part in known if part)


class InternalError(PyCompilerError):
    """A bug of this compiler.  Callers that know parts of `place` fill them while the error propagates (`locate`).

    Attributes:
        message: The error without its place.
        place: The function, file, line and operator that were compiled; unknown parts are empty.
    """

    advice = "this is a bug of pycompiler, not of your program; please report it"

    def __init__(self, message: str, place: CompilePosition | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place or CompilePosition()

    def locate(self, **known: Any) -> InternalError:
        """Fill parts of `place` that are still empty; returns self, for `raise error.locate(...)`."""
        for name, value in known.items():
            if not getattr(self.place, name):
                setattr(self.place, name, value)
        return self

    def __str__(self) -> str:
        where = str(self.place)
        return "\n  ".join([self.message, *([f"while compiling {where}"] if where else []), self.advice])


class CompileError(InternalError):
    """A stage after capture failed: autograd, lowering, scheduling, codegen or the C++ compiler."""


class BackendError(InternalError):
    """A backend raised, or returned something that is not callable."""

    advice = "the backend failed, not your program; config.suppress_errors runs the frame eagerly"


class VerificationError(InternalError):
    """`config.verify_correctness`: a compiled graph's values differ from eager's.

    `backend`: the name of the program's own backend that compiled it; empty for one of ours.
    """

    def __init__(self, message: str, backend: str = "") -> None:
        super().__init__(message)
        self.backend = backend
        if backend:
            self.advice = (
                f"the program's own backend {backend!r} computed these values: pycompiler gave it the graph as captured"
            )


class BadBackendResult(BackendError, TypeError):
    """A user's backend returned something that is not callable, or a callable with the wrong outputs."""

    advice = "the backend is a function (gm, example_inputs) -> callable; see docs/features.md, Compile"


class SoundnessError(InternalError):
    """An invariant between stages does not hold (IR verifier, plan check)."""


class Unfit(BaseException):
    """A graph's assumption about its data failed before any visible effect: the engine then runs the frame eagerly.

    Users never see this exception.
    """
