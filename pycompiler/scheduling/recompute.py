"""Values that several kernels of a GPU need: computed again in each, if that reads less memory than the value takes.

In: the groups after fusion.  Out: the same groups; readers of such a value compute it themselves, so nothing stores it.
Example: the sums over `(x - mean) * scale` and the loops that need these sums are different kernels.  Both read `x` in
bfloat16; the float32 value between them would be written once and read twice.

Only for GPUs, whose kernels wait for memory rather than for arithmetic, and for values of little arithmetic (`MOST_WORK`).
No reader computes more points than the value has.  All kernels compute the same bits: with knobs under which they may not,
values are stored.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

from pycompiler import config
from pycompiler.ir.kernel import Nest, Stage, hinted_points, loads, space_of
from pycompiler.ir.loops import Buffer, Loop, refuses
from pycompiler.scheduling.body import FEW, cost, inline, is_indirect
from pycompiler.scheduling.fuse import Group
from pycompiler.scheduling.graph import BufferGraph
from pycompiler.scheduling.stores import target_of

MOST_WORK = 16  # arithmetic of a value for each point, an addition being 1
MOST_READERS = 3  # kernels that compute it again


def recompute(groups: list[Group], graph: BufferGraph) -> list[Group]:
    """The groups, in the same order, without dead ones."""
    if graph.target.kind == "cpu" or config.fast_math or not config.emulate_precision_casts:
        return groups
    written = {target_of(copy) for copy in graph.copies.values()} | {target for _, target in graph.begins.values()}
    now = {g.number: g for g in groups}
    readers: dict[str, set[int]] = {}
    for g in groups:
        for name in g.reads - g.writes:
            readers.setdefault(name, set()).add(g.number)
    for number in list(now):
        g = now[number]
        if not isinstance(g.node, Nest) or g.solo:
            continue
        unstored = False
        for stage in g.node.stages:
            others = sorted(readers.get(stage.outputs[0], ()))
            value = _value(graph, g.node, stage, written) if 0 < len(others) <= MOST_READERS else None
            new = None if value is None else _readers_of(graph, value, [now[n] for n in others])
            if new is None:
                continue
            del readers[stage.outputs[0]]
            unstored = True
            for other in new:
                now[other.number] = other
                for name in other.reads - other.writes:
                    readers.setdefault(name, set()).add(other.number)
        if not unstored:
            continue
        left = _without_dead(g, graph.kept | readers.keys())
        if left is None:
            del now[number]
        else:
            now[number] = left
    return list(now.values())


def _without_dead(g: Group, needed: Set[str]) -> Group | None:
    """The group without stages whose values have no readers; None if no stage is left."""
    assert isinstance(g.node, Nest)
    stages, live = list[Stage](), set(needed)
    for stage in reversed(g.node.stages):
        if live.intersection(stage.outputs) or refuses(stage.loop.body):
            stages.insert(0, stage)
            live |= {n for n, _ in loads(stage.loop)}
    if len(stages) == len(g.node.stages):
        return g
    reads = {n for s in stages for n, _ in loads(s.loop)}
    writes = {n for s in stages for n in s.outputs}
    return replace(g, node=replace(g.node, stages=stages), reads=reads, writes=writes) if stages else None


def _value(graph: BufferGraph, nest: Nest, stage: Stage, written: Set[str]) -> Loop | None:
    """A loop that computes the stage's value from memory alone; None if it is not to be computed again.

    `written`: inputs that may be written in place; a later read of their old values would prevent that.
    """
    loop, name = stage.loop, stage.outputs[0]
    if name in graph.kept or name in graph.held or len(graph.writers[name]) != 1:
        return None
    made = {b.name: s for s in nest.stages for b in s.loop.out}
    while inner := next((n for n, _ in loads(loop) if n in made), None):
        producer = made[inner]
        longer = inline(loop, producer.loop, inner) if _is_pointwise(producer) else None
        if longer is None or cost(longer) > MOST_WORK:
            return None
        loop = longer
    fits = _is_pointwise(stage) and not refuses(loop.body) and cost(loop) <= MOST_WORK
    stays = all(not is_indirect(i) and n not in written and not graph.overwritten(n) for n, i in loads(loop))
    return loop if fits and stays else None


def _is_pointwise(stage: Stage) -> bool:
    loop = stage.loop
    return (
        stage.role == "point"
        and len(loop.out) == 1
        and loop.reduction is None
        and not loop.init
        and loop.store_mode == "set"
    )


def _readers_of(graph: BufferGraph, value: Loop, readers: list[Group]) -> list[Group] | None:
    """The readers, each with the value's computation; None if one cannot have it, or if the kernels would read more."""
    name, taken = value.out[0].name, _bytes(value.out[0])
    large = {n: graph.buffers[n] for n, _ in loads(value) if _is_large(graph.buffers[n], value)}
    new = []
    for g in readers:
        if not isinstance(g.node, Nest) or g.solo:
            return None
        more = sum(_bytes(b) for n, b in large.items() if n not in g.reads)
        stages = [_with_value(s, value, name) for s in g.node.stages]
        if more > taken or None in stages:
            return None
        found = [s for s in stages if s is not None]
        reads = {n for s in found for n, _ in loads(s.loop)} | {s.loop.init for s in found if s.loop.init}
        most = graph.target
        bodies = [len(s.loop.body) for s in found]
        if len(reads | g.writes) > most.pointers or sum(bodies) > most.operations or max(bodies) > most.body:
            return None
        new.append(replace(g, node=replace(g.node, stages=found), reads=reads))
    return new


def _with_value(stage: Stage, value: Loop, name: str) -> Stage | None:
    places = {index for n, index in loads(stage.loop) if n == name}
    if not places:
        return stage
    points, made = hinted_points(space_of(stage.loop)), hinted_points(space_of(value))
    if points is None or made is None or points * len(places) > made:
        return None  # the stage needs each value several times
    loop = inline(stage.loop, value, name)
    return None if loop is None else replace(stage, loop=loop)


def _is_large(buffer: Buffer, value: Loop) -> bool:
    """Whether the buffer is not much smaller than the value: a small one stays in the cache."""
    points, elements = hinted_points(space_of(value)), hinted_points([("", n) for n in buffer.shape])
    return points is None or elements is None or elements * FEW > points


def _bytes(buffer: Buffer) -> float:
    """The likely size; infinite if unknown."""
    elements = hinted_points([("", n) for n in buffer.shape])
    return math.inf if elements is None else elements * buffer.dtype.itemsize
