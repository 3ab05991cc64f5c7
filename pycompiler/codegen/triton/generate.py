"""Schedule -> Triton source: one Python module per graph, one function per kernel group.

In: `ir.kernel.Schedule`.  Out: `TritonSource`, the text of a module that defines, per nest, a `@triton.jit` kernel and
its `Launch`, and per group a function of the group's name that takes its tensors in the order of
`KernelGroup.pointers`.  `tiles.py` decides how a nest becomes tiles, `nest.py` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pycompiler.codegen.triton.nest import KernelText, NestWriter
from pycompiler.codegen.triton.tiles import tiles_of
from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, Unsupported, loads
from pycompiler.ir.loops import Buffer

HEADER = """import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from pycompiler.codegen.triton.helpers import *
from pycompiler.runtime.triton_build import HostKernel, Launch
"""


@dataclass(frozen=True)
class KernelInfo:
    """A jit function: argument name -> dtype name for its pointers, and its constants."""

    name: str
    pointers: dict[str, str]
    constants: dict[str, int]


@dataclass(frozen=True)
class TritonSource:
    """`symbols`: names of the launchers; `kernels`: the jit functions, in order."""

    text: str
    symbols: tuple[str, ...]
    kernels: tuple[KernelInfo, ...]


def generate(schedule: Schedule) -> TritonSource:
    """Raises Unsupported when something has no Triton form."""
    module = _Module(schedule)
    for group in schedule.kernels:
        module.group(group)
        group.symbol = group.name
    return TritonSource("\n\n".join(module.parts), tuple(g.name for g in schedule.kernels), tuple(module.kernels))


@dataclass
class _Module:
    schedule: Schedule
    parts: list[str] = field(default_factory=lambda: [HEADER])
    kernels: list[KernelInfo] = field(default_factory=list)

    def group(self, group: KernelGroup) -> None:
        names = {b: f"p{i}" for i, b in enumerate(group.pointers)}
        lines = [f"def {group.name}({', '.join(names.values())}):"]
        names |= {b: names[target] for b, target in group.shared.items()}
        for i, nest in enumerate(group.nests):
            try:
                lines += self.nest(f"{group.name}_nest{i}", nest, names, {})
            except Unsupported as refused:
                raise Unsupported(str(refused), nest.origin) from None
        if len(lines) == 1:
            lines.append("    pass  # there are no points")
        self.parts.append("\n".join([*lines, ""]))

    def nest(
        self, name: str, nest: Nest, names: dict[str, str], spaces: dict[str, Buffer]
    ) -> Iterator[str] | list[str]:
        """The kernels of a nest; returns the lines that launch them."""
        if any(n == 0 for _, n in nest.dims):
            return []
        used = _used(nest)
        pointers = {b: p for b, p in names.items() if b in used} | {w: w for w in spaces if w in used}
        buffers = {**self.schedule.buffers, **spaces}
        kernel = NestWriter(nest, tiles_of(nest), buffers, pointers, name).write(list(dict.fromkeys(pointers.values())))
        arguments = [*dict.fromkeys(pointers.values()), *(w.name for w in kernel.workspaces)]
        self.define(name, kernel, arguments, {p: buffers[b] for b, p in pointers.items()})
        first = next(iter(names.values()))
        lines = [
            f"    {w.name} = torch.empty({w.shape[0].as_int()}, dtype={w.dtype}, device={first}.device)"
            for w in kernel.workspaces
        ]
        lines.append(f"    {name}_launch({', '.join(arguments)})")
        made = {w.name: w for w in kernel.workspaces}
        for k, last in enumerate(kernel.finish):
            lines += self.nest(f"{name}_finish{k}", last, names, made)
        return lines

    def define(self, name: str, kernel: KernelText, arguments: Sequence[str], pointers: dict[str, Buffer]) -> None:
        constants = ", ".join(f"{k}={v}" for k, v in kernel.constants.items())
        self.parts.append(f"{kernel.text}\n\n{name}_launch = Launch({name}, {kernel.grid}, dict({constants}))\n")
        types = {p: b.dtype for p, b in pointers.items()} | {w.name: w.dtype for w in kernel.workspaces}
        shown = {a: str(types[a]).removeprefix("torch.") for a in arguments}
        self.kernels.append(KernelInfo(name, shown, dict(kernel.constants)))


def _used(nest: Nest) -> set[str]:
    """Buffers in memory that a nest touches."""
    stored = {name for s in nest.stages for name, place in s.place.items() if place == "memory"}
    return stored | {name for s in nest.stages for name, _ in loads(s.loop)}


__all__ = ["KernelInfo", "TritonSource", "Unsupported", "generate"]
