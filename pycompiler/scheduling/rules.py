"""The rules of a legal `Schedule`: checked after scheduling in all tests, and under `config.verify_ir`.

In: a schedule.  Out: nothing, or `ScheduleError` naming each violated rule.  Example:

    check_schedule(schedule(program))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, Stage, loads, space_of
from pycompiler.ir.loops import Extern, Ref
from pycompiler.ir.verify import reads_of
from pycompiler.scheduling.graph import writes_of
from pycompiler.scheduling.memory import is_covered, storage_bytes, touched
from pycompiler.scheduling.stores import conflict


class ScheduleError(Exception):
    """A bug in scheduling: the schedule is illegal."""


def check_schedule(s: Schedule) -> None:
    """Raises ScheduleError when a rule is violated."""
    found = [f"{rule.__name__}: {text}" for rule in RULES for text in rule(s)]
    if found:
        raise ScheduleError("\n".join([*found, str(s)]))


def _reads_writes(step: KernelGroup | Extern) -> tuple[set[str], set[str]]:
    if isinstance(step, Extern):
        return set(reads_of(step)), set(writes_of(step))
    return set(step.reads), set(step.writes)


def existing_buffers(s: Schedule) -> set[str]:
    """Buffers that exist before the first step."""
    return {b.name for b in s.program.inputs if b is not None} | set(s.program.constants)


def memory_holds_what_is_read(s: Schedule) -> Iterator[str]:
    """A buffer that is read was written and not freed, and no other buffer has used its memory since."""
    holds = {name: name for name in existing_buffers(s)}  # memory -> buffer in it
    for k, (step, frees) in enumerate(zip(s.steps, s.frees, strict=True)):
        reads, writes = _reads_writes(step)
        for name in sorted(reads):
            if (target := s.stores.get(name)) is not None and isinstance(step, Extern) and name in step.mutates:
                begins = {target, *(n for n, t in s.stores.items() if t == target)}  # it is written in place
                if holds.get(target) in begins:
                    continue
            if holds.get(s.storage.get(name, name)) != name:
                yield f"step {k} reads {name}, but its memory holds {holds.get(s.storage.get(name, name))}"
        replaced = s.stores | (step.stores if isinstance(step, KernelGroup) else {})
        for name in writes:
            home = s.storage.get(name, name)
            if any(s.storage.get(r, r) == home and r not in (name, replaced.get(name)) for r in reads | writes):
                yield f"step {k}: {name} overwrites memory that the step still uses"
            holds[home] = name
        for name in frees:
            if name not in holds:
                yield f"step {k} frees {name}, which is not there"
            holds.pop(name, None)
    for output in s.program.outputs:
        if isinstance(output, Ref) and output.buffer in s.stores.values():
            continue  # the input itself, with its new value
        if isinstance(output, Ref) and holds.get(s.storage.get(output.buffer, output.buffer)) != output.buffer:
            yield f"output {output.buffer} is not in memory at the end"


def shared_memory_is_large_enough(s: Schedule) -> Iterator[str]:
    for name, home in s.storage.items():
        need, have = storage_bytes(s.buffers[name]), storage_bytes(s.buffers[home])
        if home not in (name, s.stores.get(name)) and not is_covered(need, have):
            yield f"{name} needs {need} bytes, {home} has {have}"


def everything_is_freed_once(s: Schedule) -> Iterator[str]:
    kept = existing_buffers(s) | {o.buffer for o in s.program.outputs if isinstance(o, Ref)}
    freed = [name for frees in s.frees for name in frees]
    homes = {s.storage.get(n, n) for step in s.steps for n in touched(step)}
    yield from (f"{n} is freed {freed.count(n)} times" for n in sorted(homes - kept) if freed.count(n) != 1)
    yield from (f"{n} is freed, but outlives the plan" for n in freed if n in kept)


def _nests(s: Schedule) -> Iterator[Nest]:
    for group in s.kernels:
        yield from group.nests


def loops_range_over_the_nest(s: Schedule) -> Iterator[str]:
    for nest in _nests(s):
        names = [v for v, _ in nest.dims]
        for stage in nest.stages:
            space = [v for v, _ in space_of(stage.loop)]
            if not set(space) <= set(names):
                yield f"{stage.outputs[0]} ranges over {space}, the nest over {names}"
            want = {"point": set(names), "row": {v for v, _ in nest.outer}}.get(stage.role)
            if want is not None and set(space) != want:
                yield f"{stage.role} {stage.outputs[0]} ranges over {space}, expected {sorted(want)}"


def values_are_read_where_they_are_made(s: Schedule) -> Iterator[str]:
    """In a nest: a value is read at the point where it is computed, when it is complete and still held."""
    for nest in _nests(s):
        made: dict[str, Stage] = {}
        later = {name for stage in nest.stages for name in stage.outputs}
        for stage in nest.stages:
            for name, index in loads(stage.loop):
                p = made.get(name)
                if p is None:
                    if name in later:
                        yield f"{stage.outputs[0]} reads {name} before it is made"
                    continue
                at = dict(zip(p.outputs, p.loop.store_index, strict=True))[name]
                if index.simplify(dict(nest.dims)) != at.simplify(dict(nest.dims)):
                    yield f"{stage.outputs[0]} reads {name} at {index}, made at {at}"
                if stage.level < p.level + (p.role in ("reduce", "column")) or p.role == "accumulate":
                    yield f"{stage.outputs[0]} (level {stage.level}) reads {name} ({p.role}, level {p.level})"
                if p.role == "point" and p.place[name] == "register" and stage.level > p.level:
                    yield f"{stage.outputs[0]} reads {name}, which only lives in pass {p.level}"
            made |= dict.fromkeys(stage.outputs, stage)


def old_values_are_read_before_new_ones_are_stored(s: Schedule) -> Iterator[str]:
    """In the kernel that writes an input; `memory_holds_what_is_read` checks the other kernels."""
    for value, target in s.stores.items():
        a, b = s.buffers[value], s.buffers[target]
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) or s.storage.get(value) != target:
            yield f"{value} cannot be the new value of {target}"
    for group in s.kernels:
        for value, target in group.stores.items():
            at, nest = next((k, n) for k, n in enumerate(group.nests) if any(value in x.outputs for x in n.stages))
            for later in group.nests[at + 1 :]:
                if any(name == target for stage in later.stages for name, _ in loads(stage.loop)):
                    yield f"{later.stages[0].outputs[0]}'s nest reads {target} after {value} is stored"
            why = conflict(nest, value, target, s.buffers[value].device)
            if why is not None:
                yield why


RULES: tuple[Callable[[Schedule], Iterator[str]], ...] = (
    memory_holds_what_is_read, shared_memory_is_large_enough, everything_is_freed_once, loops_range_over_the_nest,
    values_are_read_where_they_are_made, old_values_are_read_before_new_ones_are_stored,
)  # fmt: skip
