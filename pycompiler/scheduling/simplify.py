"""Rewrites of a program before fusion: dead nodes, folds in two passes, inlining of cheap producers.

In: a `Program`.  Out: its nodes, fewer and larger, in an order that respects dependencies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import replace

import torch

from pycompiler.ir.kernel import hinted_points, loads, space_of
from pycompiler.ir.loops import Extern, Loop, Node, Op, Program, Ref, refuses
from pycompiler.ir.target import Target
from pycompiler.ir.verify import reads_of
from pycompiler.operators.operator_facts import divides, facts_of
from pycompiler.scheduling.body import CHEAP, FEW, cost, inline, tidy
from pycompiler.scheduling.graph import BufferGraph, writes_of
from pycompiler.scheduling.iteration_space import fresh_var, rewrite
from pycompiler.scheduling.stores import begun, candidates, readers_first
from pycompiler.scheduling.two_passes import TWO_PASSES
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely_product

CHEAP_USES = 4


def prepare(program: Program, target: Target, alone: Set[str] = frozenset()) -> BufferGraph:
    """The program's nodes after all rewrites."""
    kept = {o.buffer for o in program.outputs if isinstance(o, Ref)}
    copies = candidates(program)
    begins = begun(program, copies)
    kept |= {b.name for b in program.inputs if b is not None} | set(program.constants) | copies.keys() | begins.keys()
    buffers = dict(program.buffers)
    for b in program.inputs:
        if b is not None:
            buffers[b.name] = b
    for node in program.nodes:
        for b in node.out:
            if b is not None:
                buffers[b.name] = b
    last = {id(copy) for copy in copies.values()}
    nodes = [_own_vars(n) if isinstance(n, Loop) else n for n in program.nodes if id(n) not in last]
    graph = BufferGraph(nodes, kept, buffers, target, copies=copies, begins=begins, alone=alone)
    for step in (drop_dead, split_reductions, fill_empty_folds, inline_all, drop_dead):
        graph = step(graph.index())
    if copies:
        graph.nodes = readers_first(graph.nodes, copies, begins)
    return graph.index()


def _own_vars(loop: Loop) -> Loop:
    """The loop with variables of its own, and a common form for reductions over at most one element."""
    dims = space_of(loop)
    new = [(fresh_var(), n) for _, n in dims]
    mapping = {old: Expr.sym(v) for (old, _), (v, _) in zip(dims, new, strict=True)}
    return tidy(rewrite(loop, mapping, new, dict(new)))


def _stays(call: Extern) -> bool:
    return bool(call.mutates) or facts_of(call.op).stays or divides(call.op, call.args, call.out)


def drop_dead(graph: BufferGraph) -> BufferGraph:
    """Remove nodes without readers.  A node that has other effects, or may raise, stays."""
    live = set(graph.kept)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if live.intersection(writes_of(node)) or (_stays(node) if isinstance(node, Extern) else refuses(node.body)):
            nodes.append(node)
            live.update(reads_of(node))
    return replace(graph, nodes=nodes[::-1])


# ---- reductions in two passes -------------------------------------------------------------------------------------


def split_reductions(graph: BufferGraph) -> BufferGraph:
    """Reductions that do not vectorise become two that do."""
    nodes: list[Node] = []
    for node in graph.nodes:
        kind = node.reduction.kind if isinstance(node, Loop) and node.reduction is not None else ""
        if isinstance(node, Loop) and kind in TWO_PASSES:
            nodes += [_own_vars(n) for n in TWO_PASSES[kind](graph, node)]
        else:
            nodes.append(node)
    return replace(graph, nodes=nodes)


# The result of a fold over no elements.
IDENTITY: dict[str, float] = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def fill_empty_folds(graph: BufferGraph) -> BufferGraph:
    """Replace a fold over no elements by a fill, since a kernel needs at least one point."""
    return replace(graph, nodes=[_filled(node) if isinstance(node, Loop) else node for node in graph.nodes])


def _filled(loop: Loop) -> Loop:
    fold = loop.reduction
    if fold is None or fold.kind not in IDENTITY or not any(n == 0 for n in fold.ranges):
        return loop
    dtype = loop.out[0].dtype
    number = (bool if dtype == torch.bool else float if dtype.is_floating_point else int)(IDENTITY[fold.kind])
    return replace(loop, body=(Op("const", (), dtype, (number,)),), results=(0,), reduction=None)


# ---- inlining -----------------------------------------------------------------------------------------------------


def inline_all(graph: BufferGraph) -> BufferGraph:
    """Producers that are cheap, or used once, move into their consumers."""
    nodes: dict[int, Node] = dict(enumerate(graph.nodes))
    readers: dict[str, set[int]] = defaultdict(set)
    for k, node in nodes.items():
        for name in set(reads_of(node)):
            readers[name].add(k)
    for k in reversed(nodes):  # last first: the new reads of a consumer are then considered in turn
        producer = nodes[k]
        if graph.repeatable(producer):
            _repeat_for_few(graph, nodes, readers, producer)
    for k in range(len(graph.nodes)):
        producer = nodes[k]
        if not graph.repeatable(producer):
            continue
        name = producer.out[0].name
        if name in graph.kept or name in graph.held:
            continue
        users = sorted(readers[name])
        if not users:
            continue
        new = _inlined(graph, producer, name, [nodes[u] for u in users])
        if new is None:
            continue
        for u, loop in zip(users, new, strict=True):
            nodes[u] = loop
            for read in set(reads_of(loop)):
                readers[read].add(u)
        for read in set(reads_of(producer)):
            readers[read].discard(k)
        del nodes[k]
    return replace(graph, nodes=[nodes[k] for k in sorted(nodes)])


def _repeat_for_few(graph: BufferGraph, nodes: dict[int, Node], readers: dict[str, set[int]], producer: Loop) -> None:
    """Inline a producer into a consumer that needs few of its values (a gather from log_softmax)."""
    name = producer.out[0].name
    points = hinted_points(space_of(producer))
    if cost(producer) > CHEAP or points is None or name in graph.held or refuses(producer.body):
        return
    for u in sorted(readers[name]):
        user = nodes[u]
        wanted = hinted_points(space_of(user)) if isinstance(user, Loop) else None
        if not isinstance(user, Loop) or user.init == name or wanted is None or wanted * FEW > points:
            continue
        if graph.is_alone(user):
            continue
        loop = inline(user, producer, name)
        if loop is not None and len(loop.body) <= graph.target.body:
            nodes[u] = loop
            readers[name].discard(u)
            for read in set(reads_of(loop)):
                readers[read].add(u)


def _is_small(graph: BufferGraph, name: str, points: int | None) -> bool:
    """Whether a loop over so many points reads each element of a buffer again and again, so that it is in a cache."""
    elements = likely_product(graph.buffers[name].shape)
    return points is not None and elements is not None and elements * FEW <= points


def _inlined(graph: BufferGraph, producer: Loop, name: str, users: list[Node]) -> list[Loop] | None:
    loops = [u for u in users if isinstance(u, Loop)]
    if len(loops) != len(users) or any(u.init == name or graph.is_alone(u) for u in loops):
        return None
    points = hinted_points(space_of(producer))
    work, sources = cost(producer), {b for b, _ in loads(producer)}
    # On a CPU such a value is stored: computed again, cross-entropy's gradient took 1.5 times as long.
    in_cache = graph.target.kind != "cpu" and all(_is_small(graph, b, points) for b in sources)
    sites = [(u, [i for b, i in loads(u) if b == name]) for u in loops]
    repeats = sum(len(set(found)) for _, found in sites)
    spread = any(
        points is None or (hinted_points(space_of(u)) or 0) > points for u in loops
    )  # each value is needed many times
    if work <= CHEAP and (not sources or ((len(sources) == 1 or in_cache) and repeats <= CHEAP_USES)):
        pass
    elif repeats > 1 or spread:
        return None
    new = []
    for u in loops:
        if len(u.body) + len(producer.body) > graph.target.body:
            return None
        loop = inline(u, producer, name)
        if loop is None:
            return None
        new.append(loop)
    return new
