"""What an entry is made of, as data: how results are built, or code in which what a capture cannot know stands as a hole.

In: a capture.  Out: a `Recipe`; with the compiled graph it is an entry, in this process or in one that reads it from a file.
So a capture calls nobody: its graph may be compiled later, in another thread or not at all, and its recipe means the same.

Code is bytecode, not a tree of ours: what breaks runs by the program's own instructions under its own table of exceptions, so
any other form would be turned into this one; `dis` prints it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pycompiler.capture.errors_of_data import ErrorsOfData
from pycompiler.ir.guards import Guard
from pycompiler.ir.mortal import held, weak_guards, weak_source
from pycompiler.ir.source import Source


@dataclass(frozen=True)
class Recipe:
    """Calls that pass `guards` get the `template`, built of the graph's results, or run `code` with its holes filled; where
    there is neither, the original code does as well.

    inputs: where the graph's are.  hook: functions that the code calls are met by the frame hook.  process: why it means nothing
    in another process.  abstract: (class, abstract class, whether it was one), which must be so again; by weak references where
    they may end.
    """

    guards: list[Guard]
    inputs: tuple[Source, ...] = ()
    template: tuple[str, Any] | None = None
    code: types.CodeType | None = None
    hook: bool = False
    errors: ErrorsOfData = field(default_factory=ErrorsOfData)
    process: tuple[str, ...] = ()
    abstract: tuple[tuple[Any, Any, bool], ...] = ()


def weakly(recipe: Recipe) -> Recipe:
    """The recipe, holding classes that may end by weak references, as its code does."""
    taken = () if recipe.code is None else [c for c in recipe.code.co_consts if type(c) is weakref.ref]
    template = None if recipe.template is None else _weak_template(recipe.template)
    return replace(
        recipe,
        guards=weak_guards(recipe.guards, taken),
        inputs=tuple(map(weak_source, recipe.inputs)),
        template=template,
        abstract=tuple((held(cls), held(base), answer) for cls, base, answer in recipe.abstract),
    )


def _weak_template(template: Any) -> Any:
    kind, parts = template
    if kind in ("tuple", "list"):
        return kind, [_weak_template(part) for part in parts]
    if kind == "dict":
        return kind, [(key, _weak_template(part)) for key, part in parts]
    return kind, weak_source(parts) if kind == "source" else parts


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
        return cls(f"resume function {code.co_qualname}", code, namespace)


def holes(code: types.CodeType) -> list[Hole]:
    return [c for c in code.co_consts if isinstance(c, Hole)]


def fill(code: types.CodeType, answer: Callable[[Hole], object]) -> types.CodeType:
    """`code` with `answer(hole)` in place of each hole."""
    return code.replace(co_consts=tuple(answer(c) if isinstance(c, Hole) else c for c in code.co_consts))
