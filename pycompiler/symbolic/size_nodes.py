"""Symbolic numbers as nodes of an fx graph.

In: SymInts, SymFloats and SymBools that are arguments of nodes.  Out: nodes that compute them from placeholders, one per
expression, so that a graph stays runnable with real ints.  `s0 * 2 + 1` is `add(mul(s0, 2), 1)`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pycompiler.symbolic.expr import Atom, Expr
from pycompiler.symbolic.symbolic_node import OF_MATH, Real
from pycompiler.symbolic.symbols import Symbols, hint_of, symbols_of


def lesser(a: Any, b: Any) -> Any:
    """`min` of two floats with Python's order: the first, unless the second is less.

    The order matters for signed zeros and for NaN, which is not less.  `torch.sym_min` swaps the arguments.
    """
    return _extreme("sym_min", a, b) if isinstance(a, torch.SymFloat) or isinstance(b, torch.SymFloat) else min(a, b)


def greater(a: Any, b: Any) -> Any:
    """`max` of two floats with Python's order, as `lesser`."""
    return _extreme("sym_max", a, b) if isinstance(a, torch.SymFloat) or isinstance(b, torch.SymFloat) else max(a, b)


def _extreme(name: str, a: Any, b: Any) -> torch.SymFloat:
    known: Any = (a if isinstance(a, torch.SymFloat) else b).node
    first, second = (n.node if isinstance(n, torch.SymFloat) else known.wrap_float(n) for n in (a, b))
    return torch.SymFloat(getattr(first, name)(second))


def _of_math(name: str) -> Callable[[Any], Any]:
    """torch's symbolic version of a function of `math`, or a function that calls the node's method."""
    if (known := getattr(torch, f"_sym_{name}", None)) is not None:
        return known  # type: ignore[no-any-return]

    def function(a: Any) -> Any:
        if not isinstance(a, (torch.SymInt, torch.SymFloat)):
            return getattr(math, name)(a)
        node: Any = torch.sym_float(a).node
        return torch.SymFloat(getattr(node, f"sym_{name}")())

    function.__name__ = function.__qualname__ = f"math_{name}"
    globals()[function.__name__] = function
    return function


MATH = {name: _of_math(name) for name in OF_MATH}
_ATOMS: dict[str, Callable[..., Any]] = {
    "//": operator.floordiv, "%": operator.mod, "min": torch.sym_min, "max": torch.sym_max,
}  # fmt: skip
_REALS: dict[str, Callable[..., Any]] = {
    "float": torch.sym_float, "add": operator.add, "sub": operator.sub, "mul": operator.mul, "pow": operator.pow,
    "truediv": operator.truediv, "int_truediv": operator.truediv, "mod": operator.mod, "neg": operator.neg, "abs": abs,
    "min": lesser, "max": greater,
}  # fmt: skip


class SizeNodes:
    """The nodes of one graph.  `symbol(name)` creates the placeholder of a symbol; `key`: its metadata key."""

    def __init__(self, graph: fx.Graph, symbol: Callable[[str], fx.Node], key: str = "example_value") -> None:
        self.graph = graph
        self.key = key
        self.known: dict[Any, Any] = {}
        self.placeholder = symbol

    def argument(self, sym: Any) -> Any:
        """The node or constant of a symbolic number; a condition is decided now."""
        if isinstance(sym, torch.SymBool):
            return bool(sym)
        symbols = symbols_of(sym)
        if symbols is None:
            raise TypeError(f"not a symbol of ours: {sym}")
        if sym.node.constant is not None:
            return sym.node.constant
        return self._number(symbols, sym.node.value)

    def _number(self, symbols: Symbols, number: Any) -> Any:
        if isinstance(number, Expr):
            number = symbols.resolve(number)
            if number.const is not None:
                return number.const
        elif not isinstance(number, Real):
            return number
        node = self.known.get(number)
        if node is None:
            make = self._expr if isinstance(number, Expr) else self._real
            node = self.known[number] = make(symbols, number)
        return node

    def _expr(self, symbols: Symbols, expr: Expr) -> Any:
        terms = []
        for mono, c in expr.terms:
            factors: list[Any] = [self._atom(symbols, atom) for atom in mono]
            if c != 1 or not factors:
                factors.append(c)
            terms.append(functools.reduce(lambda a, b: self._call(operator.mul, a, b), factors))
        return functools.reduce(lambda a, b: self._call(operator.add, a, b), terms[::-1])

    def _atom(self, symbols: Symbols, atom: Atom) -> fx.Node:
        found = self.known.get(atom)
        if found is None:
            if atom.kind == "sym":
                found = self.placeholder(atom.key)
            else:
                found = self._call(_ATOMS[atom.kind], *(self._number(symbols, a) for a in atom.args))
            self.known[atom] = found
        return found  # type: ignore[no-any-return]

    def _real(self, symbols: Symbols, real: Real) -> Any:
        if real.name is not None:
            return self.placeholder(real.name)
        fn = _REALS.get(real.op) or MATH[real.op]
        return self._call(fn, *(self._number(symbols, a) for a in real.args))

    def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        values = [a.meta[self.key] if isinstance(a, fx.Node) else a for a in args]
        result = fn(*values)
        if not any(isinstance(a, fx.Node) for a in args):
            return hint_of(result)
        node = self.graph.call_function(fn, args)
        node.meta[self.key] = result
        return node
