"""Reducer of a failing program: statements, results, arguments, shapes, dtypes and layouts are cut as long as it
fails.

In: a program and `fails`.  Out: a smaller program that fails.
Example: `reduce(program, lambda p: compare(p).kind == "differs")`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from .program import Program, bound, defined, names

Fails = Callable[[Program], bool]
DTYPES = (
    "torch.bfloat16",
    "torch.float16",
    "torch.float32",
    "torch.complex64",
    "torch.complex128",
    "torch.int32",
    "torch.uint8",
)


def reduce(program: Program, fails: Fails, seconds: float = 120.0) -> Program:
    """The smallest program found in the time."""
    until = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < until:
        again = False
        for way in WAYS:
            found = True
            while found and time.monotonic() < until:
                found = False
                for candidate in way(program):
                    candidate = candidate.without_unused()
                    if candidate != program and holds(fails, candidate):
                        program, found, again = candidate, True, True
                        break
                    if time.monotonic() > until:
                        break
    return program


def holds(fails: Fails, program: Program) -> bool:
    try:
        return bool(program.results) and fails(program)
    except Exception:
        return False


def fewer_results(p: Program) -> Iterator[Program]:
    if len(p.results) > 1:
        for k in range(len(p.results)):
            yield replace(p, results=(p.results[k],))
        for k in range(len(p.results)):
            yield replace(p, results=p.results[:k] + p.results[k + 1 :])


def tail(p: Program) -> Iterator[Program]:
    """Programs that return the results of an earlier statement."""
    for k in range(1, len(p.statements)):
        for name in bound(p.statements[k - 1]):
            yield replace(p, statements=p.statements[:k], results=(name,))


def fewer_statements(p: Program) -> Iterator[Program]:
    """Programs without one statement; its value is replaced by one of its operands, or dropped."""
    for k in reversed(range(len(p.statements))):
        text = p.statements[k]
        made = bound(text)
        rest = p.statements[:k] + p.statements[k + 1 :]
        users = set().union(*(names(s) for s in p.statements[k + 1 :]), p.results) & set(made)
        if not users:
            yield replace(p, statements=rest)
            continue
        left = tuple(r for r in p.results if r not in made)
        if left and not set().union(*(names(s) for s in p.statements[k + 1 :])) & set(made):
            yield replace(p, statements=rest, results=left)
        for operand in sorted(names(text) - set(made)):
            for name in users:
                yield renamed(replace(p, statements=rest), name, operand, k)


def renamed(p: Program, old: str, new: str, start: int) -> Program:
    def sub(text: str) -> str:
        return re.sub(rf"\b{old}\b", new, text)

    statements = p.statements[:start] + tuple(map(sub, p.statements[start:]))
    return replace(p, statements=statements, results=tuple(map(sub, p.results)))


def simpler_arguments(p: Program) -> Iterator[Program]:
    """Programs with a contiguous argument instead of a view, or a leaf without a gradient."""
    for k, line in enumerate(p.arguments):
        name, leaf = defined(line), sorted(names(line.split(" = ", 1)[1]))
        for text in [f"{name} = {leaf[0]}", f"{name} = ({leaf[0]} * 1)"] if leaf else []:
            if len(text) < len(line):
                yield replace(p, arguments=p.arguments[:k] + (text,) + p.arguments[k + 1 :])
    for k, line in enumerate(p.leaves):
        if ".requires_grad_()" in line:
            yield replace(p, leaves=p.leaves[:k] + (line.replace(".requires_grad_()", ""),) + p.leaves[k + 1 :])
    if p.gradients != "ones":
        yield replace(p, gradients="ones")


def one_dtype(p: Program) -> Iterator[Program]:
    for old in DTYPES:
        for new in ("torch.float64",) if "complex" not in old and "int" not in old else ():
            yield everywhere(p, lambda s, old=old, new=new: s.replace(old, new))


def smaller_shapes(p: Program) -> Iterator[Program]:
    """Programs with all sizes n replaced by m; then one size of one leaf; then a number anywhere."""
    sizes = sorted({int(n) for line in p.leaves for n in re.findall(r"(?<=, )\d+(?=, )", line)}, reverse=True)
    for n in sizes:
        for m in (1, 2, 3, n // 2, n - 1):
            if 0 < m < n:
                yield everywhere(p, lambda s, n=n, m=m: re.sub(rf"(?<![\w.]){n}(?![\w.])", str(m), s))
                yield replace(p, leaves=tuple(re.sub(rf"(?<=, ){n}(?=, )", str(m), s) for s in p.leaves))
    for k, line in enumerate(p.leaves):
        for found in re.finditer(r"(?<=, )\d+, ", line):
            yield replace(p, leaves=p.leaves[:k] + (line[: found.start()] + line[found.end() :],) + p.leaves[k + 1 :])


CALL = re.compile(r"\.\w+\((?:[^()]|\([^()]*\))*\)|\[[^\[\]]*\]| [-+*/@] [\w.]+| [-+*/@] \([^()]*\)")


def shorter_text(p: Program) -> Iterator[Program]:
    """Programs without one call, index or operand of a statement."""
    for k, text in enumerate(p.statements):
        for found in CALL.finditer(text):
            shorter = text[: found.start()] + text[found.end() :]
            if " = " in text and not shorter.partition(" = ")[2].strip():
                continue
            yield replace(p, statements=p.statements[:k] + (shorter,) + p.statements[k + 1 :])
        if "\n" in text and text.startswith("with "):
            for line in text.split("\n")[1:]:
                yield replace(p, statements=p.statements[:k] + (line.strip(),) + p.statements[k + 1 :])


def everywhere(p: Program, f: Callable[[str], str]) -> Program:
    return replace(
        p, leaves=tuple(map(f, p.leaves)), arguments=tuple(map(f, p.arguments)), statements=tuple(map(f, p.statements))
    )


WAYS = (fewer_results, tail, fewer_statements, simpler_arguments, one_dtype, shorter_text, smaller_shapes)
