"""Programs that get somewhere: statements that raise in the first call are taken out, most of them.

In: a program's text. Out: one whose first call mostly comes to its end, or None where it cannot be set up or runs for long.
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
"""Of the statements that raise where nothing catches, so many stay."""
LINES = 4000
LARGE = 200_000  # characters of all that a call leaves
DEEP = 150
FIRST = rows.PRELUDE.strip().count("\n") + 2
"""The line behind the prelude, which stays as it is."""


class TooLong(BaseException):
    """A program has run for more than `LINES` lines (a loop that appends to what it goes through), or calls `DEEP` deep: at the
    end of the stack there is no room for this to be raised, and what goes on then is not counted."""


def repaired(text: str, rng: random.Random) -> str | None:
    """The program without what raises in its first call."""
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
    """What the calls of a program do, run with its lines counted."""
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
        """Who raises is asked no more, and the program may have caught it: it is raised by each call that comes, in turns."""
        if event == "call" and frame.f_code.co_filename == check.NAME:
            sys.settrace(trace)
            raise TooLong

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = check.calls(text, lambda fn: fn)
        ended = sys.gettrace() is not trace  # a RecursionError of its own: the stack was used up inside of it
    finally:
        sys.settrace(before)
        sys.setprofile(None)
    grown = any(
        len(repr(of["state"])) > LARGE for of in made
    )  # lists that double in each call are captured by the element
    if left < 0 or ended or grown:
        raise TooLong
    return made


def without(text: str, line: int) -> str | None:
    """The program without the innermost statement at a line (one of several lines: the clause that holds it)."""
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
