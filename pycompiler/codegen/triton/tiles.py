"""How a nest becomes a grid of tiles.

In: `Nest`.  Out: `Tiles`: the dimensions along a tile's rows (x) and columns (r), block sizes, and how programs walk
them.  A program computes `tiles` tiles of XBLOCK x RBLOCK points one after the other along x.  Along r it holds the
whole inner space at once, or walks it in chunks once per level (`walked`), or has one block of it (`blocked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pycompiler.ir.kernel import Dim, Nest, Stage, Unsupported, numel, space_of

HELD = 16384  # elements of an inner space that a program holds at once
TILE = 2048  # elements of a tile, about
CHUNK = 4096  # elements of a chunk of a walked row
POINTWISE = 1024
PROGRAMS = 512  # that share the rows of a fold over outer dimensions
FEW_ROWS = 8


@dataclass(frozen=True)
class Tiles:
    outer: list[Dim]
    inner: list[Dim]
    xblock: int
    rblock: int
    tiles: int = 1
    walked: bool = False
    blocked: bool = False

    @property
    def xnumel(self) -> int:
        return count(self.outer)

    @property
    def rnumel(self) -> int:
        return count(self.inner)

    @property
    def grid(self) -> tuple[int, int]:
        rows = -(-self.xnumel // (self.xblock * self.tiles))
        return rows, -(-self.rnumel // self.rblock) if self.blocked else 1

    @property
    def warps(self) -> int:
        points = self.xblock * self.rblock
        return 16 if points > 8192 else 8 if points > 4096 else 4 if points > 256 else 1


def count(dims: Sequence[Dim]) -> int:
    total = numel(dims)
    if total is None:
        raise Unsupported("symbolic sizes")
    return total


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def tiles_of(nest: Nest) -> Tiles:
    roles = {s.role for s in nest.stages}
    outer, inner = list(nest.outer), list(nest.inner)
    if "accumulate" in roles:
        return _accumulate(nest, outer, inner)
    if "column" in roles:
        columns = _columns(nest.stages, inner)
        outer, inner = outer + [d for d in inner if d[0] in columns], [d for d in inner if d[0] not in columns]
        return _strided(outer, inner)
    return _rows(outer, inner) if inner else _flat(outer)


def _flat(dims: list[Dim]) -> Tiles:
    return Tiles(dims, [], min(POINTWISE, max(32, power_of_two(count(dims)))), 1)


def _rows(outer: list[Dim], inner: list[Dim]) -> Tiles:
    rows, width = count(outer), power_of_two(count(inner))
    if width > HELD:
        return Tiles(outer, inner, 1, CHUNK, walked=True)
    return Tiles(outer, inner, max(1, min(power_of_two(rows), TILE // width)), width)


def _strided(outer: list[Dim], inner: list[Dim]) -> Tiles:
    """Memory is contiguous along x: wide tiles."""
    xblock = min(64, power_of_two(count(outer)))
    width = power_of_two(count(inner))
    if xblock * width > 2 * CHUNK:
        return Tiles(outer, inner, xblock, CHUNK // xblock, walked=True)
    return Tiles(outer, inner, xblock, width)


def _columns(stages: Sequence[Stage], inner: list[Dim]) -> set[str]:
    """The inner variables that all column folds keep; they become rows, as each of their points is a fold of its own."""
    if any(s.role == "reduce" for s in stages):
        raise Unsupported("folds over different inner dimensions in one kernel")
    kept = [{v for v, _ in inner} & set(s.loop.vars) for s in stages if s.role == "column"]
    if any(k != kept[0] for k in kept):
        raise Unsupported("column folds over different dimensions in one kernel")
    return kept[0]


def _accumulate(nest: Nest, outer: list[Dim], inner: list[Dim]) -> Tiles:
    folds = [s for s in nest.stages if s.role == "accumulate"]
    roles = {s.role for s in nest.stages}
    if "column" in roles:
        raise Unsupported("column folds and folds over outer dimensions in one kernel")
    if "reduce" in roles:
        width = power_of_two(count(inner))
        if width > HELD:
            columns = {v for v, _ in inner}
            if any(columns & {v for v, _ in space_of(s.loop)} for s in folds):
                raise Unsupported(f"folds over rows of {count(inner)} elements and over their columns in one kernel")
            return Tiles(outer, inner, 1, CHUNK, walked=True)
        xblock, rblock, blocked = max(1, TILE // width), width, False
    elif all(not s.loop.vars for s in folds) and "row" not in roles:
        outer, inner = outer + inner, []
        xblock, rblock, blocked = min(POINTWISE, power_of_two(count(outer))), 1, False
    else:
        rblock = min(128, power_of_two(count(inner)))
        xblock, blocked = max(1, TILE // rblock), True
    xblock = max(1, min(xblock, power_of_two(count(outer))))
    blocks = -(-count(inner) // rblock) if blocked else 1
    rows = -(-count(outer) // xblock)
    return Tiles(outer, inner, xblock, rblock, tiles=max(1, -(-rows // max(1, PROGRAMS // blocks))), blocked=blocked)
