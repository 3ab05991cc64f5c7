"""Numbers and names in a readable form.

In: numbers, and names of functions and places.  Out: strs.
"""

from __future__ import annotations

import re

from pycompiler.debug.describe import Data


def nanoseconds(ns: float | None) -> str:
    if ns is None:
        return "–"
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if ns < 1000 * size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def size(n: int | float | None) -> str:
    if n is None:
        return "–"
    for unit, unit_size in (("B", 1), ("KiB", 2**10), ("MiB", 2**20)):
        if n < 1024 * unit_size:
            return f"{n / unit_size:.3g} {unit}"
    return f"{n / 2**30:.3g} GiB"


def short(text: str, longest: int = 160) -> str:
    """Shortened, since a guard on a long list has a long str."""
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def name(graph: Data) -> str:
    return (
        f"{graph['kind']} graph {graph['number']}"
        + (f" of model {graph['model']}" if graph["model"] is not None else "")
        + (f", {graph.get('id') or ''} {graph['title']}" if graph.get("title") else "")
    )


RESUMED = re.compile(r"resume_in_(.*)_at_(\d+)$")


def title(function: str) -> str:
    """The name of a function in the program; a resume function gets the name of its function."""
    return RESUMED.sub(r"\1 (from line \2 on)", function)


def place(where: str) -> str:
    """`file:line in function`, with the function's name in the program in place of a resume function's."""
    return RESUMED.sub(r"\1", where)


def begins(function: Data) -> str:
    """`file:line` where a function begins; for a resume function, where it resumes."""
    found = RESUMED.search(function["function"])
    return f"{function['file']}:{found[2] if found else function['line']}"
