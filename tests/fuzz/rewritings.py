"""Exact rewrites of a program: the results are equal bit by bit.

In: statements `t1 = ...` that set each name once, and the names of the results. Out: statements that give these the
same values.

    rewritten(("t0 = x0 - x1", "t1 = t0.abs()"), ("t1",), r)   ->   ["t1 = torch.abs(x0 + (-x1))"]
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence

# Methods that are functions of `torch` with the same arguments, and vice versa.
METHODS = frozenset(
    "abs square reciprocal floor ceil round trunc sign relu clamp clamp_min nan_to_num amax amin argmax argmin argsort max isnan isinf "
    "signbit gather index_select cumsum cummax tril t masked_fill sort any exp log sin cos tanh sigmoid erf expm1 log1p rsqrt softmax "
    "log_softmax logsumexp sum mean var prod".split()
)
FUNCTIONS = frozenset("maximum minimum fmax copysign remainder fmod div add sub addcmul addcdiv lerp".split())
MIRRORED = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


class _Expressions(ast.NodeTransformer):
    """Rewrites a place with a chance of one half. `doubling`: also where one use of a value becomes two, which changes
    the order of its gradient's sum."""

    def __init__(self, r: random.Random, doubling: bool) -> None:
        self.r, self.doubling = r, doubling

    def visit(self, node: ast.AST) -> ast.AST:
        node = self.generic_visit(node)
        return self.other(node) if self.r.random() < 0.5 else node

    def other(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.BinOp(left, ast.Sub(), right):
                return ast.BinOp(left, ast.Add(), ast.UnaryOp(ast.USub(), right))
            case ast.BinOp(left, ast.Mult(), ast.Constant(2 | 4 | 8 as n)) if self.doubling:
                for _ in range(n.bit_length() - 1):
                    left = ast.Call(ast.parse("lambda v: v + v", mode="eval").body, [left], [])
                return left
            case ast.Compare(left, [op], [right]) if type(op) in MIRRORED:
                return ast.Compare(right, [MIRRORED[type(op)]()], [left])
            case ast.Call(ast.Attribute(ast.Name("torch"), "where"), [m, a, b]):
                flipped = ast.UnaryOp(ast.Invert(), m)
                return (
                    ast.Call(ast.Attribute(b, "where"), [flipped, a], [])
                    if self.r.random() < 0.5
                    else ast.Call(node.func, [flipped, b, a], [])
                )
            case ast.Call(ast.Attribute(ast.Name("torch"), name), [first, *rest], keywords) if name in FUNCTIONS:
                return ast.Call(ast.Attribute(first, name), rest, keywords)
            case ast.Call(ast.Attribute(owner, name), args, keywords) if (
                name in METHODS and ast.unparse(owner) != "torch"
            ):
                return ast.Call(ast.Attribute(ast.Name("torch"), name), [owner, *args], keywords)
        return node


def rewritten(body: Sequence[str], results: Sequence[str], r: random.Random, training: bool = False) -> list[str]:
    """Equivalent statements; with `training`, gradients are summed in the order of the original program."""
    rewriter = _Expressions(r, doubling=not training)
    values = {a.targets[0].id: rewriter.visit(a.value) for a in ast.parse("\n".join(body)).body}  # type: ignore[attr-defined]
    lines = {name: ast.unparse(ast.fix_missing_locations(value)) for name, value in values.items()}
    if not training:
        lines = _inlined(lines, results, r)
        lines = {name: lines[name] for name in _order(lines, r)}
    return list(_statements(lines, r))


def _names(text: str) -> list[str]:
    return [n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and n.id != "torch"]


def _inlined(lines: dict[str, str], results: Sequence[str], r: random.Random) -> dict[str, str]:
    """Moves a value that is used once into its use, at random."""
    for name in list(lines):
        uses = [user for user, text in lines.items() for n in _names(text) if n == name]
        if len(uses) == 1 and name not in results and r.random() < 0.5:
            lines[uses[0]] = re.sub(rf"\b{name}\b", f"({lines.pop(name)})", lines[uses[0]])
    return lines


def _order(lines: dict[str, str], r: random.Random) -> Iterator[str]:
    """A random order in which each value follows its operands."""
    left = dict(lines)
    while left:
        yield (chosen := r.choice([name for name, text in left.items() if not left.keys() & set(_names(text))]))
        del left[chosen]


def _statements(lines: dict[str, str], r: random.Random) -> Iterator[str]:
    """Each statement unchanged, as a call of a helper, or neighbours as a loop over a list of functions."""
    waiting: dict[str, str] = {}
    for name, text in [*lines.items(), ("", "")]:
        looped = bool(name) and not waiting.keys() & set(_names(text)) and r.random() < (0.7 if waiting else 0.3)
        if waiting and not looped:
            yield f"made, parts = [], [{', '.join(f'lambda: {t}' for t in waiting.values())}]"
            yield "for part in parts:\n        made.append(part())"
            yield f"{', '.join(waiting)}, = made"
            waiting = {}
        if looped:
            waiting[name] = text
        elif name and r.random() < 0.4:
            given = ", ".join(dict.fromkeys(n for n in _names(text) if n not in ("v", "root")))
            yield f"helper = lambda {given}: {text}"
            yield f"{name} = helper({given})"
        elif name:
            yield f"{name} = {text}"
