"""Schedule -> Triton source: one Python module per graph, one function per kernel group.

In: `ir.kernel.Schedule`.  Out: `TritonSource`, the text of a module that defines, per kernel group, a `@triton.jit`
kernel and a launcher of the group's name that takes its tensors in the order of `KernelGroup.pointers`.

A nest becomes a tile of XBLOCK points of its outer space times RBLOCK points of its inner space, which holds the whole
inner space at once: every stage is evaluated once, in order, on values in registers; folds run along the tile's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pycompiler.codegen.triton import ops
from pycompiler.codegen.triton.types import HALF, Unsupported, cast, compute, constant, identity, storage
from pycompiler.ir.expr import Expr
from pycompiler.ir.kernel import Dim, Nest, Schedule, Stage, numel
from pycompiler.ir.loops import Buffer, Op

MAX_INNER = 65536  # elements of an inner space that one program holds
TILE = 4096  # elements of a tile, about
POINTWISE_BLOCK = 1024

HEADER = """import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from pycompiler.codegen.triton.helpers import *
"""


@dataclass(frozen=True)
class TritonSource:
    """`kernels`: names of the jit functions, in order; `symbols`: names of the launchers."""

    text: str
    symbols: tuple[str, ...]
    kernels: tuple[str, ...]


def generate(schedule: Schedule) -> TritonSource:
    """Raises Unsupported when something has no Triton form."""
    parts: list[str] = [HEADER]
    kernels: list[str] = []
    for group in schedule.kernels:
        launches: list[str] = []
        arguments = [f"p{i}" for i in range(len(group.pointers))]
        for i, nest in enumerate(group.nests):
            name = f"{group.name}_nest{i}"
            writer = NestWriter(nest, schedule.buffers, dict(zip(group.pointers, arguments, strict=True)))
            text, grid, options = writer.write(name, arguments)
            parts.append(text)
            kernels.append(name)
            launches.append(f"    {name}[({grid},)]({', '.join([*arguments, *options])})")
        group.symbol = group.name
        parts.append("\n".join([f"def {group.name}({', '.join(arguments)}):", *launches, ""]))
    return TritonSource("\n\n".join(parts), tuple(g.name for g in schedule.kernels), tuple(kernels))


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _count(dims: Sequence[Dim]) -> int:
    total = numel(dims)
    if total is None:
        raise Unsupported("symbolic sizes")
    return total


@dataclass
class NestWriter:
    """Writes one nest as one kernel."""

    nest: Nest
    buffers: Mapping[str, Buffer]
    pointers: Mapping[str, str]
    lines: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    count: int = 0
    checks: bool = False

    def write(self, name: str, arguments: Sequence[str]) -> tuple[str, str, list[str]]:
        """(text of the kernel, grid, constant arguments of the launch)."""
        outer, inner = (self.nest.outer, self.nest.inner)
        xnumel, rnumel = _count(outer), _count(inner)
        if rnumel > MAX_INNER:
            raise Unsupported(f"a row of {rnumel} elements; expected at most {MAX_INNER}")
        if any(s.role in ("accumulate", "column") for s in self.nest.stages):
            raise Unsupported("a fold over the outer dimensions")
        rblock = _power_of_two(rnumel)
        xblock = POINTWISE_BLOCK if not inner else max(1, min(_power_of_two(xnumel), TILE // rblock))
        xblock = min(xblock, max(16, _power_of_two(xnumel))) if not inner else xblock
        self.names = {**self.split(outer, "xi"), **self.split(inner, "ri")}
        self.inner_vars = {v for v, _ in inner}
        body = self.prologue(outer, inner, xnumel, rnumel)
        for stage in self.nest.stages:
            self.stage(stage)
        decorator = "@triton.jit(debug=True)" if self.checks else "@triton.jit"
        head = f"def {name}({', '.join([*arguments, 'XBLOCK: tl.constexpr', 'RBLOCK: tl.constexpr'])}):"
        origin = " ".join(dict.fromkeys(o for s in self.nest.stages for o in s.loop.origin))
        types = {p: storage(self.buffers[b].dtype) for b, p in self.pointers.items()}
        casts = [f"    {p} = {p}.to(tl.pointer_type({t}))" for p, t in types.items()]  # memory is reused across dtypes
        text = "\n".join([decorator, head, f"    # {origin}", *casts, *body, *("    " + line for line in self.lines)])
        warps = 4 if rblock * xblock <= 2048 else 8 if rblock * xblock <= 8192 else 16
        options = [f"XBLOCK={xblock}", f"RBLOCK={rblock}", f"num_warps={warps}"]
        return text, str(-(-xnumel // xblock)), options

    def split(self, dims: Sequence[Dim], flat: str) -> dict[str, str]:
        """Each variable as a name; the statements are written by `prologue`."""
        return {v: f"{flat}{k}" for k, (v, _) in enumerate(dims)}

    def prologue(self, outer: Sequence[Dim], inner: Sequence[Dim], xnumel: int, rnumel: int) -> list[str]:
        wide = xnumel * max(rnumel, 1) >= 2**31
        start = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
        lines = [
            f"    x = {start} * XBLOCK + tl.arange(0, XBLOCK)[:, None]",
            f"    xmask = x < {xnumel}",
            "    r = tl.arange(0, RBLOCK)[None, :]",
            f"    rmask = r < {rnumel}",
            "    mask = xmask & rmask",
        ]
        for dims, flat in ((outer, "x"), (inner, "r")):
            stride = 1
            for k, (_, n) in reversed(list(enumerate(dims))):
                size = n.as_int()
                text = flat if stride == 1 else f"({flat} // {stride})"
                if k:
                    text = f"({text} % {size})"
                lines.append(f"    {flat}i{k} = {text}")
                stride *= size
        return lines

    # stages ---------------------------------------------------------------------------------------------------
    def stage(self, stage: Stage) -> None:
        values: list[str] = []
        loop = stage.loop
        for op in loop.body:
            values.append(self.op(stage, op, values))
        results = [(values[r], loop.body[r].dtype) for r in loop.results]
        if loop.reduction is not None:
            results = self.fold(stage, results)
        for buffer, (value, dtype), index in zip(loop.out, results, loop.store_index, strict=True):
            rounded = self.define(cast(value, dtype, buffer.dtype)) if dtype != buffer.dtype else value
            self.held[buffer.name] = rounded
            if stage.place.get(buffer.name) == "memory":
                self.store(stage, buffer, rounded, index, values)

    def store(self, stage: Stage, buffer: Buffer, value: str, index: Expr, values: list[str]) -> None:
        if stage.loop.store_mode != "set":
            raise Unsupported("a scatter")
        vector = stage.role == "point"
        where = self.index(index, stage, values, check=True)
        shape = "[XBLOCK, RBLOCK]" if vector else "[XBLOCK, 1]"
        mask = "mask" if vector else "xmask"
        at = f"{self.pointers[buffer.name]} + tl.broadcast_to({where}, {shape})"
        stored = f"({value}).to({storage(buffer.dtype)})" if buffer.dtype in HALF else value
        self.lines.append(f"tl.store({at}, tl.broadcast_to({stored}, {shape}), {mask})")

    def fold(self, stage: Stage, inputs: list[tuple[str, torch.dtype]]) -> list[tuple[str, torch.dtype]]:
        reduction = stage.loop.reduction
        assert reduction is not None
        value, dtype = inputs[0]
        kind = reduction.kind
        base = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK])"
        if kind == "welford":
            n = _count(list(zip(reduction.vars, reduction.ranges, strict=True)))
            mean = self.define(f"tl.sum(tl.where(rmask, {base}, 0.0), 1)[:, None] / {n}")
            gap = self.define(f"tl.where(rmask, {value} - {mean}, 0.0)")
            return [(mean, dtype), (self.define(f"tl.sum({gap} * {gap}, 1)[:, None]"), dtype)]
        if dtype == torch.bool:
            base = f"{base}.to(tl.int32)"
        filled = self.define(f"tl.where(rmask, {base}, {identity(kind, dtype)})")
        return [(self.define(self.folded(kind, filled, dtype)), torch.int64 if kind.startswith("arg") else dtype)]

    def folded(self, kind: str, filled: str, dtype: torch.dtype) -> str:
        if kind == "sum":
            return f"tl.sum({filled}, 1)[:, None]"
        if kind in ("max", "min"):
            if dtype.is_floating_point:
                return f"tl.reduce({filled}, 1, pyc_nan_{kind})[:, None]"
            return f"tl.{kind}({filled}, 1)[:, None]"
        if kind in ("argmax", "argmin"):
            return f"tl.{kind}({filled}, 1)[:, None].to(tl.int64)"
        if kind == "prod":
            return f"tl.reduce({filled}, 1, pyc_product)[:, None]"
        if kind in ("any", "all"):
            return f"(tl.{'max' if kind == 'any' else 'min'}({filled}, 1)[:, None] != 0)"
        raise Unsupported(f"reduction {kind}")

    # values ---------------------------------------------------------------------------------------------------
    def define(self, text: str) -> str:
        """A name for the value of `text`, the same for the same text."""
        found = self.known.get(text)
        if found is None:
            self.count += 1
            found = self.known[text] = f"t{self.count}"
            self.lines.append(f"{found} = {text}")
        return found

    def op(self, stage: Stage, op: Op, values: list[str]) -> str:
        if op.name == "const":
            return self.define(constant(op.attrs[0], op.dtype))
        if op.name == "index":
            kind = compute(op.dtype)
            return self.define(f"({self.index(op.attrs[0], stage, values)} + tl.zeros((1, 1), {kind})).to({kind})")
        if op.name in ("load", "masked_load"):
            return self.load(stage, op, values)
        if op.name == "wrap_index":
            size = self.index(op.attrs[0], stage, values)
            value = values[op.args[0]]
            return self.define(f"tl.where({value} < 0, {value} + {size}, {value})")
        arguments = [values[a] for a in op.args]
        dtypes = [stage.loop.body[a].dtype for a in op.args]
        return self.define(ops.pointwise(op.name, arguments, dtypes, op.dtype))

    def load(self, stage: Stage, op: Op, values: list[str]) -> str:
        name, index = op.attrs[0], op.attrs[1]
        if name in self.held:
            return self.held[name]
        where = self.index(index, stage, values, check=True)
        vector = bool(index.symbols & self.inner_vars) or any(s.startswith("%") for s in index.symbols)
        vector = vector and stage.role != "row"
        shape, mask = ("[XBLOCK, RBLOCK]", "mask") if vector else ("[XBLOCK, 1]", "xmask")
        dtype = self.buffers[name].dtype
        other = ""
        if op.name == "masked_load":
            mask = f"{mask} & {values[op.args[0]]}"
            other = ", other=0"
        text = f"tl.load({self.pointers[name]} + tl.broadcast_to({where}, {shape}), {mask}{other})"
        if dtype in HALF:
            text = f"{text}.to(tl.float32)"
        elif dtype == torch.bool:
            text = f"({text} != 0)"
        loaded = self.define(text)
        if op.name == "masked_load":
            return self.define(f"tl.where({values[op.args[0]]}, {loaded}, {values[op.args[1]]})")
        return loaded

    def index(self, e: Expr, stage: Stage, values: list[str], check: bool = False) -> str:
        """Text of an index; the value of an indirect one is asserted to be in range on the device."""
        names = dict(self.names)
        for s in e.symbols:
            if s.startswith("%"):
                names[s] = values[int(s[1:])]
        return e.to_py(names)
