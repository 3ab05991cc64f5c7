"""One nest as C++: an outer parallel loop, in it passes over the inner loops, then the accumulated results.

In: a `Nest` with places and levels.  Out: lines.  The form of the result (softmax has three passes):

    #pragma omp parallel num_threads(team)
      #pragma omp for
      for (i0...) {                       // rows
        row values
        for (j0...) { pass 0 }            // #pragma omp simd reduction(...)
        for (j0...) { pass 1 }
      }
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pycompiler.codegen.cpp import folds
from pycompiler.codegen.cpp.accumulate import Accumulators
from pycompiler.codegen.cpp.angles import split_by_angle
from pycompiler.codegen.cpp.body import BodyWriter, CodeBlock, Context, CppFunction, checked_index, store
from pycompiler.codegen.cpp.folds import Fold
from pycompiler.codegen.cpp.lines import InnerLoop, closed, indent, nested, opened
from pycompiler.codegen.cpp.load_store_blocks import in_blocks
from pycompiler.codegen.cpp.types import ctype, identity
from pycompiler.ir.kernel import Dim, Nest, Stage, Unsupported, loads, numel, space_of
from pycompiler.ir.loops import Buffer
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely

CHUNK = 4096  # points per piece of a long inner loop, each with a partial sum of its own
SUMMED = 1024  # doubles that vector lanes add up before the sum continues exactly


@dataclass
class Pass:
    """One pass over the inner loops.

    - `inside`: the innermost block.
    - `before`, `after`: around the innermost loop.
    - `pending`: (stage, declaration, name) of values complete after the pass.
    - `columns`: folds into an array.
    - `chunk`: points of the innermost loop between `before` and `after`; 0: all of them.
    """

    inside: CodeBlock
    clauses: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    pending: list[tuple[Stage, str, str]] = field(default_factory=list)
    columns: list[tuple[Stage, Fold, str]] = field(default_factory=list)
    chunk: int = 0


@dataclass
class NestCode:
    """The code of a nest.

    - `shared`: before the threads start.
    - `body`: run by each thread.
    - `finish`: after all threads.
    - `loops`, `rows`: the body's outer loops and their contents, if the body has nothing else.
    """

    comments: list[str]
    shared: list[str]
    body: list[str]
    finish: list[str]
    loops: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)


def nest_work(nest: Nest) -> Expr:
    """The number of element operations."""
    total = Expr.of(0)
    for s in nest.stages:
        points = math.prod((n for _, n in space_of(s.loop)), start=Expr.of(max(1, len(s.loop.body) // 4)))
        total = total + points
    return total


def is_far(stride: Expr) -> bool:
    """Whether neighbouring elements are not adjacent in memory."""
    known = likely(stride)
    return known is not None and abs(known) > 1


def is_serial(nest: Nest) -> bool:
    """Whether two points may write the same place."""
    return shared_stores(nest) and spread_var(nest) is None


def shared_stores(nest: Nest) -> bool:
    return any(s.loop.store_mode == "add" or _scatters(s) for s in nest.stages)


def spread_var(nest: Nest) -> str | None:
    """A last dimension along which no two points write the same place (the columns of an embedding's gradient)."""
    if len(nest.dims) < 2 or nest.split is not None:
        return None
    v, n = nest.dims[-1]
    for s in nest.stages:
        for at in s.loop.store_index:
            if at.coeff(v) != 1 or n == 0 or at.subst({v: 0}) % n != 0:
                return None
    return v


@dataclass
class NestWriter:
    function: CppFunction
    nest: Nest
    parallel: bool = False
    comments: list[str] = field(default_factory=list)

    def write(self) -> NestCode:
        try:
            return self.code()
        except Unsupported as refused:
            raise Unsupported(str(refused), self.nest.origin) from None

    def code(self) -> NestCode:
        nest = self.nest
        for s in nest.stages:
            comment = f"// {s.outputs[0]}: {' '.join(s.loop.origin)}"
            self.comments += [comment] if s.loop.origin and comment not in self.comments else []
        if any(n == 0 for _, n in nest.dims):
            return NestCode(self.comments, [], [], [])
        self.ranges = dict(nest.dims)
        self.outer, self.inner_dims = self.division()
        self.names = {v: f"i{k}" for k, (v, _) in enumerate(self.outer)}
        self.names |= {v: f"j{k}" for k, (v, _) in enumerate(self.inner_dims)}
        self.names |= {s: s for s in self.free_symbols()}
        self.accumulated = [s for s in nest.stages if s.role == "accumulate"]
        rows = self.row_block()
        loops = [f"for (int64_t {v} = {a}; {v} < {b}; {v} += {step}) {{" for v, a, b, step in self.outer_loops]
        body, finish = self.assemble(loops, rows)
        shared = self.around.shared
        alone = not self.accumulated and not shared_stores(nest)
        return NestCode(self.comments, shared, body, finish, loops if alone else [], rows)

    # ---- the shape -------------------------------------------------------------------------------------------------

    def division(self) -> tuple[list[Dim], list[Dim]]:
        """Outer and inner dimensions; a flat nest's last dimension is its inner one."""
        if self.nest.split is not None:
            return self.nest.outer, self.nest.inner
        if shared_stores(self.nest):
            return self.nest.dims[:-1], self.nest.dims[-1:]
        tiled = self.tiled_dim()
        if tiled is not None:
            rest = [d for k, d in enumerate(self.nest.dims[:-1]) if k != tiled]
            return rest, [self.nest.dims[tiled], self.nest.dims[-1]]
        return self.nest.dims[:-1], self.nest.dims[-1:]

    def tiled_dim(self) -> int | None:
        """A dimension along which a load is contiguous while the last dimension's stride is large; or None."""
        dims, edge = self.nest.dims, self.function.target.edge
        if len(dims) < 2 or (likely(dims[-1][1]) or edge) < edge:
            return None
        for s in self.nest.stages:
            for _, index in loads(s.loop):
                last = index.coeff(dims[-1][0])
                if last is None or not is_far(last):
                    continue
                for k, (v, n) in enumerate(dims[:-1]):
                    if index.coeff(v) == 1 and (likely(n) or edge) >= edge:
                        return k
        return None

    def free_symbols(self) -> set[str]:
        own = set(dict(self.nest.dims))
        found = {x for _, n in self.nest.dims for x in n.symbols}
        for s in self.nest.stages:
            exprs = [*s.loop.store_index, *(a for op in s.loop.body for a in op.attrs if isinstance(a, Expr))]
            found |= {x for e in exprs for x in e.symbols if not x.startswith("%")}
        return found - own

    # ---- rows ------------------------------------------------------------------------------------------------------

    def row_block(self) -> list[str]:
        """The statements of one outer point: row values, passes."""
        self.outer_loops = [(self.names[v], "0", self.size(n), "1") for v, n in self.outer]
        self.inner_loops = [InnerLoop(self.names[v], "0", self.size(n)) for v, n in self.inner_dims]
        if self.nest.split is None and self.inner_dims:
            self.chunk_flat()
        row = CodeBlock()
        context = Context(self.function, self.names, self.ranges, {v for v, _ in self.inner_dims}, row)
        context.scratch_at = self.inner_flat()
        self.context = context
        self.folds: dict[str, Fold] = {}
        self.around = Accumulators(context, self.inner_dims, self.parallel)
        for s in self.accumulated:
            self.declare_accumulator(s)
        tiled = self.nest.split is None and len(self.inner_dims) == 2
        ahead = self.stage_tiles() if tiled else []
        for level in range(max((s.level for s in self.nest.stages), default=0) + 1):
            self.write_pass([s for s in self.nest.stages if s.level == level])
        return [*ahead, *nested([self.part], row.lines)] if tiled else row.lines

    def size(self, n: Expr) -> str:
        return Context(self.function, self.names, {}, set(), CodeBlock()).index(n)

    def chunk_flat(self) -> None:
        """Split a flat nest's inner loops into pieces.  Their starts become outer loops, so that threads share out the
        pieces."""
        if shared_stores(self.nest):
            if spread_var(self.nest) is not None:  # each thread has its own columns, and visits the rows in order
                v, n = self.inner_dims[0]
                begin, end = f"{self.names[v]}_from", self.size(n)
                share = f"pyc_share({end}, {'threads' if self.parallel else '1'})"
                self.outer_loops.insert(0, (begin, "0", end, share))
                self.inner_loops[0] = InnerLoop(self.names[v], begin, f"pyc_min_index({begin} + {share}, {end})")
            return
        if len(self.inner_dims) == 2:
            self.tile()
            return
        for k, (v, n) in enumerate(self.inner_dims):
            if len(self.inner_dims) == 1 and (size := numel([(v, n)])) is not None and size <= 2 * CHUNK:
                continue
            begin, end = f"{self.names[v]}_from", self.size(n)
            self.outer_loops.append((begin, "0", end, str(CHUNK)))
            self.inner_loops[k] = InnerLoop(self.names[v], begin, f"pyc_min_index({begin} + {CHUNK}, {end})")

    def tile(self) -> None:
        """Split the last two dimensions into tiles: rows of tiles along the first one are the points of the outer loops."""
        edge = self.function.target.edge
        part = edge * self.function.target.tiles
        (u, n), (v, m) = ((self.names[w], self.size(size)) for w, size in self.inner_dims)
        self.outer_loops += [(f"{u}_part", "0", n, str(part)), (f"{v}_from", "0", m, str(edge))]
        self.part = InnerLoop(f"{u}_from", f"{u}_part", f"pyc_min_index({u}_part + {part}, {n})", edge)
        self.inner_loops = [
            InnerLoop(w, f"{w}_from", f"pyc_min_index({w}_from + {edge}, {end})") for w, end in ((u, n), (v, m))
        ]

    def stage_tiles(self) -> list[str]:
        """Perform loads that run along the other dimension of the tile first, into a small array.

        Returns the code before a row of tiles, which prefetches the cache lines of these loads.
        """
        c, ahead, target = self.context, list[str](), self.function.target
        (u, _), (v, _) = self.inner_dims
        for s in self.nest.stages:
            for op in s.loop.body:
                if op.name != "load" or (op.attrs[0], op.attrs[1]) in c.staged:
                    continue
                name, index = op.attrs
                far = index.coeff(v)
                if index.coeff(u) != 1 or far is None or not is_far(far):
                    continue
                tile, (lu, lv) = self.function.fresh("tile"), self.inner_loops
                place = f"{tile}[({lu.var} - {lu.start})*{target.edge} + {lv.var} - {lv.start}]"
                dtype = self.function.buffers[name].dtype
                source, line = f"{self.function.pointers[name]}[{c.index(index)}]", target.line // dtype.itemsize
                whole = InnerLoop(lu.var, self.part.start, self.part.end, line)
                ahead += nested([lv, whole], [f"__builtin_prefetch(&{source});"])
                c.row.lines += [f"alignas(64) {ctype(dtype).storage} {tile}[{target.edge**2}];",
                                *nested([lv, lu], [f"{place} = {source};"])]  # fmt: skip
                c.staged[name, index] = place
        return ahead

    def inner_flat(self) -> str:
        at, stride = Expr.of(0), Expr.of(1)
        for v, n in reversed(self.inner_dims):
            at = at + Expr.sym(v) * stride
            stride = stride * n
        return self.size_of(at)

    def size_of(self, e: Expr) -> str:
        return Context(self.function, self.names, self.ranges, set(), CodeBlock()).index(e)

    def declare_accumulator(self, s: Stage) -> None:
        assert s.loop.reduction is not None
        name, dtype = s.outputs[0], s.loop.body[s.loop.results[0]].dtype
        fold = self.new_fold(s, s.loop.reduction.kind, dtype, two_levels=not s.loop.vars)
        fold.total = f"acc_{fold.partial}"
        self.folds[name] = fold
        self.around.add(fold)

    def covers_inner(self, s: Stage) -> bool:
        return bool({v for v, _ in space_of(s.loop)} & self.context.inner)

    def new_fold(self, s: Stage, kind: str, dtype: torch.dtype, *, two_levels: bool) -> Fold:
        return folds.make_fold(s, kind, dtype, self.function.fresh("r"), two_levels=two_levels)

    # ---- passes ----------------------------------------------------------------------------------------------------

    def write_pass(self, stages: list[Stage]) -> None:
        """One pass: row values, then the inner loop, then the folds that it completes.

        Without inner loops all values belong to the row, in order.
        """
        c = self.context
        c.scalar_only, c.flags = False, {}
        inside = CodeBlock() if self.inner_loops else c.row
        current, inner = Pass(inside), list[Stage]()
        for s in stages:
            if s.role == "row" or (s.role == "accumulate" and not self.covers_inner(s)):
                self.write_row(s)
            elif inside is c.row:
                self.write_inner(s, current)
            else:
                inner.append(s)
        for s in inner:
            self.write_inner(s, current)
        for flag, site in c.flags.items():
            current.before.append(f"int32_t {flag} = 0;")
            current.clauses.append(f"reduction(|:{flag})")
            current.after.append(f"if ({flag}) pyc_index(1, 1, {site}, &error);")
        if inner:
            self.close_pass(current)
            for name in (n for s in inner if s.role == "point" for n in s.outputs):
                c.held.pop(name, None)

    def write_row(self, s: Stage) -> None:
        c = self.context
        writer = BodyWriter(c, s, c.row)
        values = writer.write()
        if s.role == "accumulate":
            fold = self.folds[s.outputs[0]]
            c.row.lines += self.fold_value(fold, fold.total, values[0])
            return
        self.put(s, values, c.row, writer.exact)

    def put(
        self, s: Stage, values: list[str], scope: CodeBlock, exact: Sequence[torch.dtype | None] | None = None
    ) -> None:
        """Store a stage's values where `placement.py` put them.  `exact`: see `store`, for each operation of the body."""
        c = self.context
        for b, value, at, r in zip(s.loop.out, values, s.loop.store_index, s.loop.results, strict=True):
            dtype, kept = s.loop.body[r].dtype, exact[r] if exact else None
            if s.place[b.name] == "memory":
                scope.lines.append(self.store_line(s, b, value, at, dtype, kept))
            elif s.place[b.name] == "scratch":
                array = self.scratch(b)
                scope.lines.append(store(b, f"{array}[{c.scratch_at}]", value, dtype, kept))
            c.held[b.name] = value

    def store_line(
        self, s: Stage, b: Buffer, value: str, at: Expr, dtype: torch.dtype, exact: torch.dtype | None
    ) -> str:
        c = self.context
        place = f"{self.function.pointers[b.name]}[{c.index(at)}]"
        if s.loop.store_mode == "add":
            old = f"pyc_load({place})" if b.dtype != torch.bool else f"({place} != 0)"
            return store(b, place, f"({ctype(dtype).compute})({old} + {value})", dtype)
        return store(b, place, value, dtype, exact)

    def scratch(self, b: Buffer) -> str:
        c = self.context
        if b.name not in c.scratch:
            array = self.function.fresh("row")
            count = numel(self.inner_dims)
            c.row.lines.append(f"alignas(64) {ctype(b.dtype).storage} {array}[{count}];")
            c.scratch[b.name] = array
        return c.scratch[b.name]

    def write_inner(self, s: Stage, current: Pass) -> None:
        c, inside = self.context, current.inside
        writer = BodyWriter(c, s, inside)
        values = writer.write()
        if s.role == "point":
            if _scatters(s):
                self.write_scatter(s, writer, values, inside)
            else:
                self.put(s, values, inside, writer.exact)
            return
        assert s.loop.reduction is not None
        kind, dtype = s.loop.reduction.kind, s.loop.body[s.loop.results[0]].dtype
        if s.role == "column":
            self.write_column(s, values[0], current)
            return
        if s.role == "accumulate" and s.loop.vars:
            fold = self.folds[s.outputs[0]]
            place = f"{fold.total}[{c.scratch_at}]"
            inside.lines += self.fold_value(fold, place, values[0])
            return
        if s.role == "accumulate":
            fold = self.folds[s.outputs[0]]
        else:
            fold = self.new_fold(s, kind, dtype, two_levels=len(self.inner_loops) > 1)
            fold.two_levels |= self.chunk_of(fold) > 0
            fold.total = f"sum_{fold.partial}" if fold.two_levels else fold.partial
            c.row.lines += folds.declare_total(fold, fold.total)
        self.fold_inner(fold, values[0], current)
        if s.role == "reduce":
            after_row = folds.result(fold, fold.total)
            result = c.function.fresh("t")
            compute = "int64_t" if fold.is_arg else ctype(dtype).compute
            current.pending.append((s, f"const {compute} {result} = ({compute}){after_row};", result))

    def write_column(self, s: Stage, value: str, current: Pass) -> None:
        """Fold into an array of the row; `close_columns` reads the values when the pass is over."""
        assert s.loop.reduction is not None
        c = self.context
        fold = self.new_fold(s, s.loop.reduction.kind, s.loop.body[s.loop.results[0]].dtype, two_levels=False)
        low = [(v, n) for v, n in self.inner_dims if v in s.loop.vars]
        at, stride = Expr.of(0), Expr.of(1)
        for v, n in reversed(low):
            at = at + Expr.sym(v) * stride
            stride = stride * n
        place = self.size_of(at)
        start = identity(fold.kind, fold.dtype)
        c.row.lines += [f"alignas(64) {fold.compute} {fold.partial}[{self.size(stride)}];",
                        f"for (int64_t k = 0; k < {self.size(stride)}; k++) {fold.partial}[k] = {start};"]  # fmt: skip
        current.inside.lines += self.fold_value(fold, f"{fold.partial}[{place}]", value)
        current.columns.append((s, fold, place))

    def close_columns(self, columns: list[tuple[Stage, Fold, str]]) -> None:
        c = self.context
        for s, fold, place in columns:
            b = s.loop.out[0]
            low = [InnerLoop(self.names[v], "0", self.size(n)) for v, n in self.inner_dims if v in s.loop.vars]
            array = self.function.fresh("row")
            size = numel([(v, n) for v, n in self.inner_dims if v in s.loop.vars])
            value = f"{fold.partial}[{place}]"
            value = f"({value} != 0)" if ctype(fold.dtype).kind == "bool" else f"({ctype(fold.dtype).compute}){value}"
            body = [store(b, f"{array}[{place}]", value, fold.dtype)]
            if s.place[b.name] == "memory":
                where = f"{self.function.pointers[b.name]}[{c.index(s.loop.store_index[0])}]"
                body.append(f"{where} = {array}[{place}];")
            c.row.lines += [f"alignas(64) {ctype(b.dtype).storage} {array}[{size}];", *nested(low, body)]
            c.scratch[b.name], c.column_at[b.name] = array, place

    def chunk_of(self, f: Fold) -> int:
        """Points of the innermost loop per partial result of the fold; 0: all of them."""
        size = numel(self.inner_dims[-1:])
        if f.kind == "sum" and f.dtype == torch.float64:
            return SUMMED if size is None or size > SUMMED else 0
        return CHUNK if self.nest.split is not None and (size is None or size > 2 * CHUNK) else 0

    def write_scatter(self, s: Stage, writer: BodyWriter, values: list[str], inside: CodeBlock) -> None:
        """Store at positions that the body computed."""
        c = self.context
        for b, value, at, r in zip(s.loop.out, values, s.loop.store_index, s.loop.results, strict=True):
            local = writer.local(at)
            where = c.index(at, local)
            if not all(writer.in_range(x) for x in at.symbols):
                c.scalar_only = c.function.may_fail = True
                where = c.function.fresh("t")
                inside.lines.append(f"const int64_t {where} = {checked_index(c, at, local, b.name)};")
            # two points of the innermost loop may store to one place, unless its variable spreads them
            c.scalar_only |= spread_var(self.nest) is None
            place, dtype = f"{self.function.pointers[b.name]}[{where}]", s.loop.body[r].dtype
            text, exact = value, writer.exact[r]
            if s.loop.store_mode == "add":
                old = f"pyc_load({place})" if b.dtype != torch.bool else f"({place} != 0)"
                text, exact = f"({ctype(dtype).compute})({old} + {value})", None
            inside.lines.append(store(b, place, text, dtype, exact))

    # ---- folds -----------------------------------------------------------------------------------------------------

    def flat_position(self, s: Stage) -> str:
        assert s.loop.reduction is not None
        at, stride = Expr.of(0), Expr.of(1)
        for v, n in zip(reversed(s.loop.reduction.vars), reversed(s.loop.reduction.ranges), strict=True):
            at = at + Expr.sym(v) * stride
            stride = stride * n
        return self.size_of(at)

    def fold_inner(self, f: Fold, value: str, current: Pass) -> None:
        """Fold a value of the innermost loop."""
        if f.two_levels:
            current.before += folds.declare_partial(f)
            current.after += folds.fold_total(f, f.total, f.partial)
            chunks = [n for n in (current.chunk, self.chunk_of(f)) if n]
            current.chunk = min(chunks, default=0)
        current.inside.lines += self.fold_value(f, f.partial, value)
        current.clauses += folds.clauses(f)
        self.context.scalar_only |= f.is_arg

    def fold_value(self, f: Fold, into: str, value: str) -> list[str]:
        return folds.fold_value(f, into, value, self.flat_position(f.stage) if f.is_arg else "")

    # ---- assembling ------------------------------------------------------------------------------------------------

    def close_pass(self, current: Pass) -> None:
        c, before, after = self.context, current.before, current.after
        loops = list(self.inner_loops)
        last = loops[-1]
        simd = [] if c.scalar_only else [" ".join(["#pragma omp simd", *current.clauses])]
        if current.chunk:
            last = self.chunk_inner(loops[-1], current.chunk)
        blocks = None
        if simd and self.nest.split is None and len(loops) == 1 and not (before or after or current.clauses):
            blocks = in_blocks(last, current.inside.lines, numel(self.inner_dims), self.function.target.block)
        block = blocks or [*before, *split_by_angle(simd, last, current.inside.lines), *after]
        if current.chunk:
            block = nested([InnerLoop(last.start, loops[-1].start, loops[-1].end, current.chunk)], block)
        c.row.lines += nested(loops[:-1], block)
        for s, line, result in current.pending:
            c.row.lines.append(line)
            c.row.names.add(result)
            self.put(s, [result], c.row)
        self.close_columns(current.columns)

    def chunk_inner(self, whole: InnerLoop, chunk: int) -> InnerLoop:
        """A piece of the innermost loop."""
        begin, size = f"{whole.var}_piece", numel(self.inner_dims[-1:])
        even = size is not None and size % chunk == 0 and whole.start == "0"
        end = f"{begin} + {chunk}"
        return InnerLoop(whole.var, begin, end if even else f"pyc_min_index({end}, {whole.end})")

    def assemble(self, loops: list[str], rows: list[str]) -> tuple[list[str], list[str]]:
        """(code of each thread, code after all threads): the outer loops around the row block."""
        around = self.around
        body = around_rows(loops, rows, self.parallel, collapse=not shared_stores(self.nest))
        body = ["{", *indent([*around.begin, *body, *around.end]), "}"]
        if self.parallel and not loops:  # the first thread to arrive runs it
            body = ["#pragma omp single nowait", *body]
        return body, around.finish


def around_rows(loops: list[str], rows: list[str], parallel: bool, *, collapse: bool) -> list[str]:
    """The outer loops, distributed over the threads."""
    body = [*opened(loops), *indent(rows, len(loops)), *closed(len(loops))]
    if not (parallel and loops):
        return body
    together = f" collapse({len(loops)})" if collapse else ""
    return [f"#pragma omp for schedule(static){together} nowait", *body]


def _scatters(s: Stage) -> bool:
    return any(x.startswith("%") for e in s.loop.store_index for x in e.symbols)
