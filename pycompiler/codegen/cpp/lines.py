"""Lines of C++: indentation and nested loops."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class InnerLoop:
    """for (var = start; var < end; var += step)"""

    var: str
    start: str
    end: str
    step: int = 1


def indent(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + line if not line.startswith("#") else line for line in lines]


def opened(loops: list[str]) -> list[str]:
    return ["    " * k + line for k, line in enumerate(loops)]


def closed(count: int) -> list[str]:
    return ["    " * k + "}" for k in reversed(range(count))]


def nested(loops: list[InnerLoop], body: list[str]) -> list[str]:
    heads = [
        f"for (int64_t {p.var} = {p.start}; {p.var} < {p.end}; {p.var}{'++' if p.step == 1 else f' += {p.step}'}) {{"
        for p in loops
    ]
    return [*opened(heads), *indent(body, len(loops)), *closed(len(loops))]
