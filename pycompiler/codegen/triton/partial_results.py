"""Fewer launches after a nest whose programs leave partial results in workspaces.

In: the nests that fold the workspaces, and the later nests of the group.  Out: fewer nests that do the same.

- `joined`: nests that fold over the same points become one.
- `followed`: a nest that computes something of each result, such as its cast to bfloat16, becomes part of the nest that
  completes the result.

Example: the gradients of a layer norm's weight and bias are two sums of float32, each with a cast: one launch instead
of four.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pycompiler.ir.kernel import LOADS, Dim, KernelGroup, Nest, Stage, loads
from pycompiler.ir.loops import Buffer, Loop, Op
from pycompiler.symbolic.expr import Expr

MOST_FOLDS = 4  # of one nest


def joined(finish: Sequence[Nest]) -> list[Nest]:
    """Nests over the same points as one nest."""
    out: list[Nest] = []
    for nest in finish:
        for k, known in enumerate(out):
            same = known.split == nest.split and _ranges(known.dims) == _ranges(nest.dims)
            if same and len(known.stages) < MOST_FOLDS:
                stages = [_moved(s, nest.dims, known.dims, s.level) for s in nest.stages]
                out[k] = replace(known, stages=[*known.stages, *stages])
                break
        else:
            out.append(nest)
    return out


def followed(finish: Nest, later: Nest) -> Nest | None:
    """`finish` with the stages of `later`, if these compute one value for each result of it, or None."""
    kept = finish.dims[: finish.split]
    if _ranges(kept) != _ranges(later.dims) or not all(_is_plain(s) for s in later.stages):
        return None
    ranges = dict(kept)
    made = {b.name: index.simplify(ranges) for s in finish.stages for b, index in _stores(s.loop)}
    if made.keys().isdisjoint(name for s in later.stages for name, _ in loads(s.loop)):
        return None
    stages = []
    for stage in later.stages:
        moved = replace(_moved(stage, later.dims, kept, 1), role="row")
        if any(made.get(name, index) != index.simplify(ranges) for name, index in loads(moved.loop)):
            return None
        made |= {b.name: index.simplify(ranges) for b, index in _stores(moved.loop)}
        stages.append(moved)
    return replace(finish, stages=[*finish.stages, *stages])


def followers(rest: Sequence[Nest], group: KernelGroup) -> Iterator[Nest]:
    """The nests of `rest` that may run before those that precede them.  New values of inputs stay in kernels of their own:
    warps that have no part in a store may load the input later than the warp that stores."""
    read, written = set[str](), set[str]()
    for nest in rest:
        reads, writes = _touched(nest, group)
        stores = any(name in group.stores for s in nest.stages for name in s.outputs)
        if not stores and reads.isdisjoint(written) and writes.isdisjoint(read | written):
            yield nest
        read |= reads
        written |= writes


def _touched(nest: Nest, group: KernelGroup) -> tuple[set[str], set[str]]:
    """The memory that a nest reads and writes.  A new value of an input lies in the input's."""
    reads = {name for s in nest.stages for name, _ in loads(s.loop)}
    writes = {name for s in nest.stages for name in s.outputs}
    return {group.stores.get(n, n) for n in reads}, {group.stores.get(n, n) for n in writes}


def _is_plain(stage: Stage) -> bool:
    loop = stage.loop
    plain = loop.reduction is None and loop.store_mode == "set" and loop.init is None
    return plain and "scratch" not in stage.place.values()


def _stores(loop: Loop) -> Iterator[tuple[Buffer, Expr]]:
    return zip(loop.out, loop.store_index, strict=True)


def _ranges(dims: Sequence[Dim]) -> list[Expr]:
    return [n for _, n in dims]


def _moved(stage: Stage, dims: Sequence[Dim], into: Sequence[Dim], level: int) -> Stage:
    """The stage in the variables of other dimensions of the same sizes."""
    names = {old: new for (old, _), (new, _) in zip(dims, into, strict=True)}
    return replace(stage, loop=_renamed(stage.loop, names), level=level)


def _renamed(loop: Loop, names: Mapping[str, str]) -> Loop:
    exprs = {old: Expr.sym(new) for old, new in names.items()}

    def renamed(op: Op) -> Op:
        if op.name in LOADS:
            return replace(op, attrs=(op.attrs[0], op.attrs[1].subst(exprs), *op.attrs[2:]))
        return replace(op, attrs=(op.attrs[0].subst(exprs),)) if op.name == "index" else op

    fold = loop.reduction
    if fold is not None:
        fold = replace(fold, vars=tuple(names[v] for v in fold.vars))
    return replace(
        loop, vars=tuple(names[v] for v in loop.vars), body=tuple(map(renamed, loop.body)), reduction=fold,
        store_index=tuple(e.subst(exprs) for e in loop.store_index),
    )  # fmt: skip
