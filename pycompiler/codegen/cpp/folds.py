"""Running values of reductions as C++: declaration, one more value, two partial results, the end.

Sums and products of floats go on in double above the innermost loop; an extreme of floats carries whether a NaN was
seen beside it; argmax carries its position (`<name>_at`).
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
    """The running value of one reduction.  `partial`: folded by the innermost loop; `total`: what partials go into."""

    stage: Stage
    kind: str
    dtype: torch.dtype
    partial: str
    total: str
    wide: str  # type of `total`
    two_levels: bool

    @property
    def compute(self) -> str:
        c = ctype(self.dtype).compute
        return "int32_t" if c == "bool" else c

    @property
    def is_arg(self) -> bool:
        return self.kind in ("argmax", "argmin")

    @property
    def has_nan(self) -> bool:
        return self.kind in EXTREMES and ctype(self.dtype).kind == "float"


def make_fold(stage: Stage, kind: str, dtype: torch.dtype, name: str, *, two_levels: bool) -> Fold:
    compute = ctype(dtype).compute
    wide = "double" if compute == "float" and kind in ("sum", "prod") else "int32_t" if compute == "bool" else compute
    return Fold(stage, kind, dtype, name, name, wide, two_levels)


def declare(f: Fold, name: str, kind: str) -> list[str]:
    """Declarations of a running value of C++ type `kind`, at the fold's identity."""
    lines = [f"{kind} {name} = {identity(f.kind, f.dtype)};"]
    if f.is_arg:
        lines.append(f"int64_t {name}_at = {FIRST};")
    if f.has_nan:
        lines.append(f"int32_t {name}_nan = 0;")
    return lines


def declare_total(f: Fold, name: str) -> list[str]:
    return declare(f, name, f.compute if f.is_arg or not (f.two_levels or name != f.partial) else f.wide)


def declare_partial(f: Fold) -> list[str]:
    return declare(f, f.partial, f.compute)


def fold_value(f: Fold, into: str, value: str, position: str) -> list[str]:
    """Statements that fold one value into `into` (a variable, or an element of an array)."""
    if f.is_arg:
        return fold_position(f, into, value, position)
    if f.kind not in EXTREMES:
        return [f"{into} {COMBINE[f.kind]}= {value};"]
    if f.has_nan and into.endswith("]"):
        return [f"{into} = pyc_{f.kind}({into}, {value});"]
    lines = [f"{into} = {value} {EXTREMES[f.kind]} {into} ? {value} : {into};"]
    return [*lines, f"{into}_nan |= {value} != {value};"] if f.has_nan else lines


def fold_position(f: Fold, into: str, value: str, position: str) -> list[str]:
    test = f"pyc_arg_before_{f.kind[3:]}<{f.compute}>({value}, {position}, {into}, {into}_at)"
    return [f"if ({test}) {{ {into} = {value}; {into}_at = {position}; }}"]


def fold_total(f: Fold, into: str, value: str) -> list[str]:
    """Statements that fold one running value into another."""
    if f.is_arg:
        return fold_position(f, into, value, f"{value}_at")
    if f.kind not in EXTREMES:
        return [f"{into} {COMBINE[f.kind]}= {value};"]
    lines = [f"{into} = {value} {EXTREMES[f.kind]} {into} ? {value} : {into};"]
    return [*lines, f"{into}_nan |= {value}_nan;"] if f.has_nan else lines


def result(f: Fold, name: str) -> str:
    """Text of the folded value."""
    if f.is_arg:
        return f"{name}_at"
    if f.has_nan:
        return f"({name}_nan ? ({f.compute})PYC_NAN : {name})"
    return f"({name} != 0)" if ctype(f.dtype).kind == "bool" else name


def clauses(f: Fold) -> list[str]:
    """Of `omp simd`, for the partial value."""
    if f.is_arg:
        return []
    if f.kind in EXTREMES:
        return [f"reduction({f.kind}:{f.partial})"] + ([f"reduction(|:{f.partial}_nan)"] if f.has_nan else [])
    return [f"reduction({COMBINE[f.kind]}:{f.partial})"]
