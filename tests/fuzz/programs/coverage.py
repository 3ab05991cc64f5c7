"""Coverage of pairs of scheduling decisions by programs.

In: `Schedule`s.  Out: a counter of cells `(table, row, column)`.  TABLES lists the rows and columns; IMPOSSIBLE the
impossible cells, with the reason.  A quarter of all seeds aim at a cell: the operators that AIMS names for its row and
column are drawn more often (`aim`).

    with watching() as cells:
        pycompiler.compile(fn)(*args)
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pycompiler import scheduling
from pycompiler.ir.kernel import KernelGroup, Nest, Schedule, Stage, numel
from pycompiler.ir.loops import Buffer, Extern, Op, Program, Ref
from pycompiler.ir.verify import reads_of
from pycompiler.scheduling.stores import COPY
from pycompiler.symbolic.expr import Expr

from .generate import Aim

Cell = tuple[str, str, str]

ROLES = ("point", "reduce", "row", "accumulate", "column")
HELD = ("register", "scratch", "memory")
EXTENTS = ("one row", "one column", "one element")
SOURCES = ("input", "constant", *HELD, "earlier nest", "earlier kernel", "call")

# Table -> (the kinds of its rows, the kinds of its columns).
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "load x where it reads": (("plain", "masked", "indirect", "masked indirect"), SOURCES),
    "load x role of its stage": (("plain", "masked", "indirect", "masked indirect"), ROLES),
    "load x shape of what it reads": (("plain", "masked", "indirect", "masked indirect"), EXTENTS),
    "role x shape of what it reads": (ROLES, EXTENTS),
    "indirect read of what its kernel makes x made by": ((*EXTENTS, "more"), ROLES),
    "role x role of what it reads in its nest": (ROLES, ("point", "reduce", "row", "column")),
    "fold x role": (("sum", "prod", "max", "min", "any", "all"), ("reduce", "accumulate", "column")),
    "role x place": (ROLES, HELD),
    "passes x rows": (("1", "2", "3", "4 or more"), ("none", "few", "many")),
    "store into an input x old value read": (
        (*ROLES, "kept as a copy"), ("never", "at the point", "by another stage", "earlier nest", "earlier step")),
    "part of a buffer x where it reads": (
        ("first part in its kernel", "first part in an earlier one"), ("input", "constant", "earlier nest", "earlier kernel", "call")),
    "scatter x what it adds to": (("any number of times", "into rows"), ("earlier nest", "earlier kernel")),
    "memory taken over x by": (("same dtype", "other dtype"), ROLES),
    "argument of a call x made by": (("whole", "view"), ("input", "constant", "kernel", "call")),
    "result x made by": (("whole", "view"), ("input", "kernel", "call")),
    "extent x nest": (("no points", "one point", "one dimension", "two", "three or more"), ("flat", "folded", "rows")),
}  # fmt: skip


def _cannot() -> dict[Cell, str]:
    """The impossible cells, with the reason for each."""
    reasons: dict[Cell, str] = {}
    for row in ("indirect", "masked indirect"):
        for place in HELD:
            reasons["load x where it reads", row, place] = "what a nest makes is read in it where it is made only"
    made = "indirect read of what its kernel makes x made by"
    for extent in EXTENTS:
        reasons[made, extent, "column"] = "rows and columns, of more than one each"
    for role in ("reduce", "row"):
        reasons[made, "one element", role] = "there are no rows"
    nested = "role x role of what it reads in its nest"
    for maker in ("point", "column"):
        reasons[nested, "row", maker] = "a row value has no point of the inner dimensions"
    for place in ("register", "scratch"):
        reasons["role x place", "accumulate", place] = "complete when the nest is over, so somebody outside reads it"
    reasons["role x place", "column", "register"] = "a fold into an array of the row"
    for role in ("row", "reduce"):
        reasons["role x place", role, "scratch"] = "one value a row needs no array"
    for passes in ("2", "3", "4 or more"):
        reasons["passes x rows", passes, "none"] = "a nest without rows has no fold that ends a pass"
    stores = "store into an input x old value read"
    for role in ("reduce", "accumulate", "column"):
        reasons[stores, role, "at the point"] = "a fold is stored after it has read at other points"
    reasons[stores, "accumulate", "by another stage"] = (
        "it is complete when the nest is over (scheduling/stores.py: _before)"
    )
    for when in ("at the point", "by another stage", "earlier nest"):
        reasons[stores, "kept as a copy", when] = "a copy is a step of its own"
    reasons["result x made by", "whole", "input"] = "an argument is returned as it is, not as a view of its buffer"
    for kind in ("folded", "rows"):
        reasons["extent x nest", "one point", kind] = "a fold over one element is no fold"
    reasons["extent x nest", "no points", "folded"] = (
        "a fold over nothing is a fill (scheduling/simplify.py: fill_empty_folds)"
    )
    reasons["part of a buffer x where it reads", "first part in an earlier one", "earlier nest"] = (
        "parts of a buffer follow each other: no other nest is before one in a kernel that they begin"
    )
    reasons["extent x nest", "one dimension", "rows"] = "a row and what it folds are two"
    return reasons


IMPOSSIBLE = _cannot()

# Row or column -> operators of programs that reach it.
AIMS: dict[str, tuple[str, ...]] = {
    "earlier kernel": ("padded_index", "large_parts"), "same dtype": ("chain",), "other dtype": ("chain",),
    "masked": ("padded_index", "columns", "pad", "cat_pieces", "write_piece", "slice", "repeat", "cut_piece", "stack"),
    "masked indirect": ("padded_index", "columns", "gather", "index", "pad", "cat_pieces", "write_piece", "embedding"),
    "one row": ("single", "single_index"), "one column": ("single", "single_index"), "one element": ("single", "single_index"),
    "more": ("single_index",),
    "indirect": ("columns", "gather", "index", "index_select", "embedding", "flip"),
    "column": ("columns", "stored_fold", "chain", "reduce", "spread", "softmax", "normalize", "truth"),
    "accumulate": ("stored_fold", "columns", "reduce", "extreme", "truth", "spread"),
    "reduce": ("stored_fold", "chain", "columns", "reduce", "softmax", "normalize", "extreme"),
    "row": ("stored_fold", "chain", "normalize", "softmax", "centred", "norm", "spread"),
    "point": ("drawn", "arithmetic", "careful", "where"),
    "scratch": ("padded_index", "softmax", "normalize", "centred"),
    "prod": ("spread",), "any": ("columns", "truth",), "all": ("columns", "truth",), "max": ("extreme",), "min": ("columns", "extreme",),
    "call": ("padded_index", "large_parts", "matmul", "sort", "scan", "convolution"),
    "constant": ("padded_index", "large_parts", "constants",),
    "first part in its kernel": ("cat", "cat_pieces", "stack"),
    "first part in an earlier one": ("large_parts", "cat", "cat_pieces", "reduce"),
    "any number of times": ("large_parts", "scatter", "index_write", "index_put", "write_index"),
    "into rows": ("large_parts", "index_write", "index_put", "embedding"),
    "view": ("slice", "permute", "unfold", "as_strided", "expand"),
    "kept as a copy": ("write", "step", "assign", "write_index"),
    "at the point": ("step", "write"), "by another stage": ("stored_fold", "step", "write", "normalize", "row_step"),
    "earlier nest": ("stored_fold", "step", "reduce", "cat", "row_step"), "earlier step": ("stored_fold", "step", "matmul", "write", "row_step"),
    "never": ("stored_fold", "write", "assign", "row_step"),
    "no points": ("slice",), "one point": ("reduce", "slice"),
}  # fmt: skip
# Row or column -> sizes that reach it: folds into columns need eight columns or more.
SIZES: dict[str, tuple[int, ...]] = {
    "column": (9, 12, 16),
    "scratch": (9, 5, 40),
    "many": (9, 12, 10),
    "few": (2, 5, 7),
}


def cells() -> list[Cell]:
    """All possible cells."""
    every = [(t, row, column) for t, (rows, columns) in TABLES.items() for row in rows for column in columns]
    return [c for c in every if c not in IMPOSSIBLE]


def aim(seed: int) -> Aim:
    """The aim of the program of `seed`: a cell, for a quarter of the seeds."""
    if seed % 4 != 3:
        return Aim()
    _, row, column = random.Random(seed).choice(cells())
    names = [name for key in (row, column) for name in AIMS.get(key, ())]
    sizes = next((SIZES[key] for key in (column, row) if key in SIZES), ())
    return Aim(dict.fromkeys(names, 6.0), sizes)


@contextlib.contextmanager
def watching() -> Iterator[Counter[Cell]]:
    """Counts the cells of the schedules built inside the context."""
    found: Counter[Cell] = Counter()
    original = scheduling.schedule

    def schedule(program: Program, *rest: Any) -> Schedule:
        made = original(program, *rest)
        found.update(reached(made))
        return made

    scheduling.schedule = schedule
    try:
        yield found
    finally:
        scheduling.schedule = original


# ---- cells of a schedule -------------------------------------------------------------------------------------------
def reached(s: Schedule) -> Iterator[Cell]:
    inputs = {b.name for b in s.program.inputs if b is not None}
    home: dict[str, str] = dict.fromkeys(inputs, "input") | dict.fromkeys(s.program.constants, "constant")
    for k, step in enumerate(s.steps):
        if isinstance(step, Extern):
            yield from _call(s, step, home)
            home |= {b.name: "call" for b in step.out if b is not None}
            continue
        local: dict[str, str] = {}
        makers: dict[str, Stage] = {}
        for nest in step.nests:
            yield from _nest(nest, home | local)
            yield from _shapes(nest, s.buffers, makers)
            makers |= {name: stage for stage in nest.stages for name in stage.outputs}
            local |= {name: "earlier nest" for stage in nest.stages for name in stage.outputs}
        yield from _stores(s, k, step)
        home |= {name: "earlier kernel" for name in step.writes}
    yield from _memory(s)
    yield from _results(s, home)


def kind_of(op: Op) -> str:
    index: Expr = op.attrs[1]
    words = [
        w
        for w, on in (("masked", op.name == "masked_load"), ("indirect", any(x.startswith("%") for x in index.symbols)))
        if on
    ]
    return " ".join(words) or "plain"


def extent_of(b: Buffer) -> str:
    """One of EXTENTS for a buffer of two dimensions or more; else empty."""
    if len(b.shape) < 2 or 0 in b.shape:
        return ""
    rows, columns = any(n != 1 for n in b.shape[:-1]), b.shape[-1] != 1
    return "" if rows and columns else "one column" if rows else "one row" if columns else "one element"


def _shapes(nest: Nest, buffers: Mapping[str, Buffer], makers: Mapping[str, Stage]) -> Iterator[Cell]:
    """Cells of a nest's loads: of one row or one column, and indirect loads of values that its own kernel makes
    (`makers`)."""
    for stage in nest.stages:
        for op in stage.loop.body:
            if op.name not in ("load", "masked_load"):
                continue
            extent = extent_of(buffers[op.attrs[0]])
            if extent:
                yield "load x shape of what it reads", kind_of(op), extent
                yield "role x shape of what it reads", stage.role, extent
            if "indirect" in kind_of(op) and op.attrs[0] in makers:
                yield "indirect read of what its kernel makes x made by", extent or "more", makers[op.attrs[0]].role


def _nest(nest: Nest, home: dict[str, str]) -> Iterator[Cell]:
    made: dict[str, Stage] = {}
    for stage in nest.stages:
        fold = stage.loop.reduction
        if fold is not None and fold.kind in TABLES["fold x role"][0]:
            yield "fold x role", fold.kind, stage.role
        for name in stage.outputs:
            yield "role x place", stage.role, stage.place[name]
        sources = set()
        for op in stage.loop.body:
            if op.name not in ("load", "masked_load"):
                continue
            producer = made.get(op.attrs[0])
            source = producer.place[op.attrs[0]] if producer else home.get(op.attrs[0], "earlier nest")
            sources.add(source)
            yield "load x where it reads", kind_of(op), source
            yield "load x role of its stage", kind_of(op), stage.role
            if producer is not None:
                yield "role x role of what it reads in its nest", stage.role, producer.role
        start = home.get(stage.loop.init or "", "")
        if stage.loop.store_mode == "add":
            yield "scatter x what it adds to", "any number of times" if len(nest.dims) == 1 else "into rows", start
        elif start:
            first = "first part in its kernel" if start == "earlier nest" else "first part in an earlier one"
            yield from (("part of a buffer x where it reads", first, source) for source in sources - set(HELD))
        made |= dict.fromkeys(stage.outputs, stage)
    passes = 1 + max(stage.level for stage in nest.stages)
    rows = numel(nest.outer) if nest.split is not None else None
    many = "none" if rows is None else "few" if rows < 8 else "many"
    yield "passes x rows", str(passes) if passes < 4 else "4 or more", many
    points, dims = numel(nest.dims), len(nest.dims)
    extent = (
        "no points"
        if points == 0
        else "one point"
        if points == 1
        else ("one dimension", "two", "three or more")[min(dims, 3) - 1]
    )
    folded = any(stage.loop.reduction for stage in nest.stages)
    yield "extent x nest", extent, "rows" if nest.split is not None else "folded" if folded else "flat"


def _stores(s: Schedule, k: int, step: KernelGroup) -> Iterator[Cell]:
    """Cells of new values of inputs: the readers of the old value."""
    table = "store into an input x old value read"
    for value, target in step.stores.items():
        at, nest = next((j, n) for j, n in enumerate(step.nests) if any(value in x.outputs for x in n.stages))
        writer = next(x for x in nest.stages if value in x.outputs)
        readers = set()
        if any(target in _read(x) for x in s.steps[:k]):
            readers.add("earlier step")
        if any(target in _stage_reads(x) for n in step.nests[:at] for x in n.stages):
            readers.add("earlier nest")
        if target in _stage_reads(writer):
            readers.add("at the point")
        if any(target in _stage_reads(x) for x in nest.stages if x is not writer):
            readers.add("by another stage")
        for reader in readers or {"never"}:
            yield table, writer.role, reader


def _read(step: KernelGroup | Extern) -> set[str]:
    return set(reads_of(step)) if isinstance(step, Extern) else set(step.reads)


def _stage_reads(stage: Stage) -> set[str]:
    return {op.attrs[0] for op in stage.loop.body if op.name in ("load", "masked_load")}


def _call(s: Schedule, step: Extern, home: dict[str, str]) -> Iterator[Cell]:
    names = {"earlier kernel": "kernel"}
    for a in [*step.args, *step.kwargs.values()]:
        for ref in a if isinstance(a, list | tuple) else (a,):
            if isinstance(ref, Ref) and ref.buffer in home:
                b = s.buffers[ref.buffer]
                whole = (ref.shape, ref.stride) == (b.shape, b.stride)
                yield (
                    "argument of a call x made by",
                    "whole" if whole else "view",
                    names.get(home[ref.buffer], home[ref.buffer]),
                )
    inputs = {b.name for b in s.program.inputs if b is not None}
    if step.op is COPY and isinstance(step.args[0], Ref) and step.args[0].buffer in inputs:
        target = step.args[0].buffer
        others = [x for x in s.steps if x is not step and target in _read(x)]
        yield "store into an input x old value read", "kept as a copy", "earlier step" if others else "never"


def _memory(s: Schedule) -> Iterator[Cell]:
    for group in s.kernels:
        for stage in group.stages():
            for b in stage.loop.out:
                taken = s.storage.get(b.name, b.name)
                if taken != b.name and b.name not in s.stores:
                    yield (
                        "memory taken over x by",
                        "same dtype" if s.buffers[taken].dtype == b.dtype else "other dtype",
                        stage.role,
                    )


def _results(s: Schedule, home: dict[str, str]) -> Iterator[Cell]:
    stored = set(s.stores) | set(s.stores.values())
    for o in s.program.outputs:
        if isinstance(o, Ref) and o.buffer not in stored:
            b = s.buffers[o.buffer]
            whole = (o.shape, o.stride) == (b.shape, b.stride)
            maker = {"earlier kernel": "kernel"}.get(home[o.buffer], home[o.buffer])
            yield "result x made by", "whole" if whole else "view", maker


def table_text(found: Counter[Cell]) -> str:
    """All tables with counts, the cells not reached, and the impossible cells."""
    lines = []
    for table, (rows, columns) in TABLES.items():
        width = max(map(len, rows)) + 2
        lines.append(f"{table}\n{'':{width}}" + "".join(f"{c:>{max(8, len(c) + 2)}}" for c in columns))
        for row in rows:
            counts = ["-" if (table, row, c) in IMPOSSIBLE else str(found[table, row, c]) for c in columns]
            lines.append(
                f"{row:{width}}" + "".join(f"{n:>{max(8, len(c) + 2)}}" for n, c in zip(counts, columns, strict=True))
            )
    missing = [c for c in cells() if not found[c]]
    lines.append(f"{len(cells()) - len(missing)} of {len(cells())} cells reached, {len(IMPOSSIBLE)} cannot be (-)")
    lines += [f"  not reached: {' | '.join(c)}" for c in missing]
    lines += [f"  outside of the tables: {' | '.join(c)}" for c in found if c not in cells()]
    return "\n".join(lines)
