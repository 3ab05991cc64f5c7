"""Folds over the outer loop: each thread has a running value (or an array of them), combined after all threads are done."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from pycompiler.codegen.cpp.body import Context, store
from pycompiler.codegen.cpp.folds import COMBINE, EXTREMES, Fold, declare_total, fold_total, result
from pycompiler.codegen.cpp.lines import InnerLoop, indent, nested
from pycompiler.codegen.cpp.types import ctype, identity
from pycompiler.ir.kernel import Dim
from pycompiler.symbolic.expr import Expr


@dataclass
class Accumulators:
    """The code that accumulating stages add around a nest's loop.

    - `shared`: before the threads start.
    - `begin`, `end`: in each thread, before and after the loop.
    - `finish`: after all threads.
    """

    context: Context
    inner: list[Dim]
    parallel: bool
    shared: list[str] = field(default_factory=list)
    begin: list[str] = field(default_factory=list)
    end: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)

    @property
    def count(self) -> str:
        return "(threads > 1 ? threads : 1)" if self.parallel else "1"

    def add(self, f: Fold) -> None:
        if not self.begin:
            self.begin.append(f"const int32_t me = {'pyc_thread()' if self.parallel else '0'};")
        if f.stage.loop.vars:
            self.add_array(f)
        else:
            self.add_scalar(f)

    def add_scalar(self, f: Fold) -> None:
        self.begin += declare_total(f, f.total)
        slots = f"all_{f.partial}"
        for suffix, t, start in f.fields:
            self.shared.append(f"{t}* const {slots}{suffix} = ({t}*)__builtin_alloca({self.count} * sizeof({t}));")
            self.shared.append(f"for (int32_t k = 0; k < {self.count}; k++) {slots}{suffix}[k] = {start};")
            self.end.append(f"{slots}{suffix}[me] = {f.total}{suffix};")
        parts = [f"const {t} part{suffix} = {slots}{suffix}[k];" for suffix, t, _ in f.fields]
        combine = [
            f"for (int32_t k = 0; k < {self.count}; k++) {{",
            *indent([*parts, *fold_total(f, f.total, "part", whole=True)]),
            "}",
        ]
        body = [*declare_total(f, f.total), *combine, *self.store(f, result(f, f.total))]
        self.finish += ["{", *indent(body), "}"]

    def add_array(self, f: Fold) -> None:
        slots, t = f"all_{f.partial}", f.compute
        self.shared.append(f"const int64_t {slots}_size = (({self.points()}) + 15) / 16 * 16;")
        self.array(f, slots, t, f"{slots}_size")
        self.begin.append(f"{t}* const {f.total} = {slots} + me * {slots}_size;")
        part = f"{slots}[k * {slots}_size + ({self.context.scratch_at})]"
        step = f"folded = pyc_{f.kind}(folded, {part});" if f.kind in EXTREMES else f"folded {COMBINE[f.kind]}= {part};"
        value = "(folded != 0)" if ctype(f.dtype).kind == "bool" else "folded"
        body = [f"{t} folded = {identity(f.kind, f.dtype)};", f"for (int32_t k = 0; k < {self.count}; k++) {step}",
                *self.store(f, value)]  # fmt: skip
        c = self.context
        self.finish += nested([InnerLoop(c.names[v], "0", c.index(n)) for v, n in self.inner], body)
        self.finish.append(f"pyc_release({slots});")

    def array(self, f: Fold, name: str, t: str, size: str) -> None:
        """Declare one array per thread, filled with the fold's identity."""
        self.shared.append(f"{t}* const {name} = ({t}*)pyc_allocate({self.count} * {size} * sizeof({t}));")
        fill = f"{name}[k] = {identity(f.kind, f.dtype)};"
        self.shared.append(f"for (int64_t k = 0; k < {self.count} * {size}; k++) {fill}")

    def points(self) -> str:
        total = Expr.of(1)
        for _, n in self.inner:
            total = total * n
        return self.context.index(total)

    def store(self, f: Fold, value: str) -> list[str]:
        dtype = torch.int64 if f.is_arg else f.dtype
        b, c = f.stage.loop.out[0], self.context
        place = f"{c.function.pointers[b.name]}[{c.index(f.stage.loop.store_index[0])}]"
        return [store(b, place, f"({ctype(dtype).compute}){value}", dtype)]
