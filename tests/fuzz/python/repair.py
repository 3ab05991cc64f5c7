"""Repair of programs: most statements that raise in the first call are removed.

In: the source of a program. Out: a source whose first call mostly runs to its end, or None if its setup fails or it
runs too long.
"""

from __future__ import annotations

import ast
import random
import sys
import types
import warnings
from typing import Any

from fuzz.python import check, rows

ROUNDS = 8
KEPT = 0.12
"""Share of the uncaught statements that raise and still stay."""
LINES = 4000
LARGE = 200_000  # characters of the state after a call
DEEP = 150
FIRST = rows.PRELUDE.strip().count("\n") + 2
"""The first line after the prelude, which stays unchanged."""


class TooLong(BaseException):
    """A program ran more than `LINES` lines (a loop that appends to the list it iterates over), or calls `DEEP` deep.
    At the end of the stack this exception cannot be raised, and further lines are not counted; hence the limit of
    the depth."""


def repaired(text: str, rng: random.Random) -> str | None:
    """The program without most statements that raise in its first call."""
    compile(text, check.NAME, "exec")
    for _ in range(ROUNDS):
        try:
            made = tried(text)
        except (TooLong, Exception):
            return None
        line = next(iter(made[0].get("inside", ())), None)
        if line is None or rng.random() < KEPT:
            return text
        shorter = without(text, line)
        if shorter is None:
            return text
        text = shorter
    return text


def tried(text: str) -> list[dict[str, Any]]:
    """The observations of the program's calls, run with a count of its lines."""
    left, depth = LINES, 0

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        nonlocal left, depth
        if frame.f_code.co_filename != check.NAME:
            return None
        left -= event == "line"
        depth += (event == "call") - (event == "return")
        if left < 0 or depth > DEEP or event == "exception" and issubclass(arg[0], RecursionError):
            left = -1
            sys.setprofile(again)
            raise TooLong
        return trace

    def again(frame: types.FrameType, event: str, arg: Any) -> None:
        """Raise `TooLong` at each further call: Python removes a trace function that raises, and the program may have
        caught it."""
        if event == "call" and frame.f_code.co_filename == check.NAME:
            sys.settrace(trace)
            raise TooLong

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = check.calls(text, lambda fn: fn)
        ended = sys.gettrace() is not trace  # the program had a RecursionError of its own: the stack was used up
    finally:
        sys.settrace(before)
        sys.setprofile(None)
    grown = any(
        len(repr(of["state"])) > LARGE for of in made
    )  # capture handles lists that double in each call element by element
    if left < 0 or ended or grown:
        raise TooLong
    return made


def without(text: str, line: int) -> str | None:
    """The program without the innermost statement at a line (for a statement of several lines: without its clause)."""
    found: list[tuple[int, ast.stmt]] = []
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.stmt)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and node.lineno > FIRST
        ):
            found.append(((node.end_lineno or node.lineno) - node.lineno, node))
    if not found:
        return None
    node = min(found, key=lambda pair: pair[0])[1]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Return)):
        return None
    lines = text.split("\n")
    lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + "pass"]
    made = "\n".join(lines)
    try:
        compile(made, check.NAME, "exec")
    except SyntaxError:
        return None
    return made
