"""Tiles: how a nest becomes a grid.

In: `Nest`.  Out: `Tiles`: the dimensions along a tile's rows (x) and columns (r), block sizes, and how programs walk
them.  A program computes `tiles` tiles of XBLOCK x RBLOCK points one after the other along x.  Along r it holds the
whole inner space at once, or walks it in chunks once per level (`walked`), or has one block of it (`blocked`).

Sizes may be symbolic: they decide the numbers of programs and steps.  Their hints decide the block sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from pycompiler.ir.kernel import Dim, Nest, Stage, Unsupported, hinted_points, numel, space_of
from pycompiler.ir.target import Target
from pycompiler.symbolic.expr import Expr

UNKNOWN = 1 << 20  # points of a space without hints
COLUMNS = 64  # of a tile that folds over rows: in half precision, each of its rows is a line of the cache


@dataclass(frozen=True)
class Tiles:
    outer: list[Dim]
    inner: list[Dim]
    xblock: int
    rblock: int
    tiles: Expr = field(default_factory=lambda: Expr.of(1))
    walked: bool = False
    blocked: bool = False

    @property
    def xnumel(self) -> Expr:
        return points(self.outer)

    @property
    def rnumel(self) -> Expr:
        return points(self.inner)

    @property
    def grid(self) -> tuple[Expr, Expr]:
        rows = ceiling(self.xnumel, self.tiles * self.xblock)
        return rows, ceiling(self.rnumel, Expr.of(self.rblock)) if self.blocked else Expr.of(1)

    @property
    def warps(self) -> int:
        points = self.xblock * self.rblock
        return 16 if points > 8192 else 8 if points > 4096 else 4 if points > 256 else 1


def points(dims: Sequence[Dim]) -> Expr:
    """The number of points."""
    return functools.reduce(lambda total, dim: total * dim[1], dims, Expr.of(1))


def ceiling(n: Expr, by: Expr) -> Expr:
    return (n + by - 1) // by


def estimated_points(dims: Sequence[Dim]) -> int:
    """The number of points, or an estimate.  Any number is correct, since it only decides the size of tiles."""
    known = hinted_points(dims)
    return UNKNOWN if known is None else known


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def tiles_of(nest: Nest, target: Target) -> Tiles:
    roles = {s.role for s in nest.stages}
    outer, inner = list(nest.outer), list(nest.inner)
    if "accumulate" in roles:
        return _accumulate(nest, outer, inner, target)
    if "column" in roles:
        columns = _columns(nest.stages, inner)
        outer, inner = outer + [d for d in inner if d[0] in columns], [d for d in inner if d[0] not in columns]
        return _strided(outer, inner, target)
    return _rows(outer, inner, target) if inner else _flat(outer, target)


def _flat(dims: list[Dim], target: Target) -> Tiles:
    return Tiles(dims, [], min(target.flat, max(32, power_of_two(estimated_points(dims)))), 1)


def whole_width(inner: list[Dim], target: Target) -> int | None:
    """The width of a tile with the whole inner space; None if it is too large, or known only in a call."""
    known = numel(inner)
    return None if known is None or power_of_two(known) > target.held else power_of_two(known)


def _rows(outer: list[Dim], inner: list[Dim], target: Target) -> Tiles:
    width = whole_width(inner, target)
    if width is None:
        chunk = min(target.chunk, max(32, power_of_two(estimated_points(inner))))
        return Tiles(
            outer, inner, max(1, min(power_of_two(estimated_points(outer)), target.tile // chunk)), chunk, walked=True
        )
    return Tiles(outer, inner, max(1, min(power_of_two(estimated_points(outer)), target.tile // width)), width)


def _strided(outer: list[Dim], inner: list[Dim], target: Target) -> Tiles:
    """Memory is contiguous along x, so tiles are wide along x."""
    xblock = min(64, power_of_two(estimated_points(outer)))
    width = whole_width(inner, target)
    if width is None or xblock * width > 2 * target.chunk:
        return Tiles(outer, inner, xblock, target.chunk // xblock, walked=True)
    return Tiles(outer, inner, xblock, width)


def _columns(stages: Sequence[Stage], inner: list[Dim]) -> set[str]:
    """The inner variables that all column folds keep.  They become rows, since each of their points is a fold of its own."""
    if any(s.role == "reduce" for s in stages):
        raise Unsupported("folds over different inner dimensions in one kernel")
    kept = [{v for v, _ in inner} & set(s.loop.vars) for s in stages if s.role == "column"]
    if any(k != kept[0] for k in kept):
        raise Unsupported("column folds over different dimensions in one kernel")
    return kept[0]


def _accumulate(nest: Nest, outer: list[Dim], inner: list[Dim], target: Target) -> Tiles:
    folds = [s for s in nest.stages if s.role == "accumulate"]
    roles = {s.role for s in nest.stages}
    programs = target.programs
    if "column" in roles:
        raise Unsupported("column folds and folds over outer dimensions in one kernel")
    if "reduce" in roles:
        width = whole_width(inner, target)
        if width is None:
            columns = {v for v, _ in inner}
            if any(columns & {v for v, _ in space_of(s.loop)} for s in folds):
                raise Unsupported(f"folds over rows of {points(inner)} elements and over their columns in one kernel")
            return Tiles(outer, inner, 1, target.chunk, walked=True)
        xblock, rblock, blocked, programs = max(1, target.tile // width), width, False, target.row_programs
    elif all(not s.loop.vars for s in folds) and "row" not in roles:
        outer, inner = outer + inner, []
        xblock, rblock, blocked = min(target.flat, power_of_two(estimated_points(outer))), 1, False
    else:
        rblock = min(COLUMNS, power_of_two(estimated_points(inner)))
        xblock, blocked = max(1, target.tile // rblock), True
    xblock = max(1, min(xblock, power_of_two(estimated_points(outer))))
    blocks = -(-estimated_points(inner) // rblock) if blocked else 1
    steps = ceiling(ceiling(points(outer), Expr.of(xblock)), Expr.of(max(1, programs // max(blocks, 1))))
    return Tiles(outer, inner, xblock, rblock, tiles=Expr.max(steps, Expr.of(1)), blocked=blocked)
