"""The three families of errors: the user's, a graph break, a bug of ours.

In: what was seen.  Out: exceptions whose text says what was seen, what was expected and what to do.

    UserError               the program asked for something impossible (unknown backend, wrong knob, double backward)
    Unsupported             a graph break: what cannot be captured; `fullgraph=True` shows it to the user
    InternalError           a bug of ours, or of a backend: names function, file, line and operator

Each graph break has a stable id, a row of `BREAKS`, registered where it is raised:

    DATA_JUMP = break_kind("data-dependent-jump", "jump on the value of {what}", "use torch.where or torch.cond")
    raise DATA_JUMP(frames, what="Tensor")
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycompiler.ir.guards import UserFrame


class PyCompilerError(Exception):
    """Base of every error that the compiler raises by itself."""


# ---------------------------------------------------------------- the user's


class UserError(PyCompilerError):
    """The user's program or settings ask for something that cannot be."""


class ConfigError(UserError, AttributeError, TypeError):
    """Unknown knob, wrong type or illegal value of a knob."""


class UnknownName(UserError, ValueError):
    """A backend, mode or option that does not exist."""

    @staticmethod
    def of(kind: str, seen: object, known: Sequence[str]) -> UnknownName:
        return UnknownName(f"unknown {kind} {seen!r}; known: {', '.join(sorted(known))}")


class RecompileError(UserError, RuntimeError):
    """A compile would start where `error_on_recompile`, a stance or a frozen run forbids it."""


class RecompileLimitExceeded(RecompileError):
    """A callable reached its recompile limit under `fullgraph=True` or `fail_on_recompile_limit_hit`."""


class DoubleBackwardError(UserError, RuntimeError):
    """A second derivative through a compiled graph, which has one backward only."""


# ---------------------------------------------------------------- graph breaks


@dataclass(frozen=True)
class BreakKind:
    """One reason to break the graph.  `template` and `hint` are `str.format` texts over the fields of a break."""

    id: str
    template: str
    hint: str

    @property
    def fields(self) -> frozenset[str]:
        """Names that `template` and `hint` refer to."""
        parse = string.Formatter().parse
        names = (name for text in (self.template, self.hint) for _, name, _, _ in parse(text) if name)
        return frozenset(name.split(".")[0].split("[")[0] for name in names)

    def __call__(self, user: Sequence[UserFrame] = (), **seen: Any) -> Unsupported:
        """The break, ready to raise.  `user`: the user's stack, outermost first; `seen`: the template's fields."""
        missing = self.fields - seen.keys()
        if missing:
            raise TypeError(f"graph break {self.id!r} needs {sorted(missing)}, got {sorted(seen)}")
        return Unsupported(self, tuple(user), dict(seen))


BREAKS: dict[str, BreakKind] = {}


def break_kind(id: str, template: str, hint: str) -> BreakKind:
    """Registers a reason to break the graph; its id is stable: users and tests refer to it."""
    if id in BREAKS:
        raise ValueError(f"graph break {id!r} is registered twice")
    if not id or id.strip("abcdefghijklmnopqrstuvwxyz0123456789-"):
        raise ValueError(f"graph break id {id!r}: lower-case words joined by hyphens expected")
    BREAKS[id] = BreakKind(id, template, hint)
    return BREAKS[id]


def stack_text(user: Sequence[UserFrame], indent: str = "    ") -> str:
    """The user's stack, one frame a line (its source text below it), outermost first."""
    return "\n".join(indent + str(frame).replace("\n", "\n" + indent) for frame in user)


class Unsupported(PyCompilerError):
    """A graph break.  `id` is stable; `reason` says what was seen and why; `hint` what to do; `user` where."""

    def __init__(self, kind: BreakKind, user: tuple[UserFrame, ...], seen: Mapping[str, Any]) -> None:
        super().__init__(kind.id)
        self.kind = kind
        self.user = user
        self.seen = dict(seen)

    @property
    def id(self) -> str:
        return self.kind.id

    @property
    def reason(self) -> str:
        return self.kind.template.format(**self.seen)

    @property
    def hint(self) -> str:
        return self.kind.hint.format(**self.seen)

    def at(self, user: Sequence[UserFrame]) -> Unsupported:
        """This break with the user's stack, where it has none yet."""
        if not self.user:
            self.user = tuple(user)
        return self

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
class Place:
    """Where a compile was when it failed; unknown parts are empty."""

    function: str = ""
    filename: str = ""
    lineno: int = 0
    operator: str = ""

    def __str__(self) -> str:
        known = (
            f"function {self.function}" if self.function else "",
            f"{self.filename}:{self.lineno}" if self.filename else "",
            f"operator {self.operator}" if self.operator else "",
        )
        return ", ".join(part for part in known if part)


class InternalError(PyCompilerError):
    """A bug of ours.  `place` is filled on the way out by whoever knows more (`locate`)."""

    advice = "this is a bug of pycompiler, not of your program; config.suppress_errors runs the frame eagerly"

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place or Place()

    def locate(self, **known: Any) -> InternalError:
        """Fills parts of `place` that are still empty; returns self, for `raise error.locate(...)`."""
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


class SoundnessError(InternalError):
    """An invariant between stages does not hold (IR verifier, plan check)."""
