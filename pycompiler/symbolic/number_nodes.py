"""Numbers computed from symbolic sizes, as nodes of an fx graph and as Python code.

In: our SymInts and SymFloats (`symbolic.symbols`), and the places of their symbols.
Out: nodes that compute them from placeholders, each expression once, so that a graph runs with ints; or generated code.

    Numbers(graph, {"s0": placeholder}).node(s0 * 2)      # operator.mul(s0, 2)
    text_of(s0 * 2, {"s0": "args[0]"})                    # "2*args[0]"
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbolic_node import REAL, Real, SymbolicNode
from pycompiler.symbolic.symbols import Specialise, Symbols, expr_of, symbols_of

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ATOMS: dict[str, Callable[..., Any]] = {"//": operator.floordiv, "%": operator.mod, "min": min, "max": max}


def is_number(target: object) -> bool:
    """Whether a node's target computes a number from numbers."""
    return target in _TARGETS


_TARGETS = frozenset((operator.add, operator.mul, *_ATOMS.values(), *REAL.values()))


def value_of(number: Any) -> Any:
    """The Expr or Real of a symbolic number; an int or float if its value is known."""
    if isinstance(number, torch.SymInt):
        e = expr_of(number)
        return e if e.const is None else e.const
    if not isinstance(number, SYMBOLIC):
        return number
    node: Any = number.node
    return resolved(node.env, node.value)


def number_at(number: Any, env: Mapping[str, Any]) -> Any:
    """The number that a size has for the symbol values in `env`."""
    value = value_of(number)
    return value.eval(env) if isinstance(value, (Expr, Real)) else value


def resolved(env: Symbols, value: Any) -> Any:
    """The value over the remaining symbols, after replacements."""
    if isinstance(value, Expr):
        return env.resolve(value)
    if isinstance(value, Real) and value.name is None:
        return replace(value, args=tuple(resolved(env, a) for a in value.args))
    return value


class Numbers:
    """Nodes for symbolic numbers.  `symbols`: the node of each symbol."""

    def __init__(self, graph: fx.Graph, symbols: dict[str, fx.Node]) -> None:
        self.graph = graph
        self.symbols = symbols
        self.known: dict[Any, fx.Node] = {}

    def arguments(self, value: Any) -> Any:
        """`value` with its symbolic numbers replaced by nodes."""
        if isinstance(value, SYMBOLIC):
            return self.node(value)
        if isinstance(value, (list, tuple)):
            made = [self.arguments(v) for v in value]
            return tuple(made) if isinstance(value, tuple) and not isinstance(value, torch.Size) else made
        if isinstance(value, dict):
            return {k: self.arguments(v) for k, v in value.items()}
        return value

    def node(self, number: Any) -> Any:
        """The node of a SymInt or SymFloat, or its number if the value is known."""
        env = symbols_of(number)
        if env is None or isinstance(number, torch.SymBool):
            raise Specialise((), f"{number!r} is an argument of an operator")
        return self._made(env, value_of(number))

    def _made(self, env: Symbols, value: Any) -> Any:
        if not isinstance(value, (Expr, Real)):
            return value
        if isinstance(value, Expr) and value.const is not None:
            return value.const
        if value not in self.known:
            self.known[value] = self._real(env, value) if isinstance(value, Real) else self._expr(env, value)
        return self.known[value]

    def _real(self, env: Symbols, value: Real) -> fx.Node:
        if value.name is not None:
            return self._symbol(value.name)
        args = tuple(self._made(env, env.resolve(a) if isinstance(a, Expr) else a) for a in value.args)
        return self._call(env, value, REAL[value.op], *args)

    def _expr(self, env: Symbols, e: Expr) -> fx.Node:
        """Sums and products from left to right; the nodes of the operands come first."""
        if e.symbol is not None:
            return self._symbol(e.symbol)
        total: Any = None
        so_far = Expr.of(0)
        for mono, c in e.terms:
            product: Any = c
            term = Expr.of(c)
            for atom in mono:
                factor, made = self._atom(env, atom)
                term = term * factor
                product = made if product == 1 else self._call(env, term, operator.mul, product, made)
            so_far = so_far + term
            total = product if total is None else self._call(env, so_far, operator.add, total, product)
        assert isinstance(total, fx.Node)
        return total

    def _atom(self, env: Symbols, atom: Any) -> tuple[Expr, Any]:
        if atom.kind == "sym":
            return Expr.sym(atom.key), self._symbol(atom.key)
        value = Expr.of_atom(atom)
        if value not in self.known:
            a, b = (self._made(env, x) for x in atom.args)
            self.known[value] = self._call(env, value, _ATOMS[atom.kind], a, b)
        return value, self.known[value]

    def _symbol(self, name: str) -> fx.Node:
        if name not in self.symbols:
            raise Specialise((name,), "the graph has no input that is this size")
        return self.symbols[name]

    def _call(self, env: Symbols, value: Any, target: Callable[..., Any], *args: Any) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = env.int(value) if isinstance(value, Expr) else _float(env, value)
        return node


def _float(env: Symbols, value: Real) -> torch.SymFloat:
    node: Any = SymbolicNode(env, value)
    return torch.SymFloat(node)


def text_of(value: Any, names: Mapping[str, str]) -> str | None:
    """Python code of a value with symbolic ints; None for a value without them.  `names` renames the symbols."""
    if isinstance(value, torch.SymInt):
        found = value_of(value)
        return f"({found.to_py(names)})" if isinstance(found, Expr) else str(found)
    if isinstance(value, (list, tuple)):
        texts = [text_of(v, names) for v in value]
        if all(t is None for t in texts):
            return None
        parts = "".join(f"{repr(v) if t is None else t}, " for v, t in zip(value, texts, strict=True))
        return f"({parts})" if isinstance(value, tuple) else f"[{parts}]"
    return None


def real_text(value: Any, names: Mapping[str, str]) -> str:
    """Python code of a Real; `math` must be in scope."""
    if isinstance(value, Expr):
        return f"({value.to_py(names)})"
    if not isinstance(value, Real):
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if value.name is not None:
        return names.get(value.name, value.name)
    args = [real_text(a, names) for a in value.args]
    sign = _SIGNS.get(value.op)
    if sign is not None:
        return f"({f' {sign} '.join(args)})"
    form = {"neg": "-{0}", "abs": "abs({0})", "min": "min({0}, {1})", "max": "max({0}, {1})", "float": "float({0})"}
    return form.get(value.op, f"math.{value.op}({{0}})").format(*args)


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "int_truediv": "/", "pow": "**", "mod": "%"}


def symbol_of(number: Any) -> str | None:
    """The name of the symbol that a number consists of; None for every other value."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return None
    value = value_of(number)
    return value.symbol if isinstance(value, Expr) else value.name if isinstance(value, Real) else None


def symbols_in(values: Sequence[Any]) -> set[str]:
    """The symbols of the sizes and strides of tensors, and of numbers, in nested sequences."""
    found: set[str] = set()
    for v in values:
        if isinstance(v, torch.Tensor):
            if v.layout is torch.strided:
                found |= symbols_in((*v.shape, *v.stride(), v.storage_offset()))
        elif isinstance(v, torch.SymInt):
            found |= expr_of(v).symbols
        elif isinstance(v, torch.SymFloat):
            real = value_of(v)
            found |= real.symbols if isinstance(real, Real) else set()
        elif isinstance(v, (list, tuple)):
            found |= symbols_in(v)
    return found
