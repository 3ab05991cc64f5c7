"""Iteration spaces: a Loop in other variables, and the common refinement of two spaces.

refine([("a", 12)], [("x", 3), ("y", 4)])     # dims [3, 4]; a = 4*u + v; x = u; y = v
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pycompiler.ir.kernel import Dim
from pycompiler.ir.loops import Loop, Op, Reduction
from pycompiler.symbolic.expr import Expr, quotient


class _Names(threading.local):
    """The number of variables that this thread's scheduling has created."""

    count = 0


_names = _Names()


def restart_names() -> None:
    """Restart the numbering of variables for each schedule: endless new names would fill the tables of `symbolic.expr`."""
    _names.count = 0


def fresh_var() -> str:
    _names.count += 1
    return f"v{_names.count - 1}"


def map_exprs(op: Op, f: Mapping[str, Expr], ranges: Mapping[str, Expr]) -> Op:
    """`op` with variables replaced in its index expressions."""
    if op.name in ("load", "masked_load"):
        return Op(op.name, op.args, op.dtype, (op.attrs[0], op.attrs[1].subst(f).simplify(ranges)))
    if op.name == "index":
        return Op(op.name, op.args, op.dtype, (op.attrs[0].subst(f).simplify(ranges),))
    return op


def rewrite(loop: Loop, mapping: Mapping[str, Expr], dims: Sequence[Dim], ranges: Mapping[str, Expr]) -> Loop:
    """`loop` in other variables.  `dims`: the new variables that it ranges over.

    For a reduction, variables that occur in the stores stay outer ones, and the others are folded.
    """
    body = tuple(map_exprs(op, mapping, ranges) for op in loop.body)
    stores = tuple(e.subst(mapping).simplify(ranges) for e in loop.store_index)
    kept = set().union(*(mapping.get(v, Expr.sym(v)).symbols for v in loop.vars)) if loop.vars else set()
    outer = [d for d in dims if d[0] in kept]
    if loop.reduction is None:
        return replace(loop, vars=tuple(v for v, _ in outer), ranges=tuple(n for _, n in outer), body=body,
                       store_index=stores)  # fmt: skip
    used = set().union(*(mapping.get(v, Expr.sym(v)).symbols for v in loop.reduction.vars))
    folded = [d for d in dims if d[0] in used]
    reduction = Reduction(loop.reduction.kind, tuple(v for v, _ in folded), tuple(n for _, n in folded))
    return replace(loop, vars=tuple(v for v, _ in outer), ranges=tuple(n for _, n in outer), body=body,
                   store_index=stores, reduction=reduction)  # fmt: skip


@dataclass
class Refinement:
    """`dims`: the common refinement; `left`/`right`: each space's variables as expressions over it."""

    dims: list[Dim]
    left: dict[str, Expr]
    right: dict[str, Expr]


def refine(left: Sequence[Dim], right: Sequence[Dim]) -> Refinement | None:
    """The coarsest common refinement of both spaces (row-major order kept), or None."""
    dims: list[Dim] = []
    pieces: tuple[dict[str, list[Dim]], dict[str, list[Dim]]] = ({v: [] for v, _ in left}, {v: [] for v, _ in right})
    a, b = list(reversed(left)), list(reversed(right))
    while a and b:
        (va, na), (vb, nb) = a.pop(), b.pop()
        dim = (fresh_var(), na)
        if na != nb:
            if (times := quotient(na, nb)) is not None and na != 0:
                dim = (dim[0], nb)
                a.append((va, times))
            elif (times := quotient(nb, na)) is not None and nb != 0:
                b.append((vb, times))
            else:
                return None
        dims.append(dim)
        pieces[0][va].append(dim)
        pieces[1][vb].append(dim)
    if a or b:
        return None
    return Refinement(
        dims, {v: compose(p) for v, p in pieces[0].items()}, {v: compose(p) for v, p in pieces[1].items()}
    )


def compose(parts: Sequence[Dim]) -> Expr:
    """The row-major index composed of the digits `parts`."""
    total, stride = Expr.of(0), Expr.of(1)
    for v, n in reversed(parts):
        total = total + Expr.sym(v) * stride
        stride = stride * n
    return total


def joint(left: Refinement, right: Refinement) -> Refinement:
    """Two refinements side by side."""
    return Refinement(left.dims + right.dims, {**left.left, **right.left}, {**left.right, **right.right})
