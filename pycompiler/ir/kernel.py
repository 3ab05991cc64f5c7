"""Schedules: kernels in order, and the memory of each buffer.

In: nothing (plain data).  Out: `Schedule`, a list of `KernelGroup`s and `Extern`s.  A `KernelGroup` is one function of
the generated library: one or more `Nest`s run one after the other.  A `Nest` is a loop nest over `outer` (parallel)
and, inside, `inner` dimensions, shared by all its stages:

    kernel softmax_0(in0) -> b2
      nest rows [d0: 2048] inner [d1: 1024]
        0 reduce  b0  register      max
        0 ...
        1 point   b1  scratch       exp(in0 - b0)

Roles.  `point`: one value per point of outer x inner.  `reduce`: a fold over inner, one value per outer point.
`row`: one value per outer point.  `column`: a fold over some inner dimensions, one value per outer point and per point
of the other inner dimensions (an array of a row).  `accumulate`: a fold over the outer dimensions, complete only when the
nest ends; it also folds the inner dimensions that its output does not have.

Levels.  Stages of level k run in the k-th pass over inner.  A `reduce` or `column` of level k is complete after that
pass.  Within a pass, stages that do not depend on inner variables come first.  Without inner dimensions, stages run in
their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pycompiler.ir.loops import Buffer, Extern, Loop, Program
from pycompiler.ir.target import Target
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely_product

LOADS = ("load", "masked_load")


class Unsupported(NotImplementedError):
    """A construct that a code generator cannot express.

    `origin`: ATen nodes of the loops that contain it.  They are retried without fusion, then called as ATen kernels.
    """

    def __init__(self, why: str, origin: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.origin = frozenset(origin)


Role = Literal["point", "reduce", "row", "accumulate", "column"]
# Where a stage's result lives: a variable of the row or of the pass; an array of one row; memory (a plan's buffer).
MemoryKind = Literal["register", "scratch", "memory"]
Dim = tuple[str, Expr]


def loads(loop: Loop) -> Iterator[tuple[str, Expr]]:
    """(buffer, index) of each load."""
    for op in loop.body:
        if op.name in LOADS:
            yield op.attrs[0], op.attrs[1]


def space_of(loop: Loop) -> list[Dim]:
    """All variables that the loop ranges over, the folded ones last."""
    dims = list(zip(loop.vars, loop.ranges, strict=True))
    if loop.reduction:
        dims += zip(loop.reduction.vars, loop.reduction.ranges, strict=True)
    return dims


def numel(dims: Sequence[Dim]) -> int | None:
    """The number of points, None if symbolic."""
    total = 1
    for _, n in dims:
        if not n.is_const:
            return None
        total *= n.as_int()
    return total


def hinted_points(dims: Sequence[Dim]) -> int | None:
    """The likely number of points, for heuristics; None if unknown."""
    return likely_product([n for _, n in dims])


@dataclass
class Stage:
    """A Loop in the variables of its nest.  `place` and `level` are decided after fusion."""

    loop: Loop
    role: Role
    level: int = 0
    place: dict[str, MemoryKind] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.loop.out)


@dataclass
class Nest:
    """`split`: how many of `dims` are outer.  A nest without reductions has split None: any division is right."""

    dims: list[Dim]
    split: int | None
    stages: list[Stage]

    @property
    def origin(self) -> list[str]:
        """The ATen nodes that it computes."""
        return list(dict.fromkeys(name for s in self.stages for name in s.loop.origin))

    @property
    def outer(self) -> list[Dim]:
        return self.dims if self.split is None else self.dims[: self.split]

    @property
    def inner(self) -> list[Dim]:
        return [] if self.split is None else self.dims[self.split :]


@dataclass(frozen=True)
class DeviceKernel:
    """A part of a group on a GPU: a function of the generated module, started as a grid of programs.

    `arguments`: buffers, by name, and numbers, in the order of its parameters, whose `types` are Triton's.
    `workspaces`: buffers allocated for this kernel; the group's later kernels use them too.  `constants`: of its binary.
    `checks`: it asserts on the device that the program's indices are in range.
    """

    name: str
    grid: tuple[Expr, Expr, Expr]
    arguments: tuple[str | Expr, ...]
    types: tuple[str, ...]
    constants: dict[str, int]
    workspaces: tuple[Buffer, ...] = ()
    checks: bool = False


@dataclass
class KernelGroup:
    """One function.

    `reads`/`writes`: buffers in memory, in the order of the pointer arguments (writes follow reads).
    `scalars`: symbols whose values it needs.
    `stores`: buffer -> the buffer whose elements it replaces: an input, or one that no later step reads.  If that one is
    read too, its pointer is used.  A code generator sets the `symbol` in the library (several groups may share one), or
    the `kernels` of a GPU.
    """

    name: str
    nests: list[Nest]
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    work: int = 0
    symbol: str = ""
    kernels: tuple[DeviceKernel, ...] | None = None
    stores: dict[str, str] = field(default_factory=dict)

    def stages(self) -> Iterator[Stage]:
        for nest in self.nests:
            yield from nest.stages

    @property
    def pointers(self) -> list[str]:
        reads = set(self.reads)
        return self.reads + [w for w in self.writes if w not in reads and self.stores.get(w) not in reads]

    @property
    def shared(self) -> dict[str, str]:
        """Buffers without a pointer of their own: buffer -> the one that it replaces, element by element."""
        return {b: target for b, target in self.stores.items() if target in self.reads}


@dataclass
class Schedule:
    """`steps` in order, for `target`.

    `storage`: buffer -> the buffer whose memory it uses (itself unless it reuses another's).
    `frees`: per step, the buffers whose memory is dead after it.
    `stores`: buffer -> the input whose new value it is and in whose memory it lives (a mutated input, written in place).
    """

    program: Program
    steps: list[KernelGroup | Extern]
    buffers: dict[str, Buffer]
    target: Target
    storage: dict[str, str] = field(default_factory=dict)
    frees: list[list[str]] = field(default_factory=list)
    stores: dict[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> list[KernelGroup]:
        return [s for s in self.steps if isinstance(s, KernelGroup)]

    def __str__(self) -> str:
        lines = []
        for step, frees in zip(self.steps, self.frees or [[]] * len(self.steps), strict=True):
            lines += [_extern_text(step)] if isinstance(step, Extern) else _group_text(step)
            if frees:
                lines.append(f"  free {', '.join(frees)}")
        return "\n".join(lines)


def _extern_text(step: Extern) -> str:
    return f"extern {step.op} -> {', '.join(b.name if b else '_' for b in step.out)}"


def _group_text(group: KernelGroup) -> list[str]:
    writes = [f"{w} in {group.stores[w]}" if w in group.stores else w for w in group.writes]
    lines = [f"kernel {group.name}({', '.join(group.reads)}) -> {', '.join(writes)}"]
    for nest in group.nests:
        show = [f"{v}: {n}" for v, n in nest.dims]
        split = len(show) if nest.split is None else nest.split
        lines.append(f"  nest [{', '.join(show[:split])}] inner [{', '.join(show[split:])}]")
        for s in nest.stages:
            fold = s.loop.reduction.kind if s.loop.reduction else ""
            where = ", ".join(f"{n} {s.place.get(n, '?')}" for n in s.outputs)
            lines.append(f"    {s.level} {s.role:10} {where:30} {fold:7} {' '.join(s.loop.origin)}")
    return lines
