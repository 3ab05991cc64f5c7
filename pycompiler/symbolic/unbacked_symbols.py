"""Unbacked symbols: `.item()`, and sizes that depend on data, known only at run time.

In: a graph's nodes that read such numbers.  Out: functions that are the targets of these nodes and run with real numbers,
and results of fake tensors while symbols stand for the numbers (`BINDS`).

Symbols are never negative.  So an integer read from data is the difference of two symbols, its positive and negative
part.  No guard can check an assumption about an unbacked symbol.  `UnbackedCheck` does, as soon as all such symbols of a graph
are known.  If an assumption fails, `UnbackedCheck` raises `Unfit` and the frame runs eagerly.
So capture must not bind a symbol after an action that cannot be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from pycompiler.errors import Unfit
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbols import LIMIT, Specialise, Symbols, expr_of, symbols_of

aten = torch.ops.aten


def size(t: torch.Tensor, dim: int) -> Any:
    """The size of a result that depends on data."""
    return t.shape[dim]


def positive(n: Any) -> Any:
    """n, or 0 if n is negative."""
    return _parts(n)[0]


def negative(n: Any) -> Any:
    """-n, or 0 if n is positive."""
    return _parts(n)[1]


def _parts(n: Any) -> tuple[Any, Any]:
    env = symbols_of(n)
    if env is None:
        if n < -LIMIT:
            raise Unfit(f"{n}, whose negation does not fit into 64 bits")
        return max(n, 0), max(-n, 0)
    expr = env.resolve(expr_of(n))
    if env.known(">=", expr):
        return n, 0
    if env.known(">=", -expr):
        return 0, -n
    signs = {c: mono for mono, c in expr.terms}
    if len(expr.terms) == 2 and signs.keys() == {1, -1} and all(len(m) == 1 for m in signs.values()):
        return tuple(env.int(Expr.of_atom(signs[c][0])) for c in (1, -1))  # type: ignore[return-value]
    raise Specialise(expr.symbols, "the sign of an expression that is not a single symbol")


class UnbackedCheck:
    """Called with the values of `names`; raises `Unfit` if an assumption of `symbols` fails.

    `symbols` may gain further assumptions until the graph runs.
    """

    def __init__(self, symbols: Symbols, names: Sequence[str]) -> None:
        self.symbols, self.names = symbols, tuple(names)
        self.__name__, self.__qualname__, self.__module__ = "check", "check", __name__

    def __call__(self, *values: Any) -> None:
        env = dict(zip(self.names, values, strict=True))
        for name, most in self.symbols.checked.items():
            if name not in env or most < abs(env[name]) < math.inf:
                raise Unfit(f"{name} is beyond {most}, with {env}")
        for relation in self.symbols.late:
            if not relation.expr.symbols <= env.keys() or not relation.holds(env):
                raise Unfit(f"not {relation}, with {env}")


# Fake results of operators whose sizes or numbers depend on data --------------------------------------------------
New = Callable[..., Any]  # creates a number: "size" (with its greatest value), "int" or "float"


def _nonzero(new: New, x: torch.Tensor) -> Any:
    found = new("size", x.numel())
    return x.new_empty_strided((found, x.dim()), (1, found), dtype=torch.int64)


def _masked_select(new: New, x: torch.Tensor, mask: torch.Tensor) -> Any:
    return x.new_empty((new("size"),))


def _repeat_interleave(new: New, repeats: torch.Tensor, *, output_size: Any = None) -> Any:
    return repeats.new_empty((new("size") if output_size is None else output_size,))


def _unique(new: New, x: torch.Tensor, inverse: bool, counts: bool) -> Any:
    found = new("size", x.numel())
    where = x.new_empty(x.shape if inverse else (0,), dtype=torch.int64)
    return x.new_empty((found,)), where, x.new_empty((found if counts else 0,), dtype=torch.int64)


def _unique2(
    new: New, x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return _unique(new, x, return_inverse, return_counts)


def _unique_consecutive(
    new: New, x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    return NotImplemented if dim is not None else _unique(new, x, return_inverse, return_counts)


def _item(new: New, x: torch.Tensor) -> Any:
    if x.dtype.is_floating_point:
        return new("float")
    return NotImplemented if x.dtype in (torch.bool, torch.uint64) or x.dtype.is_complex else new("int")


BINDS: dict[OpOverload, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero, aten.masked_select.default: _masked_select,
    aten.repeat_interleave.Tensor: _repeat_interleave, aten._unique2.default: _unique2,
    aten.unique_consecutive.default: _unique_consecutive, aten._local_scalar_dense.default: _item,
}  # fmt: skip
