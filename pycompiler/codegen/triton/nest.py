"""One nest as one Triton kernel.

In: `Nest`, its `Tiles`, the names of the pointers.  Out: `KernelText`: the function's text, its grid, its constants.
If the nest folds over outer dimensions, also the workspace of partial states and the nest that folds those.

A value has the shape [XBLOCK or 1, RBLOCK or 1], according to the axes it depends on (`TileValue`).  A bf16 or f16
value that is only moved (loads, selections, constants) is stored as the element it is (`elements`), so that it keeps
all bits, also those of a NaN.

Stages are evaluated in order. In a walked nest they are evaluated pass by pass; values of an earlier pass are computed
again if a later pass reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pycompiler import config
from pycompiler.codegen.triton import ops
from pycompiler.codegen.triton.folds import PARTIAL, Fold
from pycompiler.codegen.triton.index import index_text
from pycompiler.codegen.triton.tiles import Tiles, points
from pycompiler.codegen.triton.types import HALF, cast, compute, constant, constant_element, storage
from pycompiler.ir.kernel import Dim, Nest, Stage, Unsupported, space_of
from pycompiler.ir.loops import INDEX_RULES, Buffer, Loop, Op, Reduction
from pycompiler.symbolic.expr import Expr

SCATTER_ADD = (torch.float32, torch.float64, torch.int32, torch.int64)
WIDE = 2**30  # from here positions are 64-bit numbers, since the last tiles extend beyond the last element
VECTOR = 16  # elements; masks that end at its multiples leave loads as wide as they are
MOST_BLOCKS = 65535  # programs along the second axis of a grid


@dataclass(frozen=True)
class TileValue:
    """A name, and the axes of the tile along which its values differ."""

    text: str
    x: bool = False
    r: bool = False

    @property
    def shape(self) -> str:
        return f"[{'XBLOCK' if self.x else '1'}, {'RBLOCK' if self.r else '1'}]"


@dataclass
class KernelText:
    """The text of a kernel.

    - `workspaces`: named like their pointers.
    - `sizes`: symbols whose values follow the pointers.
    - `finish`: nests that fold the workspaces into the outputs.
    """

    text: str
    grid: tuple[Expr, Expr]
    constants: dict[str, int]
    sizes: list[str] = field(default_factory=list)
    workspaces: list[Buffer] = field(default_factory=list)
    finish: list[Nest] = field(default_factory=list)
    checks: bool = False


@dataclass
class NestWriter:
    nest: Nest
    tiles: Tiles
    buffers: Mapping[str, Buffer]
    pointers: Mapping[str, str]
    name: str
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    held: dict[str, TileValue] = field(default_factory=dict)
    known: dict[str, TileValue] = field(default_factory=dict)
    elements: dict[str, str] = field(default_factory=dict)  # value of half precision that is only moved -> its element
    counter: int = 0
    checks: bool = False
    sizes: dict[str, str] = field(default_factory=dict)  # symbol -> parameter
    workspaces: list[Buffer] = field(default_factory=list)
    finish: list[Nest] = field(default_factory=list)

    def write(self, arguments: Sequence[str]) -> KernelText:
        t = self.tiles
        self.made = {name: s for s in self.nest.stages for name in s.outputs}
        self.xvars = {v for v, _ in t.outer}
        self.rvars = {v for v, _ in t.inner}
        self.names = {v: f"x{k}" for k, (v, _) in enumerate(t.outer)} | {v: f"r{k}" for k, (v, _) in enumerate(t.inner)}
        extents = [t.xnumel, t.rnumel, t.xnumel * t.rnumel, *(_extent(self.buffers[b]) for b in self.pointers)]
        self.wide = any(not e.is_const or e.as_int() >= WIDE for e in extents)
        self.body()
        types = {p: storage(self.buffers[b].dtype) for b, p in self.pointers.items()}
        casts = [f"    {p} = {p}.to(tl.pointer_type({t}))" for p, t in types.items()]  # memory is reused across dtypes
        origin = " ".join(dict.fromkeys(o for s in self.nest.stages for o in s.loop.origin))
        constants = {"XBLOCK": t.xblock, "RBLOCK": t.rblock}
        spaces = [b.name for b in self.workspaces]
        names = [*arguments, *spaces, *self.sizes.values(), *(f"{c}: tl.constexpr" for c in constants)]
        head = ["@triton.jit(debug=True)" if self.checks else "@triton.jit", f"def {self.name}({', '.join(names)}):"]
        text = "\n".join([*head, f"    # {origin}", *casts, *self.lines, ""])
        constants["num_warps"] = t.warps
        if config.fast_math:
            constants["enable_fp_fusion"] = True
        return KernelText(text, self.grid(), constants, [*self.sizes], self.workspaces, self.finish, self.checks)

    # structure ------------------------------------------------------------------------------------------------
    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def size(self, e: Expr) -> str:
        """Triton text of a constant, or of a size known only in a call."""
        if e.is_const:
            return str(e.as_int())
        return f"({index_text(e, {s: self.parameter(s) for s in e.symbols}, {})})"

    def parameter(self, symbol: str) -> str:
        return self.sizes.setdefault(symbol, f"size{len(self.sizes)}")

    def is_flat(self) -> bool:
        """Whether the programs use one axis, since the second axis may be too short for them."""
        blocks = self.tiles.grid[1]
        return blocks.const is None or blocks.const > MOST_BLOCKS

    def grid(self) -> tuple[Expr, Expr]:
        rows, blocks = self.tiles.grid
        return (rows * blocks, Expr.of(1)) if self.is_flat() else (rows, blocks)

    def body(self) -> None:
        t = self.tiles
        long = ".to(tl.int64)" if self.wide else ""
        blocks = t.grid[1]
        if self.is_flat():
            self.emit("program = tl.program_id(0).to(tl.int64)")
            self.emit(f"row = program // {self.size(blocks)}")
            self.emit(f"block = program % {self.size(blocks)}")
        else:
            self.emit(f"row = tl.program_id(0){long}")
            self.emit(f"block = tl.program_id(1){long}")
        folds = [s for s in self.nest.stages if s.role == "accumulate" and not t.walked]
        if not t.walked:
            start = "block * RBLOCK + " if t.blocked else ""
            self.columns(f"{start}tl.arange(0, RBLOCK)[None, :]{long}")
        if not folds:
            self.rows("row * XBLOCK")
            if t.walked:
                self.passes()
            else:
                self.stages(self.nest.stages)
            return
        states = {id(s): self.start(self.fold_of(s), f"acc{k}") for k, s in enumerate(folds)}
        tiles = self.size(t.tiles)
        self.emit(f"for tile in range({tiles}):")
        self.depth += 1
        self.rows(f"(row * {tiles} + tile) * XBLOCK")
        self.stages(self.nest.stages, states)
        self.depth -= 1
        self.known.clear()
        for s in folds:
            self.leave(s, states[id(s)])

    def rows(self, start: str) -> None:
        t = self.tiles
        self.emit(f"x = {start} + tl.arange(0, XBLOCK)[:, None]")
        self.exact_x = t.xnumel % (t.tiles * t.xblock) == 0
        if not self.exact_x:
            self.emit(f"xmask = x < {self.size(t.xnumel)}")
        self.split(t.outer, "x")

    def columns(self, text: str, *, inside: bool = False) -> None:
        """The variables along r; `inside`: all of them are known to lie in the space."""
        t = self.tiles
        self.emit(f"r = {text}")
        self.exact_r = inside or t.rnumel % t.rblock == 0
        if not self.exact_r:
            self.emit(f"rmask = r < {self.size(t.rnumel)}")
        self.split(t.inner, "r")

    def split(self, dims: Sequence[Dim], flat: str) -> None:
        stride = Expr.of(1)
        for k, (_, n) in reversed(list(enumerate(dims))):
            text = flat if stride == 1 else f"({flat} // {self.size(stride)})"
            self.emit(f"{flat}{k} = {f'{text} % {self.size(n)}' if k else text}")
            stride = stride * n

    def passes(self) -> None:
        """A walked nest: for each level the row values, then one walk along the row."""
        for level in sorted({s.level for s in self.nest.stages}):
            now = [s for s in self.nest.stages if s.level == level]
            self.stages([s for s in now if s.role == "row"])
            for s in [s for s in now if s.role == "accumulate"]:
                self.leave(s, self.states(s, self.results(s), wide=False))
            walk = [
                s
                for s in now
                if s.role not in ("row", "accumulate") and (s.loop.reduction or "memory" in s.place.values())
            ]
            if not walk:
                continue
            folds = [s for s in walk if s.loop.reduction is not None]
            states = {id(s): self.start(self.fold_of(s), f"acc{level}_{k}") for k, s in enumerate(folds)}
            self.walk(walk, states)
            for s in folds:
                fold = self.fold_of(s)
                self.deliver(s, fold.results(self.collapse(fold, states[id(s)], 1)), True, False)

    def walk(self, stages: Sequence[Stage], states: Mapping[int, list[str]]) -> None:
        """One walk along the row, in chunks.

        If the row's length is no multiple of a vector, only the last chunk has a mask: Triton loads single elements
        under a mask that ends within a vector.
        """
        length, chunk = self.tiles.rnumel, self.tiles.rblock
        whole = length.as_int() // chunk * chunk if length.is_const and length.as_int() % VECTOR else 0
        if whole:
            self.chunk(f"for chunk in range(0, {whole}, RBLOCK):", stages, states, inside=True)
            self.chunk(f"for chunk in range({whole}, {length}, RBLOCK):", stages, states)
        else:
            self.chunk(f"for chunk in range(0, {self.size(length)}, RBLOCK):", stages, states)

    def chunk(
        self, head: str, stages: Sequence[Stage], states: Mapping[int, list[str]], *, inside: bool = False
    ) -> None:
        held, known = dict(self.held), dict(self.known)
        self.emit(head)
        self.depth += 1
        self.columns("chunk + tl.arange(0, RBLOCK)[None, :]" + (".to(tl.int64)" if self.wide else ""), inside=inside)
        self.stages(stages, states)
        self.depth -= 1
        self.held, self.known = held, known

    # stages ---------------------------------------------------------------------------------------------------
    def stages(self, stages: Sequence[Stage], states: Mapping[int, list[str]] | None = None) -> None:
        for s in stages:
            if not all(name in self.held for name in s.outputs):
                self.stage(s, states or {})

    def stage(self, stage: Stage, states: Mapping[int, list[str]]) -> None:
        values = self.evaluate(stage.loop)
        inputs = [values[r] for r in stage.loop.results]
        if stage.loop.reduction is None:
            dtypes = [stage.loop.body[r].dtype for r in stage.loop.results]
            results = [(v.text, d) for v, d in zip(inputs, dtypes, strict=True)]
            wide = stage.role == "point"
            for (value, d), v, b, i in zip(results, inputs, stage.loop.out, stage.loop.store_index, strict=True):
                self.output(stage, b, TileValue(value, v.x, v.r), d, i, values, (True, wide and bool(self.rvars)))
        elif id(stage) in states:
            self.join(stage, states[id(stage)], inputs)
        else:
            self.deliver(stage, self.fold(stage, inputs), True, False)

    def deliver(self, stage: Stage, results: Sequence[tuple[str, torch.dtype]], x: bool, r: bool) -> None:
        for b, (text, dtype), index in zip(stage.loop.out, results, stage.loop.store_index, strict=True):
            self.output(stage, b, self.define(text, x, r), dtype, index, [], (x, r))

    def output(
        self, stage: Stage, b: Buffer, value: TileValue, dtype: torch.dtype, index: Expr, values: Sequence[TileValue],
        shape: tuple[bool, bool],
    ) -> None:  # fmt: skip
        if dtype != b.dtype:
            value = self.define(cast(value.text, dtype, b.dtype), value.x, value.r)
        self.held[b.name] = value
        if stage.place.get(b.name) != "memory":
            return
        where = self.index(index, values)
        whole = TileValue("", *shape)
        at = f"{self.pointers[b.name]} + tl.broadcast_to({where.text}, {whole.shape})"
        stored = value.text
        if b.dtype in HALF:
            stored = self.elements.get(stored) or f"({stored}).to({storage(b.dtype)})"
        stored, mask = f"tl.broadcast_to({stored}, {whole.shape})", self.mask(*shape)
        masked = f", mask={mask}" if mask else ""
        if stage.loop.store_mode == "set":
            self.emit(f"tl.store({at}, {stored}{masked})")
        elif b.dtype in SCATTER_ADD:
            del self.held[b.name]
            self.emit(f"tl.atomic_add({at}, {stored}{masked})")
        else:
            raise Unsupported(f"a scatter that adds {b.dtype}")

    # folds ----------------------------------------------------------------------------------------------------
    def fold_of(self, stage: Stage) -> Fold:
        loop = stage.loop
        assert loop.reduction is not None
        return Fold(loop.reduction.kind, loop.body[loop.results[0]].dtype, self.wide)

    def start(self, fold: Fold, prefix: str) -> list[str]:
        names = [f"{prefix}_{k}" for k in range(len(fold.lanes))]
        for name, value, kind in zip(names, fold.identities, fold.lanes, strict=True):
            self.emit(f"{name} = tl.full([XBLOCK, RBLOCK], {value}, {kind})")
        return names

    def results(self, stage: Stage) -> list[TileValue]:
        values = self.evaluate(stage.loop)
        return [values[r] for r in stage.loop.results]

    def states(self, stage: Stage, inputs: Sequence[TileValue], wide: bool = True) -> list[str]:
        """The tile of states that a stage folds, with identities outside of its space; a column unless `wide`."""
        fold, reduction = self.fold_of(stage), stage.loop.reduction
        assert reduction is not None
        position, stride = Expr.of(0), Expr.of(1)
        for v, n in reversed(list(zip(reduction.vars, reduction.ranges, strict=True))):
            position, stride = position + Expr.sym(v) * stride, stride * n
        shape = "[XBLOCK, RBLOCK]" if wide else "[XBLOCK, 1]"
        ones = f"tl.full({shape}, 1.0, {fold.lanes[0]})"
        space = {v for v, _ in space_of(stage.loop)}
        tile = self.names if wide else {v: self.names[v] for v, _ in self.tiles.outer}
        once = [f"({name} == 0)" for v, name in tile.items() if v not in space]  # the values do not differ along these
        mask = " & ".join([m for m in [self.mask(True, wide), *once] if m])
        out = []
        prepared = fold.prepared([v.text for v in inputs], self.index(position, []).text, ones)
        for text, default, kind in zip(prepared, fold.identities, fold.lanes, strict=True):
            lanes = f"tl.broadcast_to({text}, {shape}).to({kind})"
            out.append(self.define(f"tl.where({mask}, {lanes}, {default})" if mask else lanes, True, wide).text)
        return out

    def fold(self, stage: Stage, inputs: Sequence[TileValue]) -> list[tuple[str, torch.dtype]]:
        """The results of a fold along the whole of r."""
        fold = self.fold_of(stage)
        if fold.kind != "welford":
            return fold.results(self.collapse(fold, self.states(stage, inputs), 1))
        n = points([d for d in space_of(stage.loop) if d[0] not in stage.loop.vars]).as_int()
        zeroed = self.states(stage, inputs)[0]
        mean = self.define(f"tl.sum({zeroed}, 1)[:, None] / {max(n, 1)}", True, False).text
        mask = self.mask(True, True)
        gap = f"{inputs[0].text} - {mean}"
        gap = f"tl.where({mask}, {gap}, 0.0)" if mask else f"tl.broadcast_to({gap}, [XBLOCK, RBLOCK])"
        gap = self.define(gap, True, True).text
        return [(mean, fold.dtype), (f"tl.sum({gap} * {gap}, 1)[:, None]", fold.dtype)]

    def join(self, stage: Stage, states: Sequence[str], inputs: Sequence[TileValue]) -> None:
        fold = self.fold_of(stage)
        new = self.states(stage, inputs)
        self.emit(f"{', '.join(states)} = {fold.combine()}({', '.join([*states, *new])})")

    def collapse(self, fold: Fold, states: Sequence[str], axis: int) -> list[str]:
        self.counter += 1
        names = [f"s{self.counter}_{k}" for k in range(len(states))]
        self.emit(f"{', '.join(names)} = {fold.collapsed(states, axis)}")
        for name in names:
            self.emit(f"{name} = {name}[{':, None' if axis else 'None, :'}]")
        return names

    def leave(self, stage: Stage, states: list[str]) -> None:
        """Store partial states in memory: one per program along x (and per point of r that the output keeps)."""
        fold, t, loop = self.fold_of(stage), self.tiles, stage.loop
        assert loop.reduction is not None
        keeps = bool(set(loop.vars) & self.rvars)
        if not keeps and t.rblock > 1 and not t.walked:
            states = self.collapse(fold, states, 1)
        states = self.collapse(fold, states, 0)
        if fold.base in ("any", "all"):
            states = [f"({s} != 0)" for s in states]
        programs, blocks = t.grid
        lone = f"row * {self.size(blocks)} + block + tl.zeros([1, 1], tl.int32)"
        at = f"row * {self.size(t.rnumel)} + r" if keeps else lone
        mask = f", mask={self.mask(False, True)}" if keeps and self.mask(False, True) else ""
        shape = "[1, RBLOCK]" if keeps else "[1, 1]"
        rest = [d for d in t.inner if d[0] not in loop.vars] if keeps else []
        kept = list(zip(loop.vars, loop.ranges, strict=True))
        folded: list[Dim] = [("wp", programs if keeps else programs * blocks), *rest]
        index, stride = Expr.of(0), Expr.of(1)
        for v, n in reversed(t.inner if keeps else []):
            index, stride = index + Expr.sym(v) * stride, stride * n
        index = index + Expr.sym("wp") * stride
        body = []
        for state, dtype in zip(states, fold.state, strict=True):
            space = Buffer(
                f"w{len(self.workspaces)}", dtype, (folded[0][1] * stride,), (Expr.of(1),), loop.out[0].device
            )
            self.workspaces.append(space)
            self.emit(f"tl.store({space.name} + tl.broadcast_to({at}, {shape}), {state}{mask})")
            body.append(Op("load", (), dtype, (space.name, index)))
        reduction = Reduction(
            PARTIAL.get(fold.kind, fold.kind), tuple(v for v, _ in folded), tuple(n for _, n in folded)
        )
        final = Loop(loop.out, loop.vars, loop.ranges, tuple(body), tuple(range(len(body))), loop.store_index, reduction,
                     origin=loop.origin)  # fmt: skip
        self.finish.append(Nest([*kept, *folded], len(kept), [Stage(final, "reduce", 0, dict(stage.place))]))

    # values ---------------------------------------------------------------------------------------------------
    def define(self, text: str, x: bool, r: bool) -> TileValue:
        """The name of the value of `text`, the same for equal texts."""
        found = self.known.get(text)
        if found is None:
            self.counter += 1
            found = self.known[text] = TileValue(f"t{self.counter}", x, r)
            self.emit(f"{found.text} = {text}")
        return found

    def mask(self, x: bool, r: bool) -> str:
        """The condition that points lie in the space; empty if all do."""
        parts = (["xmask"] if x and not self.exact_x else []) + (["rmask"] if r and not self.exact_r else [])
        return " & ".join(parts)

    def evaluate(self, loop: Loop) -> list[TileValue]:
        values: list[TileValue] = []
        for op in loop.body:
            values.append(self.op(loop, op, values))
        return values

    def op(self, loop: Loop, op: Op, values: Sequence[TileValue]) -> TileValue:
        if op.name == "const":
            text = constant(op.attrs[0], op.dtype)
            number = self.define(text, False, False)
            if op.dtype in HALF:
                self.elements[number.text] = constant_element(text, op.dtype)
            return number
        if op.name == "index":
            kind, at = compute(op.dtype), self.index(op.attrs[0], values, large=True)
            return self.define(f"({at.text} + tl.zeros((1, 1), {kind})).to({kind})", at.x, at.r)
        if op.name in ("load", "masked_load"):
            return self.load(op, values)
        arguments = [values[a] for a in op.args]
        x, r = any(a.x for a in arguments), any(a.r for a in arguments)
        if op.name == "wrap_index":
            return self.wrapped(arguments[0], self.index(op.attrs[0], values).text, INDEX_RULES[op.attrs[1]].wraps)
        if not arguments or op.attrs:
            raise Unsupported(f"operation {op.name}")
        dtypes = [loop.body[a].dtype for a in op.args]
        if op.name == "where":
            return self.selected(*arguments)
        if op.name == "bitcast" and {dtypes[0], op.dtype} & {*HALF}:
            return self.reinterpreted(arguments[0], dtypes[0], op.dtype)
        return self.define(ops.pointwise(op.name, [a.text for a in arguments], dtypes, op.dtype), x, r)

    def reinterpreted(self, value: TileValue, source: torch.dtype, target: torch.dtype) -> TileValue:
        """The bits of an element in memory as another dtype of two bytes."""
        element = value.text
        if source in HALF:
            element = self.elements.get(element) or f"({element}).to({storage(source)})"
        return self.up(f"({element}).to({storage(target)}, bitcast=True)", value, target)

    def selected(self, condition: TileValue, a: TileValue, b: TileValue) -> TileValue:
        """One of two values, with the bits that it has in memory."""
        form = f"tl.where({condition.text}, {{}}, {{}})"
        found = self.define(form.format(a.text, b.text), condition.x or a.x or b.x, condition.r or a.r or b.r)
        if a.text in self.elements and b.text in self.elements:
            self.elements[found.text] = form.format(self.elements[a.text], self.elements[b.text])
        return found

    def wrapped(self, value: TileValue, size: str, wraps: bool) -> TileValue:
        """A checked index.  Out of range, the device stops the program, as in eager, and no memory is accessed with the
        index."""
        self.checks = True
        v = value.text
        inside = self.define(f"tl.where({v} < 0, {v} + {size}, {v})", value.x, value.r) if wraps else value
        good, mask = f"(({inside.text} >= 0) & ({inside.text} < {size}))", self.mask(value.x, value.r)
        if mask:
            good = f"({good} | ~({mask}))"
        self.emit(f'tl.device_assert({good}, "index out of range")')
        last = f"{size} - 1"
        return self.define(f"tl.minimum(tl.maximum({inside.text}, 0), {last})", value.x, value.r)

    def load(self, op: Op, values: Sequence[TileValue]) -> TileValue:
        name, index = op.attrs[0], op.attrs[1]
        if name in self.made and name not in self.held:
            stage = self.made[name]
            if stage.role not in ("point", "row") or stage.loop.store_mode != "set":
                raise Unsupported(f"{name} is read before its fold is complete")
            again = [self.evaluate(stage.loop)[r] for r in stage.loop.results]
            for b, v, r in zip(stage.loop.out, again, stage.loop.results, strict=True):
                text = cast(v.text, stage.loop.body[r].dtype, b.dtype)
                self.held[b.name] = self.define(text, v.x, v.r) if text != v.text else v
        if name in self.held:
            return self.masked(op, self.held[name], values)
        at = self.index(index, values)
        dtype = self.buffers[name].dtype
        if op.name == "masked_load":
            allowed = values[op.args[0]]
            shape = TileValue("", at.x or allowed.x, at.r or allowed.r)
            mask = f"tl.broadcast_to({self.also(allowed.text, shape)}, {shape.shape})"
            return self.masked(op, self.up(self.loaded(name, at, shape, mask), shape, dtype), values)
        shape = TileValue("", at.x, at.r)
        mask = self.mask(at.x, at.r)
        mask = f"tl.broadcast_to({mask}, {shape.shape})" if mask else ""
        return self.up(self.loaded(name, at, shape, mask), shape, dtype)

    def masked(self, op: Op, value: TileValue, values: Sequence[TileValue]) -> TileValue:
        """`value` where the mask of the load is true."""
        if op.name != "masked_load":
            return value
        return self.selected(values[op.args[0]], value, values[op.args[1]])

    def also(self, condition: str, shape: TileValue) -> str:
        mask = self.mask(shape.x, shape.r)
        return f"({mask}) & {condition}" if mask else condition

    def loaded(self, name: str, at: TileValue, shape: TileValue, mask: str) -> str:
        masked = f", mask={mask}, other=0" if mask else ""
        return f"tl.load({self.pointers[name]} + tl.broadcast_to({at.text}, {shape.shape}){masked})"

    def up(self, text: str, shape: TileValue, dtype: torch.dtype) -> TileValue:
        """The value in the compute type of an element in memory."""
        if dtype not in HALF:
            return self.define(f"({text} != 0)" if dtype == torch.bool else text, shape.x, shape.r)
        element = self.define(text, shape.x, shape.r)
        value = self.define(f"{element.text}.to(tl.float32)", shape.x, shape.r)
        self.elements[value.text] = element.text
        return value

    def index(self, e: Expr, values: Sequence[TileValue], *, large: bool = False) -> TileValue:
        """A position, as a tensor with two axes.  `large`: a number of the program, which may exceed any position."""
        names, x, r = dict(self.names), False, False
        if large and not self.wide and not _fits(e, dict(self.nest.dims)):
            names = {v: f"{name}.to(tl.int64)" for v, name in names.items()}
        for s in e.symbols:
            if s.startswith("%"):
                value = values[int(s[1:])]
                names[s], x, r = value.text, x or value.x, r or value.r
            elif s in self.names:
                x, r = x or s in self.xvars, r or s in self.rvars
            else:
                names[s] = self.parameter(s)
        text = index_text(e, names, dict(self.nest.dims))
        if all(s in self.sizes for s in e.symbols):
            text = f"tl.full((1, 1), {text}, {'tl.int64' if self.wide or e.symbols else 'tl.int32'})"
        return TileValue(f"({text})", x, r)


def _fits(e: Expr, ranges: Mapping[str, Expr]) -> bool:
    """Whether every part of an index is known to fit into 32 bits."""
    if e.const is not None:
        return abs(e.const) < WIDE
    total = 0
    for mono, c in e.terms:
        size = abs(c)
        for atom in mono:
            low, high = Expr.of_atom(atom).bounds(ranges)
            if low is None or high is None or not all(_fits(a, ranges) for a in atom.args):
                return False
            size *= max(abs(low), abs(high), 1)
        total += size
    return total < WIDE


def _extent(b: Buffer) -> Expr:
    return functools.reduce(lambda sum, d: sum + (d[0] - 1) * d[1], zip(b.shape, b.stride, strict=True), Expr.of(0))
