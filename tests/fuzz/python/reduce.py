"""Cuts a failing program down: statements, clauses, elements and expressions go as long as it fails.

In: a program's text and what says whether a text fails. Out: a text of which no single cut fails (or the tries are used up).
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
    """The smallest text found."""
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
    """The text of a tree, or None where a cut has left what has none (a part of an f-string that is no text)."""
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
    """The tree after the cut of a number; None behind the last one. Cuts of `size` statements; at 1, everything else, too."""
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
    """A compound statement gives way to one of its blocks."""
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
    """An expression gives way to one of those inside of it, or to a constant."""
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
