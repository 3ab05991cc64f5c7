"""The parts of an entry as plain data: a template of the results, or code with holes for objects that the capture does
not know.

In: a capture.  Out: a `Recipe`.  Together with the compiled graph it becomes an entry, in this process or in another
that reads it from a file.  So a capture does not depend on the compilation of its graph, which may come later, in another
thread, or never.

The code is bytecode, since code that breaks the graph runs the program's own instructions under its exception table.
Any other form would be compiled to bytecode anyway; `dis` prints it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pycompiler.capture.recording.data_errors import ErrorsOfData
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Source
from pycompiler.ir.weak_guards import weak_guards, weak_source, weakly_held


@dataclass(frozen=True)
class Recipe:
    """Calls that pass `guards` return the `template`, filled with the graph's results, or run `code` with its holes
    filled.

    Without both, the original code runs.

    - `inputs`: sources of the graph's inputs.
    - `hook`: the frame hook handles functions that the code calls.
    - `process`: reasons why the recipe is valid in this process only.
    - `abstract`: (class, abstract class, answer of issubclass): the answers must be the same.  Weak references where a
      class may end.
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
    """The recipe with weak references to classes that may end, as in its code."""
    taken = () if recipe.code is None else [c for c in recipe.code.co_consts if type(c) is weakref.ref]
    template = None if recipe.template is None else _weak_template(recipe.template)
    return replace(
        recipe,
        guards=weak_guards(recipe.guards, taken),
        inputs=tuple(map(weak_source, recipe.inputs)),
        template=template,
        abstract=tuple((weakly_held(cls), weakly_held(base), answer) for cls, base, answer in recipe.abstract),
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
    """Stands for an object that the assembler of the entry supplies; `name` says which."""

    name: str


GRAPH = Hole("compiled graph")
TAIL_CALL = Hole("tail call")


@dataclass(frozen=True, eq=False)
class Resume(Hole):
    """The compiled function that continues after a graph break: `code` in `namespace`."""

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
