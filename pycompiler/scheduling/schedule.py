"""Scheduling: a `Program` in, a `Schedule` out (see `ir/kernel.py`).

print(schedule(program, of_program(program)))
"""

from __future__ import annotations

from collections.abc import Set

from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, hinted_points, loads, space_of
from pycompiler.ir.loops import Extern, Program, Ref
from pycompiler.ir.target import Target
from pycompiler.scheduling.bundle import bundle
from pycompiler.scheduling.fuse import collapse, fuse
from pycompiler.scheduling.iteration_space import restart_names
from pycompiler.scheduling.memory import plan_memory
from pycompiler.scheduling.placement import memory_of, place
from pycompiler.scheduling.recompute import recompute
from pycompiler.scheduling.simplify import prepare
from pycompiler.scheduling.stores import copies_last, stored_in_place, without_copies
from pycompiler.symbolic.hints import hinted


def schedule(program: Program, target: Target, alone: Set[str] = frozenset()) -> Schedule:
    """Fused kernels and ATen calls in order, with a memory plan, for a machine.  Does not change `program`.

    `alone`: names of nodes whose loops are not fused with others.
    """
    with hinted(program.hints):
        return _schedule(program, target, alone)


def _schedule(program: Program, target: Target, alone: Set[str]) -> Schedule:
    restart_names()
    graph = prepare(program, target, alone)
    groups = recompute(fuse(graph), graph)
    kept = {o.buffer for o in program.outputs if isinstance(o, Ref)} | set(program.constants)
    kept |= {b.name for b in program.inputs if b is not None} | graph.copies.keys() | graph.begins.keys()
    readers: dict[str, set[int]] = {}
    for g in groups:
        for name in g.reads:
            readers.setdefault(name, set()).add(g.number)
    nests: list[Nest | Extern] = []
    touched: dict[int, tuple[set[str], set[str]]] = {}
    for g in groups:
        if isinstance(g.node, Extern):
            nests.append(g.node)
            continue
        needed = {n for n in g.writes if n in kept or readers.get(n, set()) - {g.number} or g.solo}
        nest = collapse(g.node)
        place(nest, needed, graph.buffers, target.scratch)
        nests.append(nest)
        adds = any(s.loop.store_mode == "add" for s in nest.stages)
        touched[id(nest)] = (g.reads if adds else g.reads - g.writes, g.writes)
    bundled = copies_last(bundle(nests, touched, target), {b.name for b in program.inputs if b is not None})
    stores = stored_in_place(bundled, graph.copies, graph.begins, graph.buffers)
    bundled = without_copies(bundled, graph.begins, stores)
    steps: list[KernelGroup | Extern] = []
    for step in bundled:
        steps.append(step if isinstance(step, Extern) else _kernel(f"{_word(program.name)}_{len(steps)}", step, stores))
    steps += [copy for value, copy in graph.copies.items() if value not in stores]
    done = Schedule(program, steps, graph.buffers, target, storage=dict(stores), stores=stores)
    plan_memory(done, kept - ((graph.copies.keys() | graph.begins.keys()) - stores.keys()))
    return done


def _word(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)


def _kernel(name: str, nests: list[Nest], stores: dict[str, str]) -> KernelGroup:
    group = KernelGroup(name, nests)
    local: set[str] = set()
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    symbols: set[str] = set()
    for nest in nests:
        for s in nest.stages:
            memory = set(memory_of(s))
            written |= dict.fromkeys(n for n in s.outputs if n in memory)
            local |= set(s.outputs) - memory
        made = {n for t in nest.stages for n in t.outputs}
        for s in nest.stages:
            wanted = ([s.loop.init] if s.loop.init else []) + [name for name, _ in loads(s.loop)]
            read |= dict.fromkeys(n for n in wanted if n not in made and n not in local)
        symbols |= _symbols(nest)
        group.work += _work(nest)
    group.reads = [n for n in read if n not in written]
    group.writes = list(written)
    group.stores = {n: stores[n] for n in written if n in stores}
    group.scalars = sorted(symbols)
    return group


def _symbols(nest: Nest) -> set[str]:
    """Size symbols in the nest's extents and indices."""
    own = {v for v, _ in nest.dims}
    found = {s for _, n in nest.dims for s in n.symbols}
    for stage in nest.stages:
        exprs = [*stage.loop.store_index, *(a for op in stage.loop.body for a in op.attrs if hasattr(a, "symbols"))]
        found |= {s for e in exprs for s in e.symbols if not s.startswith("%")}
    return found - own


def _work(nest: Nest) -> int:
    """Element operations of one call; 1024 points are assumed for unknown sizes."""
    return sum((hinted_points(space_of(s.loop)) or 1024) * max(1, len(s.loop.body) // 2) for s in nest.stages)
