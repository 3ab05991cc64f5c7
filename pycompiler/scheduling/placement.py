"""Inside a nest: which pass each stage runs in, and where each value lives."""

from __future__ import annotations

from pycompiler.ir.kernel import Nest, Stage, loads, numel
from pycompiler.ir.loops import Buffer


def place(nest: Nest, needed: set[str], buffers: dict[str, Buffer], scratch: int) -> None:
    """Sets `level` and `place` of each stage.  `needed`: buffers that somebody outside the nest reads;
    `scratch`: bytes that one row's arrays may take."""
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
    """By pass; in a pass the row values first, where that means something.  Producers stay before their consumers."""
    nest.stages.sort(key=lambda s: (s.level, bool(nest.inner) and s.role != "row"))


def memory_of(stage: Stage) -> list[str]:
    return [name for name in stage.outputs if stage.place[name] == "memory"]
