"""Loops that take their last variable apart, as loops without divisions.

In: a nest whose indices have `j % k` and `j // k` of the last variable, for a small k (a shuffle of channels).  Out: the
nest over the quotient, with a stage of each kind for each remainder:

    for j in 0..116:  out[j] = in[116*(j % 2) + j // 2]                        # a gather
    for j in 0..58:   out[2*j] = in[j]; out[2*j + 1] = in[j + 116]             # two loads and an interleaved store
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pycompiler.ir.kernel import LOADS, Nest, loads
from pycompiler.ir.loops import Loop, Op
from pycompiler.symbolic.expr import Expr

PARTS = (2, 3, 4)
BYTES = 4  # of wider elements, a vector has too few to interleave


def interleaved(nest: Nest) -> Nest:
    """The same nest if it has no such form."""
    if nest.split is not None or not nest.dims or not _are_copies(nest):
        return nest
    v, n = nest.dims[-1]
    loops = [stage.loop for stage in nest.stages]
    if not n.is_const or any(v not in loop.vars or _names(loop, v) for loop in loops):
        return nest
    if all(_is_linear(e, v) for loop in loops for e in _indices(loop)):
        return nest
    for k in PARTS:
        size = n.as_int() // k
        if size * k != n.as_int():
            continue
        dims = [*nest.dims[:-1], (v, Expr.of(size))]
        stages = [
            replace(stage, loop=_rewritten(stage.loop, {v: Expr.sym(v) * k + r}, dict(dims)))
            for stage in nest.stages
            for r in range(k)
        ]
        if all(_is_linear(e, v) for stage in stages for e in _indices(stage.loop)):
            return Nest(dims, None, stages)
    return nest


def _are_copies(nest: Nest) -> bool:
    """Whether each stage writes an element of memory for each point, and none reads another's.

    A fold in such a nest has no variables of its own, so the caller refuses it.
    """
    written = {name for stage in nest.stages for name in stage.outputs}
    for stage in nest.stages:
        loop = stage.loop
        if loop.store_mode != "set":
            return False
        if set(stage.place.values()) != {"memory"} or any(b.dtype.itemsize > BYTES for b in loop.out):
            return False
        if any(name in written for name, _ in loads(loop)):
            return False
    return True


def _indices(loop: Loop) -> Iterator[Expr]:
    yield from (index for _, index in loads(loop))
    yield from loop.store_index


def _is_linear(e: Expr, v: str) -> bool:
    return v not in e.symbols or e.coeff(v) is not None


def _names(loop: Loop, v: str) -> bool:
    """Whether an operation other than a load computes with the variable."""
    attrs = (a for op in loop.body if op.name not in LOADS for a in op.attrs)
    return any(isinstance(a, Expr) and v in a.symbols for a in attrs)


def _rewritten(loop: Loop, mapping: Mapping[str, Expr], ranges: Mapping[str, Expr]) -> Loop:
    def index(e: Expr) -> Expr:
        return e.subst(mapping).simplify(ranges)

    def op(o: Op) -> Op:
        return replace(o, attrs=(o.attrs[0], index(o.attrs[1]), *o.attrs[2:])) if o.name in LOADS else o

    sizes = tuple(ranges[v] if v in mapping else n for v, n in zip(loop.vars, loop.ranges, strict=True))
    body, places = tuple(map(op, loop.body)), tuple(map(index, loop.store_index))
    return replace(loop, ranges=sizes, body=body, store_index=places)
