"""Reducer of a failing program: statements, clauses, elements and expressions are removed as long as it fails.

In: the source of a program and a function that checks whether a source fails. Out: a source that fails and that no
single cut reduces (or the result when the tries are used up).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

LISTS = (
    "body",
    "orelse",
    "finalbody",
    "handlers",
    "decorator_list",
    "cases",
    "items",
    "elts",
    "generators",
    "args",
    "values",
    "keywords",
    "ops",
)


def reduced(text: str, fails: Callable[[str], bool], tries: int = 600) -> str:
    """The smallest source found."""
    tree = ast.parse(text)
    size = 8
    while tries > 0:
        progress = False
        position = 0
        while tries > 0:
            made = _cut(tree, position, size)
            if made is None:
                break
            candidate = _text(made)
            if candidate is None or candidate == ast.unparse(tree) or not _compiles(candidate):
                position += 1
                continue
            tries -= 1
            if fails(candidate):
                tree, progress = ast.parse(candidate), True
            else:
                position += 1
        if size > 1:
            size //= 2
        elif not progress:
            break
    return ast.unparse(tree) + "\n"


def _text(tree: ast.Module) -> str | None:
    """The source of a tree, or None if a cut made an invalid tree (a part of an f-string that is no string)."""
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except ValueError:
        return None


def _compiles(text: str) -> bool:
    try:
        compile(text, "<candidate>", "exec")
    except (SyntaxError, ValueError):
        return False
    return "def program" in text and "CHANGES" in text


def _cut(tree: ast.Module, position: int, size: int) -> ast.Module | None:
    """The tree after the cut of a number; None after the last one. Cuts of `size` statements; at size 1 also all other
    cuts."""
    made = copy.deepcopy(tree)
    for number, cut in enumerate(_cuts(made, size)):
        if number == position:
            cut()
            return made
    return None


def _cuts(tree: ast.AST, size: int) -> Iterator[Callable[[], None]]:
    for node in ast.walk(tree):
        for name in LISTS:
            held = getattr(node, name, None)
            if not isinstance(held, list) or not held:
                continue
            yield from _shorter(node, name, held, size)
            if size == 1 and name in ("body", "orelse", "finalbody"):
                yield from _unwrapped(held)
        if size == 1:
            yield from _simpler(node)


def _shorter(node: ast.AST, name: str, held: list[ast.AST], size: int) -> Iterator[Callable[[], None]]:
    for start in range(0, len(held), size):

        def cut(start: int = start) -> None:
            del held[start : start + size]
            if not held and name == "body":
                held.append(ast.Pass())

        if name == "values" and isinstance(node, ast.Dict):
            continue
        yield cut


def _unwrapped(held: list[ast.AST]) -> Iterator[Callable[[], None]]:
    """Replace a compound statement by one of its blocks."""
    for place, statement in enumerate(held):
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            block = getattr(statement, name, None)
            if isinstance(block, list) and block:

                def cut(place: int = place, block: list[ast.AST] = block) -> None:
                    held[place : place + 1] = block

                yield cut


def _simpler(node: ast.AST) -> Iterator[Callable[[], None]]:
    """Replace an expression by one of its subexpressions, or by a constant."""
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr) and not isinstance(getattr(value, "ctx", None), (ast.Store, ast.Del)):
            for inner in [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]:
                yield lambda inner=inner, name=name: setattr(node, name, inner)  # type: ignore[misc]
            if not isinstance(value, (ast.Constant, ast.Name)):
                yield lambda name=name: setattr(node, name, ast.Constant(1))  # type: ignore[misc]
        elif isinstance(value, list):
            for place, one in enumerate(value):
                if isinstance(one, ast.expr) and not isinstance(getattr(one, "ctx", None), (ast.Store, ast.Del)):
                    for inner in [child for child in ast.iter_child_nodes(one) if isinstance(child, ast.expr)]:
                        yield lambda inner=inner, place=place, value=value: value.__setitem__(place, inner)  # type: ignore[misc]
