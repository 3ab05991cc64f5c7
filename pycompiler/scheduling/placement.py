"""Placement inside a nest: the pass in which each stage runs, and the storage of each value."""

from __future__ import annotations

from pycompiler.ir.kernel import Nest, Stage, loads, numel
from pycompiler.ir.loops import Buffer


def place(nest: Nest, needed: set[str], buffers: dict[str, Buffer], scratch: int) -> None:
    """Set `level` and `place` of each stage.  `needed`: buffers with readers outside of the nest.

    `scratch`: bytes available for the arrays of one row.
    """
    made = {name: s for s in nest.stages for name in s.outputs}
    late: set[str] = set()
    for s in nest.stages:
        level = 0
        for name, _ in loads(s.loop):
            p = made.get(name)
            if p is not None:
                level = max(level, p.level + (p.role in ("reduce", "column")))
        s.level = level
    for s in nest.stages:
        for name, _ in loads(s.loop):
            p = made.get(name)
            if p is not None and p.role == "point" and s.level > p.level:
                late.add(name)
    row = numel(nest.inner)
    left = scratch
    for s in nest.stages:
        for b in s.loop.out:
            size = None if row is None else row * b.dtype.itemsize
            if b.name in needed or s.role == "accumulate":
                s.place[b.name] = "memory"
            elif s.role == "column":
                s.place[b.name] = "scratch"
            elif b.name not in late:
                s.place[b.name] = "register"
            elif size is not None and size <= left:
                s.place[b.name] = "scratch"
                left -= size
            else:
                s.place[b.name] = "memory"
    _sort_by_level(nest)


def _sort_by_level(nest: Nest) -> None:
    """Sort by pass; in a pass row values come first, if there are rows.  Producers stay before their consumers."""
    nest.stages.sort(key=lambda s: (s.level, bool(nest.inner) and s.role != "row"))


def memory_of(stage: Stage) -> list[str]:
    return [name for name in stage.outputs if stage.place[name] == "memory"]
