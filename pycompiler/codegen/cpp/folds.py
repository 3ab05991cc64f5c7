"""Running values of reductions as C++: declaration, one more value, combination of two partial results, the end.

Sums and products of floats run in double, so the order of the values affects only the last bits of the double.  A sum
of doubles in pieces keeps the rounding errors of their addition (`<name>_low`).  An extreme of floats also records
whether a NaN was seen (`<name>_nan`), and argmax its position (`<name>_at`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pycompiler.codegen.cpp.types import ctype, identity
from pycompiler.ir.kernel import Stage

EXTREMES = {"max": ">", "min": "<"}
COMBINE = {"sum": "+", "prod": "*", "any": "|", "all": "&", "xor_sum": "^"}
FIRST = "0x7fffffffffffffffl"  # a position after all others


@dataclass
class Fold:
    """The running value of one reduction, of C++ type `compute`.

    `partial`: folded by the innermost loop.  `total`: partial results are folded into it.
    """

    stage: Stage
    kind: str
    dtype: torch.dtype
    partial: str
    total: str
    compute: str
    two_levels: bool

    @property
    def is_arg(self) -> bool:
        return self.kind in ("argmax", "argmin")

    @property
    def has_nan(self) -> bool:
        return self.kind in EXTREMES and ctype(self.dtype).kind == "float"

    @property
    def has_low(self) -> bool:
        return self.kind == "sum" and self.dtype == torch.float64 and self.two_levels

    @property
    def fields(self) -> list[tuple[str, str, str]]:
        """(suffix of the name, C++ type, first value) of the variables of the total."""
        found = [("", self.compute, identity(self.kind, self.dtype))]
        found += [("_at", "int64_t", FIRST)] if self.is_arg else []
        found += [("_nan", "int32_t", "0")] if self.has_nan else []
        return found + ([("_low", "double", "0")] if self.has_low else [])


def make_fold(stage: Stage, kind: str, dtype: torch.dtype, name: str, *, two_levels: bool) -> Fold:
    compute = ctype(dtype).compute
    compute = (
        "double" if compute == "float" and kind in ("sum", "prod") else "int32_t" if compute == "bool" else compute
    )
    return Fold(stage, kind, dtype, name, name, compute, two_levels)


def declare_total(f: Fold, name: str) -> list[str]:
    return [f"{kind} {name}{suffix} = {start};" for suffix, kind, start in f.fields]


def declare_partial(f: Fold) -> list[str]:
    return [f"{kind} {f.partial}{suffix} = {start};" for suffix, kind, start in f.fields if suffix != "_low"]


def fold_value(f: Fold, into: str, value: str, position: str) -> list[str]:
    """Statements that fold one value into `into` (a variable, or an element of an array)."""
    if f.is_arg:
        return fold_position(f, into, value, position)
    if f.has_low and into == f.total:
        return [f"pyc_add_exactly({into}, {into}_low, {value});"]
    if f.kind not in EXTREMES:
        return [f"{into} {COMBINE[f.kind]}= {value};"]
    if f.has_nan and into.endswith("]"):
        return [f"{into} = pyc_{f.kind}({into}, {value});"]
    lines = [f"{into} = {value} {EXTREMES[f.kind]} {into} ? {value} : {into};"]
    return [*lines, f"{into}_nan |= {value} != {value};"] if f.has_nan else lines


def fold_position(f: Fold, into: str, value: str, position: str) -> list[str]:
    test = f"pyc_arg_before_{f.kind[3:]}<{f.compute}>({value}, {position}, {into}, {into}_at)"
    return [f"if ({test}) {{ {into} = {value}; {into}_at = {position}; }}"]


def fold_total(f: Fold, into: str, value: str, *, whole: bool = False) -> list[str]:
    """Statements that fold one running value into another.  `whole`: the value is a total too."""
    if f.is_arg:
        return fold_position(f, into, value, f"{value}_at")
    if f.has_low:
        lines = [f"pyc_add_exactly({into}, {into}_low, {value});"]
        return [*lines, f"{into}_low += {value}_low;"] if whole else lines
    if f.kind not in EXTREMES:
        return [f"{into} {COMBINE[f.kind]}= {value};"]
    lines = [f"{into} = {value} {EXTREMES[f.kind]} {into} ? {value} : {into};"]
    return [*lines, f"{into}_nan |= {value}_nan;"] if f.has_nan else lines


def result(f: Fold, name: str) -> str:
    """C text of the folded value."""
    if f.is_arg:
        return f"{name}_at"
    if f.has_nan:
        return f"({name}_nan ? ({f.compute})PYC_NAN : {name})"
    if f.has_low:
        return f"pyc_exact_sum({name}, {name}_low)"
    return f"({name} != 0)" if ctype(f.dtype).kind == "bool" else name


def clauses(f: Fold) -> list[str]:
    """Clauses of `omp simd` for the partial value."""
    if f.is_arg:
        return []
    if f.kind in EXTREMES:
        return [f"reduction({f.kind}:{f.partial})"] + ([f"reduction(|:{f.partial}_nan)"] if f.has_nan else [])
    return [f"reduction({COMBINE[f.kind]}:{f.partial})"]
