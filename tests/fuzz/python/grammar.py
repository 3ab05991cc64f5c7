"""Grammar that writes programs: rows of source with holes.

In: rows by type (expressions) and rows of statements. Out: source. Holes of a row:

- `<int>`: an expression of that type; `<int|v:int>`: one in which `v` is a variable, too;
- `<=int>`: a name that is bound to a value of that type from here on; `<+int>`: a name that only the blocks below see;
- `<block>`, on a line of its own: statements;
- `<new:f>`: a fresh name, the same in the whole row; `<do:kind>`: source from a method of the writer.

A row may begin with `feature: `: only programs that have the feature use the row.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

HOLE = re.compile(r"<([=+]?)([a-z]+)((?:\|\w+:\w+)*)>|<new:(\w+)>")
NAMES = {
    "int": "ijk", "tensor": "vwz", "list": ("l1", "l2"), "obj": ("a", "b"), "dict": ("d1", "d2"), "str": ("s1",),
    "bool": ("ok",), "tensors": ("ts",), "set": ("st",), "fn": ("f1",), "tfn": ("g1",), "pair": ("p1",), "rec": ("r1",),
    "queue": ("q1",), "tdict": ("td",), "ints": ("it",), "scalar": ("c",), "mod": ("m1",), "float": ("fl",), "objs": ("os",),
    "view": ("u1", "u2"), "param": ("w1",), "buf": ("b1", "b2"), "raw": ("ba",), "rng": ("rg",), "dec": ("de",), "cls": ("K1", "K2"),
}  # fmt: skip
"""The names of variables of each type."""
DEEP = 2
"""Limit of the nesting of expressions."""


@dataclass
class Scope:
    """The names that statements at one place may use, and the actions allowed there."""

    names: dict[str, list[str]]
    loop: bool = False
    handler: bool = False
    yields: bool = False
    returns: str | None = None
    """The type that a `return` here gives; None: no `return` may stand here."""
    level: int = 0
    """Number of enclosing functions: each function binds names of its own, so that the names read from outer functions
    are bound."""
    depth: int = 0

    def inner(self, **changes: object) -> Scope:
        names = {kind: list(of) for kind, of in self.names.items()}
        return replace(self, names=names, depth=self.depth + 1, **changes)  # type: ignore[arg-type]

    def bind(self, kind: str, name: str) -> None:
        for of in self.names.values():
            if name in of:
                of.remove(name)
        self.names.setdefault(kind, []).append(name)


@dataclass
class Grammar:
    """The rows that a program with some features may use."""

    expressions: dict[str, list[str]]
    statements: list[str]

    @classmethod
    def of(cls, expressions: Mapping[str, Iterable[str]], statements: Iterable[str], features: set[str]) -> Grammar:
        def kept(rows: Iterable[str]) -> list[str]:
            made = []
            for row in rows:
                feature, colon, rest = row.partition(": ")
                if not (colon and feature.isidentifier() and feature[0].isupper()):
                    made.append(row)
                elif feature in features:
                    made.append(rest)
            return made

        return cls({kind: kept(rows) for kind, rows in expressions.items()}, kept(statements))


@dataclass
class Writer:
    """Writes the source of one program."""

    rng: random.Random
    grammar: Grammar
    literals: Mapping[str, tuple[str, ...]]
    budget: int = 0
    serial: int = 0
    fresh: dict[str, str] = field(default_factory=dict)

    # expressions ------------------------------------------------------------------------------------------------
    def expression(self, kind: str, scope: Scope, depth: int = 0) -> str:
        """The source of an expression of a type."""
        known = scope.names.get(kind, ())
        if depth > DEEP or self.rng.random() < (0.25, 0.5, 0.75)[depth]:
            if known and self.rng.random() < 0.85:
                return self.rng.choice(known)
            return self.filled(self.rng.choice(self.literals[kind]), scope, depth + 1)
        return self.filled(self.rng.choice(self.grammar.expressions[kind]), scope, depth + 1)

    def filled(self, row: str, scope: Scope, depth: int, bound: list[tuple[str, str, str]] | None = None) -> str:
        """A row (or a line of one) without holes; names that it binds are put into `bound`."""

        def fill(hole: re.Match[str]) -> str:
            mark, kind, more, new = hole.groups()
            if new is not None:
                if new not in self.fresh:
                    self.serial += 1
                    self.fresh[new] = f"{new}{self.serial}"
                return self.fresh[new]
            if mark:
                name = self.rng.choice(NAMES[kind]) + "_" * scope.level
                assert bound is not None, row
                bound.append((mark, kind, name))
                return name
            if more:
                inner = scope.inner()
                for pair in more[1:].split("|"):
                    name, _, of = pair.partition(":")
                    inner.bind(of, name)
                return self.expression(kind, inner, depth)
            return self.expression(kind, scope, depth)

        return HOLE.sub(fill, row)

    # statements -------------------------------------------------------------------------------------------------
    def block(self, scope: Scope, indent: str, most: int = 3) -> list[str]:
        """Statements of a block, at least one."""
        made: list[str] = []
        for _ in range(self.rng.randint(1, most)):
            if self.budget > 0:
                self.budget -= 1
                made += self.statement(scope, indent)
        return made or [indent + "pass"]

    def statement(self, scope: Scope, indent: str) -> list[str]:
        while True:
            row = self.rng.choice(self.grammar.statements)
            if self.fits(row, scope):
                return self.written(row, scope, indent)

    def fits(self, row: str, scope: Scope) -> bool:
        """Whether a row may stand at a place."""
        if "<block>" in row and (scope.depth > 3 or self.budget < 1):
            return False
        first = row.split(None, 1)[0]
        if first in ("break", "continue"):
            return scope.loop
        if row == "raise" or "raise <error> from e" in row:
            return scope.handler
        if "yield" in row and "def " not in row:
            return scope.yields
        if first == "return" or ": return" in row:
            return scope.returns is not None and not scope.yields
        return True

    def written(self, row: str, scope: Scope, indent: str) -> list[str]:
        """The lines of a row of statements."""
        outer, self.fresh = self.fresh, {}
        made: list[str] = []
        places = [(-1, scope)]
        for text in row.splitlines():
            shift, text = len(text) - len(text.lstrip()), text.lstrip()
            while places[-1][0] >= shift:
                places.pop()
            place, deeper = places[-1][1], indent + " " * shift
            if text == "<block>":
                made += self.block(place, deeper)
                continue
            bound: list[tuple[str, str, str]] = []
            text = self.filled(text.replace("<returned>", f"<{place.returns or 'int'}>"), place, 0, bound)
            made.append(deeper + text)
            if text.endswith(":"):
                places.append((shift, self.below(text, place)))
            for _, kind, name in bound:
                places[-1][1].bind(kind, name)
        for name in DEFINES.findall(row):
            scope.bind({"f": "fn", "g": "tfn"}[name], self.fresh[name])
        self.fresh = outer
        return made

    def below(self, header: str, scope: Scope) -> Scope:
        """The scope of a block under a header: a function's parameters are `t`, `k`, `o` by their names."""
        word = header.split(None, 1)[0]
        if word == "def":
            own = re.findall(r"\w+", header)[2:]
            made = scope.inner(loop=False, handler=False, yields="gen" in header or "__iter__" in header,
                               level=scope.level + 1, returns="tensor" if "t" in own[:2] else "int")  # fmt: skip
            for name in own:
                if name in PARAMETERS:
                    made.bind(PARAMETERS[name], name)
            return made
        return scope.inner(
            loop=scope.loop or word in ("for", "while"), handler=scope.handler or word.startswith("except")
        )


DEFINES = re.compile(r"def <new:([fg])>")
PARAMETERS = {"t": "tensor", "k": "int", "other": "obj", "ls": "list"}
