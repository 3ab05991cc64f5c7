"""Generated code as data: what a capture cannot know stands as a hole among its constants, until the frame is assembled.

In: a code object whose constants contain holes.  Out: the same with objects in their places.  So a capture calls nobody:
its graph may be compiled later, in another thread or not at all, and its code means the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Hole:
    """Stands for an object that the assembling side has; `name` says which."""

    name: str


GRAPH = Hole("compiled graph")
TAIL_CALL = Hole("tail call")


@dataclass(frozen=True, eq=False)
class Resume(Hole):
    """The compiled function that goes on after a break: `code` in `namespace`."""

    code: types.CodeType
    namespace: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, code: types.CodeType, namespace: dict[str, Any]) -> Resume:
        return cls(f"resume function {code.co_name}", code, namespace)


def holes(code: types.CodeType) -> list[Hole]:
    return [c for c in code.co_consts if isinstance(c, Hole)]


def fill(code: types.CodeType, answer: Callable[[Hole], object]) -> types.CodeType:
    """`code` with `answer(hole)` in place of each hole."""
    return code.replace(co_consts=tuple(answer(c) if isinstance(c, Hole) else c for c in code.co_consts))
