"""Schedule -> Triton source: one Python module per graph, a `@triton.jit` function per nest of its kernel groups.

In: `ir.kernel.Schedule`.  Out: the text of the module.  Each group's `kernels` say how its functions are launched.
`tiles.py` decides how a nest becomes tiles, `nest.py` writes it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pycompiler.codegen.triton.nest import NestWriter
from pycompiler.codegen.triton.partial_results import followed, followers, joined
from pycompiler.codegen.triton.tiles import tiles_of
from pycompiler.ir.kernel import DeviceKernel, KernelGroup, Nest, Schedule, Unsupported, loads
from pycompiler.ir.loops import Buffer
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import hinted

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice

from pycompiler.kernels.triton.helpers import *  # {helpers}
"""

# Triton's names of pointer types.
POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.float16: "*fp16",
            torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
            torch.bool: "*i1"}  # fmt: skip


@functools.cache
def header() -> str:
    """The head of a module.  It contains a hash of `kernels/triton/helpers.py`, since kernels depend on that text."""
    text = (Path(__file__).parents[2] / "kernels" / "triton" / "helpers.py").read_bytes()
    return HEADER.format(helpers=hashlib.sha256(text).hexdigest()[:16])


def generate(schedule: Schedule) -> str:
    """The module's text, "" without kernels; raises Unsupported if a part has no Triton form."""
    module = _Module(schedule)
    with hinted(schedule.program.hints):
        for group in schedule.kernels:
            group.kernels = tuple(module.group(group))
    return "\n\n".join(module.parts) if len(module.parts) > 1 else ""


@dataclass
class _Module:
    schedule: Schedule
    parts: list[str] = field(default_factory=lambda: [header()])

    def group(self, group: KernelGroup) -> Iterator[DeviceKernel]:
        """The kernels of a group, without nests that have no points."""
        rest = list(group.nests)
        names = {id(nest): f"{group.name}_nest{i}" for i, nest in enumerate(rest)}
        while rest:
            nest = rest.pop(0)
            try:
                yield from self.nest(names[id(nest)], nest, group, {}, rest)
            except Unsupported as refused:
                raise Unsupported(str(refused), nest.origin) from None

    def nest(
        self, name: str, nest: Nest, group: KernelGroup, spaces: dict[str, Buffer], rest: list[Nest]
    ) -> Iterator[DeviceKernel]:
        """The kernels of a nest.  `spaces`: workspaces that earlier kernels have filled, by the name of their pointer.
        `rest`: the later nests of the group; those that become part of this one's kernels are removed."""
        if any(n == 0 for _, n in nest.dims):
            return
        used = _used(nest)
        homes = {b: b for b in group.pointers} | group.shared
        # numbered for this nest alone, so that equal nests have equal texts
        numbers = {home: f"p{i}" for i, home in enumerate(dict.fromkeys(homes[b] for b in homes if b in used))}
        pointers = {b: numbers[home] for b, home in homes.items() if b in used} | {w: w for w in spaces if w in used}
        buffers = {**self.schedule.buffers, **spaces}
        parameters = list(dict.fromkeys(pointers.values()))
        kernel = NestWriter(nest, tiles_of(nest, self.schedule.target), buffers, pointers, name).write(parameters)
        self.parts.append(kernel.text)
        made = {w.name: replace(w, name=f"{name}_{w.name}") for w in kernel.workspaces}
        targets = {p: buffers[homes.get(b, b)] for b, p in pointers.items()} | made
        targets |= {w: spaces[w] for w in spaces if w in used}
        arguments = [targets[p] for p in (*parameters, *made)]
        x, y = kernel.grid
        yield DeviceKernel(
            name,
            (x, y, Expr.of(1)),
            (*(b.name for b in arguments), *map(Expr.sym, kernel.sizes)),
            (*(POINTERS[b.dtype] for b in arguments), *["i64"] * len(kernel.sizes)),
            kernel.constants,
            tuple(made.values()),
            kernel.checks,
        )
        finish = joined(kernel.finish)
        for k, last in enumerate(finish):
            others = {b for f in finish[k + 1 :] for s in f.stages for b in s.outputs}
            for later in list(followers(rest, group)):
                if others.isdisjoint(_used(later)) and (both := followed(last, later)) is not None:
                    rest.remove(later)
                    last = both
            yield from self.nest(f"{name}_finish{k}", last, group, made, [])


def _used(nest: Nest) -> set[str]:
    """Buffers in memory that a nest accesses."""
    stored = {name for s in nest.stages for name, place in s.place.items() if place == "memory"}
    return stored | {name for s in nest.stages for name, _ in loads(s.loop)}


__all__ = ["Unsupported", "generate"]
