"""A tensor program as source: inputs, statements, results.

`script()` is a file that can be pasted and run; `load()` gives `make` (new leaves and arguments) and `fn`.
"""

from __future__ import annotations

import itertools
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

PRELUDE = '''\
import contextlib
import math
import torch
import torch.nn.functional as F

DEVICE = "{device}"


def data(seed, *shape, dtype=torch.float64, low=-4, high=9):
    """Values by seed: normal ones, integers from low to high, coins."""
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        t = torch.rand(shape, generator=g) > 0.5
    elif dtype.is_complex:
        t = torch.complex(*torch.randn((2, *shape), generator=g, dtype=torch.float64).unbind()).to(dtype)
    elif dtype.is_floating_point:
        t = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
    else:
        t = torch.randint(low, high, shape, generator=g).to(dtype)
    return t.to(DEVICE)


def order(seed, n, k):
    """k different numbers below n."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:k].to(DEVICE)

'''
CHECK = """

if __name__ == "__main__":
    import pycompiler

    pycompiler.config.raise_internal_errors = True
    for f in (fn, pycompiler.compile(fn, backend="{backend}")):
        leaves, args = make()
        results = f(*args)
        print([(r, r.stride()) if isinstance(r, torch.Tensor) else r for r in results])
        for seed, r in enumerate(results):
            if isinstance(r, torch.Tensor) and r.requires_grad:
                r.backward(data(seed, *r.shape, dtype=r.dtype), retain_graph=True)
        print([a.grad for a in leaves if isinstance(a, torch.Tensor)])
        print("arguments", args)
"""
NAME = re.compile(r"\b[atx]\d+\b")
_lines = itertools.count()


@dataclass(frozen=True)
class Program:
    """`leaves`: lines `a0 = data(...)`; `arguments`: lines `x0 = a0[::2]`; `statements` of `fn`; names it returns.

    `gradients`: a row of `compare.GRADIENTS`, the way to differentiate the results.
    `exact`: results of exact operators on another result (`generate.CONSUMERS`), which nothing writes afterwards.
    """

    seed: int
    leaves: tuple[str, ...]
    arguments: tuple[str, ...]
    statements: tuple[str, ...]
    results: tuple[str, ...]
    gradients: str = "random"
    exact: tuple[str, ...] = ()

    def body(self) -> str:
        leaves = [*self.leaves, *self.arguments]
        made = ", ".join(defined(line) for line in self.leaves)
        args = ", ".join(defined(line) for line in self.arguments)
        lines = [line for s in self.statements for line in s.split("\n")]
        lines.append(f"return ({', '.join(self.results)}{',' if len(self.results) == 1 else ''})")
        return "\n".join([
            "def make():", *(f"    {line}" for line in leaves), f"    return [{made}], [{args}]", "", "",
            f"def fn({args}):", *(f"    {line}" for line in lines), ""])  # fmt: skip

    def script(self, device: str = "cpu", backend: str = "native") -> str:
        """The file of this program; run, it prints the results of eager and of compiled code."""
        head = f"# seed {self.seed}, gradients: {self.gradients}\n"
        return head + PRELUDE.replace("{device}", device) + "\n" + self.body() + CHECK.replace("{backend}", backend)

    def load(self, device: str = "cpu") -> tuple[Callable[[], tuple[list[Any], list[Any]]], Callable[..., Any]]:
        namespace = dict(prelude(device))
        exec(compile(self.body(), f"<program {self.seed}.{next(_lines)}>", "exec"), namespace)
        return namespace["make"], namespace["fn"]

    def consumers(self) -> list[tuple[int, int, str]]:
        """(place of an exact result, place of the result that it reads, the function of it), if both are returned."""
        found = []
        for statement in self.statements:
            name, _, text = statement.partition(" = ")
            operands = names(text)
            if name in self.exact and len(operands) == 1 and {name, *operands} <= set(self.results):
                (operand,) = operands
                found.append((self.results.index(name), self.results.index(operand), f"lambda {operand}: {text}"))
        return found

    def without_unused(self) -> Program:
        """The program without unused arguments and leaves."""
        used = set().union(*(names(s) for s in self.statements), self.results)
        arguments = [line for line in self.arguments if defined(line) in used]
        needed = used.union(*(names(line) for line in arguments))
        for line in reversed(self.arguments):  # an argument may be built from an earlier one
            if defined(line) in needed and line not in arguments:
                arguments.append(line)
                needed |= names(line)
        leaves = [line for line in self.leaves if defined(line) in needed]
        return replace(self, leaves=tuple(leaves), arguments=tuple(a for a in self.arguments if a in arguments))


_preludes: dict[str, dict[str, Any]] = {}


def prelude(device: str) -> dict[str, Any]:
    """The names that programs can use."""
    if device not in _preludes:
        module = types.ModuleType("program")
        exec(PRELUDE.replace("{device}", device), module.__dict__)
        _preludes[device] = module.__dict__
    return _preludes[device]


def names(text: str) -> set[str]:
    """The tensors that occur in a line."""
    return set(NAME.findall(text))


def defined(line: str) -> str:
    """The name that a line `name = ...` binds."""
    return line.split(" = ", 1)[0]


def bound(statement: str) -> list[str]:
    """The names that a statement, possibly a block of lines, binds."""
    found: list[str] = []
    for line in statement.split("\n"):
        left, equals, _ = line.strip().partition(" = ")
        if equals and all(NAME.fullmatch(n) for n in left.split(", ")):
            found += left.split(", ")
    return found
