"""An interpreter of schedules: runs a `Schedule` with torch tensors on the CPU.  Exact, not fast.

In: a schedule and the inputs of its program.  Out: the outputs, as tensors.  Every stage is computed on all points of its
nest at once, pass by pass.  The interpreter checks that the result does not depend on the order of the points.

    interpret_schedule(schedule(lower(gm)), [x, y])                # each buffer has memory of its own
    interpret_schedule(schedule(lower(gm)), [x, y], share=True)    # buffers share memory as the memory plan says

Raises `ScheduleFault` for errors that a kernel would not notice:

- a read of memory that is unwritten, taken by another buffer, or freed;
- a read of a value that is not computed yet, not complete yet, gone with its pass, or computed at another point;
- two points that access one element in no certain order, if one access is a write;
- an access outside of a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pycompiler.ir.interpret import (
    Grid,
    InterpretError,
    check_range,
    number_of,
    reduce,
    run_body,
    run_extern,
    storage_extent,
)
from pycompiler.ir.kernel import LOADS, Dim, KernelGroup, Nest, Schedule, Stage
from pycompiler.ir.loops import Buffer, Extern, Op, Ref
from pycompiler.symbolic.expr import Expr

# Parts of a pass, in order: row values, the inner loops, values that these completed; then the end of the nest.
ROW, INNER, DONE, END = range(4)
Time = tuple[int, int, int]  # level, part of the pass, position in the nest


class ScheduleFault(InterpretError):
    """The schedule does something illegal."""


def interpret_schedule(schedule: Schedule, inputs: Sequence[Any], *, share: bool = False) -> list[Any]:
    """The outputs on `inputs`.  Mutated inputs are written in place, as kernels would do."""
    m = _ScheduleMachine(schedule, share)
    m.give(inputs)
    frees = schedule.frees or [[] for _ in schedule.steps]
    for step, dead in zip(schedule.steps, frees, strict=True):
        if isinstance(step, Extern):
            m.extern(step)
        else:
            m.group(step)
        if share:
            for name in dead:
                m.free(name)
    return [m.output(o, inputs) for o in schedule.program.outputs]


@dataclass
class _Block:
    """Memory.  `flat`: a view for the buffer `holder`; `written`: a mask of written elements; `size`: in bytes."""

    holder: str
    flat: Tensor
    written: Tensor
    size: int


@dataclass
class _ScheduleMachine:
    schedule: Schedule
    share: bool
    blocks: dict[str, _Block] = field(default_factory=dict)
    freed: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)

    def ints(self, exprs: Sequence[Expr]) -> list[int]:
        return [e.eval(self.sizes) for e in exprs]

    def give(self, inputs: Sequence[Any]) -> None:
        """Register inputs and constants as existing memory, completely written."""
        program = self.schedule.program
        self.sizes = program.sizes(inputs)
        for buffer, value in zip(program.inputs, inputs, strict=True):
            if buffer is not None:
                self.own(buffer.name, value)
        for name, constant in program.constants.items():
            self.own(name, constant)

    def own(self, name: str, t: Tensor) -> None:
        extent = storage_extent(t.shape, t.stride())
        flat = t.detach().as_strided((extent,), (1,), t.storage_offset())
        self.blocks[name] = _Block(name, flat, torch.ones(extent, dtype=torch.bool), extent * t.element_size())

    def home(self, name: str) -> str:
        """The buffer in whose memory `name` lives.

        It is another buffer only if the memory plan is followed, or if `name` is the new value of an input.
        """
        if self.share or name in self.schedule.stores:
            return self.schedule.storage.get(name, name)
        return name

    def allocate(self, buffer: Buffer) -> _Block:
        """The memory of a buffer that is about to be computed, filled with the marker of unwritten storage."""
        home = self.home(buffer.name)
        if home == self.schedule.stores.get(buffer.name):
            return self.blocks[home]
        extent = storage_extent(self.ints(buffer.shape), self.ints(buffer.stride))
        need, before = extent * buffer.dtype.itemsize, self.blocks.get(home)
        if home in self.freed:
            raise ScheduleFault(f"{buffer.name} is stored in {home}, which was freed")
        if before is not None and before.size < need:
            raise ScheduleFault(f"{buffer.name} does not fit into the memory of {home}")
        flat = torch.full((extent,), _filler(buffer.dtype), dtype=buffer.dtype)
        size = need if before is None else before.size
        self.blocks[home] = _Block(buffer.name, flat, torch.zeros(extent, dtype=torch.bool), size)
        return self.blocks[home]

    def replace(self, target: str, name: str) -> _Block:
        """The memory of `target`, which `name` replaces, element by element."""
        old = self.block(target)
        self.blocks[self.home(name)] = _Block(name, old.flat, torch.zeros_like(old.written), old.size)
        return self.blocks[self.home(name)]

    def block(self, name: str) -> _Block:
        """The memory of a buffer that is read."""
        home = self.home(name)
        if home in self.freed:
            raise ScheduleFault(f"{name} is read after its memory was freed")
        found = self.blocks.get(home)
        if found is None:
            raise ScheduleFault(f"{name} is read before it is made")
        if found.holder != name and name not in self.schedule.stores:
            raise ScheduleFault(f"{name} is read, but its memory holds {found.holder}")
        return found

    def free(self, name: str) -> None:
        if name not in self.blocks or name in self.freed:
            raise ScheduleFault(f"{name} is freed, but has no memory")
        self.freed.add(name)

    def tensor(self, ref: Ref) -> Tensor:
        """A view; `run_extern` reads it or has just allocated it."""
        flat = self.block(ref.buffer).flat
        return flat.as_strided(self.ints(ref.shape), self.ints(ref.stride), flat.storage_offset() + self.at(ref.offset))

    def at(self, e: Expr) -> int:
        return e.eval(self.sizes)

    def covered(self, ref: Ref) -> Tensor:
        """Positions of a view's elements."""
        shape, stride = self.ints(ref.shape), self.ints(ref.stride)
        at = torch.tensor(self.at(ref.offset))
        for n, s in zip(shape, stride, strict=True):
            at = at[..., None] + torch.arange(n) * s
        return at.reshape(-1)

    def check_written(self, ref: Ref, who: object) -> None:
        block = self.block(ref.buffer)
        if not bool(block.written[self.covered(ref)].all()):
            raise ScheduleFault(f"{who} reads {ref.buffer}, parts of which nothing has written")

    def extern(self, node: Extern) -> None:
        for ref in _refs([node.args, node.kwargs]):
            if ref.buffer not in node.mutates:
                self.check_written(ref, node.op)
        run_extern(self, node)
        for b in node.out:
            if b is not None:
                self.block(b.name).written.fill_(True)
        for ref in _refs([node.args, node.kwargs]):
            if ref.buffer in node.mutates:
                self.block(ref.buffer).written[self.covered(ref)] = True

    def group(self, group: KernelGroup) -> None:
        for nest in group.nests:
            _NestRun(self, group, nest).run()

    def output(self, output: Ref | int | tuple[Any] | None, inputs: Sequence[Any]) -> Any:
        if isinstance(output, Ref):
            self.check_written(output, "the result")
            return self.tensor(output)
        if isinstance(output, tuple):
            return number_of(output[0], self.sizes)
        return None if output is None else inputs[output]


def _filler(dtype: torch.dtype) -> Any:
    return float("nan") if dtype.is_floating_point else True if dtype == torch.bool else 77


def _refs(value: Any) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [ref for item in items for ref in _refs(item)]


@dataclass
class _HeldValue:
    """A value held by the nest: `value`, and the position `at` at which it is stored, per point of the nest."""

    stage: Stage
    place: str
    value: Tensor
    at: Tensor
    time: Time


@dataclass
class _Access:
    """Elements of one block that points of the nest accessed: `row` and `point` are indices of points, `when` a time."""

    name: str
    elements: Tensor
    row: Tensor
    point: Tensor
    when: Time


@dataclass
class _NestRun:
    """One nest.  A value is a tensor with one dimension per dimension of the nest, of size 1 where the value does not vary."""

    m: _ScheduleMachine
    group: KernelGroup
    nest: Nest
    held: dict[str, _HeldValue] = field(default_factory=dict)
    reads: dict[str, list[_Access]] = field(default_factory=dict)
    writes: dict[str, list[_Access]] = field(default_factory=dict)
    now: Time = (0, ROW, 0)
    reader: Stage | None = None

    def run(self) -> None:
        self.shape = tuple(self.m.ints([n for _, n in self.nest.dims]))
        self.names = [v for v, _ in self.nest.dims]
        self.grid = Grid.of(self.names, self.shape, self.m.sizes)
        self.outer = len(self.nest.outer)
        points = torch.arange(math.prod(self.shape)).reshape(self.shape)
        self.point = points
        self.row = points // max(1, math.prod(self.shape[self.outer :]))
        self.makers = {name: s for s in self.nest.stages for name in s.outputs}
        stages = list(enumerate(self.nest.stages))
        for level in sorted({s.level for _, s in stages}):
            now = [(k, s) for k, s in stages if s.level == level]
            parts = [(k, s, ROW if self.nest.inner and self.in_row(s) else INNER) for k, s in now]
            for k, s, part in sorted(parts, key=lambda entry: entry[2]):
                self.stage(k, s, part)
            for name in [n for n, h in self.held.items() if h.stage.role == "point" and h.place != "scratch"]:
                del self.held[name]  # in memory, or gone with the pass
        self.check_order()

    def dims(self, stage: Stage) -> set[str]:
        red = stage.loop.reduction
        return set(stage.loop.vars) | (set(red.vars) if red else set())

    def in_row(self, stage: Stage) -> bool:
        inner = {v for v, _ in self.nest.inner}
        return stage.role == "row" or (stage.role == "accumulate" and not self.dims(stage) & inner)

    def space(self, dims: Sequence[Dim] | set[str]) -> tuple[int, ...]:
        """The nest's shape, with size 1 in dimensions that are not among `dims`."""
        kept = dims if isinstance(dims, set) else {v for v, _ in dims}
        return tuple(n if v in kept else 1 for v, n in zip(self.names, self.shape, strict=True))

    def stage(self, k: int, stage: Stage, part: int) -> None:
        self.now, self.reader = (stage.level, part, k), stage
        loop = stage.loop
        shape = self.space(self.dims(stage))
        self.check_space(stage)
        grid = Grid(shape, {**self.grid.index, **{v: self.grid.index[v] for v in self.dims(stage)}})
        values = run_body(self, grid, loop.body)
        results: Sequence[Tensor] = [values[r].expand(shape) for r in loop.results]
        if loop.reduction is not None:
            results = self.folded(stage, results[0])
            shape = self.space(set(loop.vars))
            self.now = (stage.level, END if stage.role == "accumulate" else DONE, k)
        for b, value, where in zip(loop.out, results, loop.store_index, strict=True):
            at = grid.eval(where, values).expand(shape)
            place = stage.place[b.name]
            self.held[b.name] = _HeldValue(stage, place, value, at, self.now)
            if place == "memory":
                self.store(stage, b, at, value)

    def check_space(self, stage: Stage) -> None:
        want = {"point": set(self.names), "row": {v for v, _ in self.nest.outer}}.get(stage.role)
        if want is not None and self.dims(stage) != want:
            raise ScheduleFault(f"{stage.role} {stage.outputs[0]} does not range over {sorted(want)}")
        if stage.role in ("reduce", "column") and not {v for v, _ in self.nest.outer} <= set(stage.loop.vars):
            raise ScheduleFault(f"{stage.role} {stage.outputs[0]} folds outer dimensions")

    def folded(self, stage: Stage, value: Tensor) -> Sequence[Tensor]:
        """The fold's results: one value per point of the loop's own variables."""
        loop = stage.loop
        assert loop.reduction is not None
        order = [self.names.index(v) for v in (*loop.vars, *loop.reduction.vars)]
        rest = [d for d in range(len(self.names)) if d not in order]
        kind = loop.reduction.kind
        flat = value.permute(*order, *rest)
        flat = flat.reshape(flat.shape[: len(order)])
        return [t.reshape(self.space(set(loop.vars))) if self.in_order(loop.vars) else self.back(t, loop.vars)
                for t in reduce(kind, flat, len(loop.vars))]  # fmt: skip

    def in_order(self, names: Sequence[str]) -> bool:
        places = [self.names.index(v) for v in names]
        return places == sorted(places)

    def back(self, t: Tensor, names: Sequence[str]) -> Tensor:
        """A tensor over `names` as a tensor over the nest's dimensions."""
        order = sorted(range(len(names)), key=lambda k: self.names.index(names[k]))
        return t.permute(*order).reshape(self.space(set(names)))

    # ---- reads -----------------------------------------------------------------------------------------------------

    def load(self, op: Op, at: Tensor, mask: Tensor | None) -> Tensor:
        """The memory of `run_body`."""
        name, reader = op.attrs[0], self.reader
        assert op.name in LOADS
        assert reader is not None
        held = self.held.get(name)
        if held is None:
            maker = self.makers.get(name)
            if maker is not None and maker.place[name] != "memory":
                when = "before it is made" if maker.level >= self.now[0] else f"which only lives in pass {maker.level}"
                raise ScheduleFault(f"{reader.outputs[0]} (level {reader.level}) reads {name}, {when}")
            return self.memory(name, at, mask)
        role = held.stage.role
        if role == "accumulate" or (role in ("reduce", "column") and held.time[0] >= self.now[0]):
            raise ScheduleFault(f"{reader.outputs[0]} (level {reader.level}) reads {name} before its fold is complete")
        if held.place == "memory" and held.stage.loop.store_mode == "add":
            return self.memory(name, at, mask)
        different = at != held.at
        if bool((different if mask is None else different & mask).any()):
            raise ScheduleFault(f"{reader.outputs[0]} reads {name} at another point than where it is made")
        return held.value.expand([max(n, k) for n, k in zip(held.value.shape, different.shape, strict=True)])

    def memory(self, name: str, at: Tensor, mask: Tensor | None) -> Tensor:
        block = self.m.block(name)
        touched = at if mask is None else at[mask]
        check_range(f"load {name}", touched, block.flat)
        if not bool(block.written[touched].all()):
            assert self.reader is not None
            raise ScheduleFault(f"{self.reader.outputs[0]} reads elements of {name} that nothing has written")
        self.note(self.reads, name, at, mask)
        if mask is None:
            # for a single element, indexing alone would return a view
            return block.flat[at.reshape(-1)].reshape(at.shape)
        result = block.flat.new_zeros(at.shape)
        result[mask] = block.flat[touched]
        return result

    def note(self, log: dict[str, list[_Access]], name: str, at: Tensor, mask: Tensor | None) -> None:
        """Record the elements that points access.  Row values and folds belong to the row, not to a point of it."""
        assert self.reader is not None
        if 0 in self.shape:
            return
        shape = at.shape if self.now[1] in (DONE, END) else self.space(self.dims(self.reader))
        row, point = (t[tuple(slice(n) for n in shape)] for t in (self.row, self.point))
        at, row, point = (t.expand(shape) for t in (at, row, point))
        chosen = [t.reshape(-1) if mask is None else t[mask.expand(shape)] for t in (at, row, point)]
        log.setdefault(self.m.home(name), []).append(_Access(name, chosen[0], chosen[1], chosen[2], self.now))

    # ---- stores ----------------------------------------------------------------------------------------------------

    def store(self, stage: Stage, b: Buffer, at: Tensor, value: Tensor) -> None:
        block = self.m.block(b.name) if stage.loop.init else self.memory_of(b)
        at = at.reshape(-1)
        check_range(f"{b.name}: store", at, block.flat)
        if value.dtype != block.flat.dtype:
            raise ScheduleFault(f"{b.name}: a {value.dtype} is stored into {block.flat.dtype}")
        if stage.loop.store_mode == "add":
            block.flat.index_put_((at,), value.reshape(-1), accumulate=True)
            return
        if torch.unique(at).numel() != at.numel():
            raise ScheduleFault(f"{b.name}: two points write one element")
        self.note(self.writes, b.name, at.reshape(value.shape), None)
        block.flat[at] = value.reshape(-1)
        block.written[at] = True

    def memory_of(self, b: Buffer) -> _Block:
        home = self.m.home(b.name)
        if self.m.share and b.name in self.group.stores and b.name not in self.m.schedule.stores:
            return self.m.replace(self.group.stores[b.name], b.name)
        if self.m.share and home != b.name and home != self.m.schedule.stores.get(b.name):
            taken = self.reads.get(home, []) + self.writes.get(home, [])
            if taken:
                raise ScheduleFault(f"{b.name} takes the memory of {taken[0].name}, which its nest still uses")
        return self.m.allocate(b)

    def check_order(self) -> None:
        """Check each element: one row reads and writes it, and within one pass one point."""
        for home, writes in self.writes.items():
            size = self.m.blocks[home].flat.numel()
            for w in writes:
                row, point = torch.full((size,), -1), torch.full((size,), -1)
                row[w.elements], point[w.elements] = w.row, w.point
                for r in self.reads.get(home, []):
                    self.check_pair(w, r, row[r.elements], point[r.elements])

    def check_pair(self, w: _Access, r: _Access, row: Tensor, point: Tensor) -> None:
        if w.when[1] == END:  # stored when all points are done
            return
        theirs = row >= 0
        wrong = theirs & (row != r.row)
        if w.when[:2] == r.when[:2] and w.when[1] == INNER:
            wrong |= theirs & (point != r.point)
        if bool(wrong.any()):
            raise ScheduleFault(
                f"a point of the nest reads {r.name} where another one stores {w.name}, in no certain order"
            )
