"""Folds as Triton text: initial values, joining a tile and an accumulator, collapsing a tile along an axis.

A fold's state is one value per lane, or several (argmax: value and position; welford: mean, sum of squared gaps,
count). `partial` kinds fold states that an earlier kernel stored in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pycompiler.codegen.triton.types import compute, identity
from pycompiler.ir.kernel import Unsupported

ARG = ("argmax", "argmin")
PARTIAL = {"argmax": "argmax_partial", "argmin": "argmin_partial", "welford": "welford_partial"}


@dataclass(frozen=True)
class Fold:
    """`kind` of ir.loops.REDUCTIONS, or a partial one; `dtype` of its (first) input."""

    kind: str
    dtype: torch.dtype
    wide: bool = False  # positions are 64-bit numbers

    @property
    def base(self) -> str:
        return self.kind.removesuffix("_partial")

    @property
    def state(self) -> list[torch.dtype]:
        """dtypes of the state, also of a workspace in memory."""
        if self.base in ARG:
            return [self.dtype, torch.int64 if self.wide else torch.int32]
        if self.base == "welford":
            return [self.dtype] * 3
        return [torch.bool if self.base in ("any", "all") else self.dtype]

    def prepared(self, values: Sequence[str], position: str, ones: str) -> list[str]:
        """A tile of states from a tile of inputs."""
        if self.kind != self.base:
            return list(values)
        if self.base in ARG:
            return [values[0], position]
        if self.base == "welford":
            return [values[0], f"{ones} * 0.0", ones]
        if self.dtype == torch.bool or self.base in ("any", "all"):
            return [f"({values[0]}).to(tl.int32)" if self.dtype == torch.bool else f"({values[0]} != 0).to(tl.int32)"]
        return list(values)

    @property
    def identities(self) -> list[str]:
        if self.base in ARG:
            return [identity(self.base, self.dtype), "9223372036854775807" if self.wide else "2147483647"]
        if self.base == "welford":
            return ["0.0", "0.0", "0.0"]
        return [identity(self.base, torch.int32 if self.lanes[0] == "tl.int32" else self.dtype)]

    @property
    def lanes(self) -> list[str]:
        """Triton types of the state in registers."""
        if self.base in ("any", "all"):
            return ["tl.int32"]
        return ["tl.int32" if d == torch.bool else compute(d) for d in self.state]

    def combine(self) -> str:
        """The name of the function in `kernels/triton/helpers.py` that combines two states."""
        if self.base in ("max", "min", *ARG) and self.dtype.is_floating_point:
            return f"pyc_nan_{self.base}"
        names = {"sum": "pyc_sum", "prod": "pyc_product", "any": "pyc_max", "all": "pyc_min", "max": "pyc_max",
                 "min": "pyc_min", "argmax": "pyc_argmax", "argmin": "pyc_argmin", "welford": "pyc_welford",
                 "xor_sum": "pyc_xor"}  # fmt: skip
        found = names.get(self.base)
        if found is None:
            raise Unsupported(f"reduction {self.kind}")
        return found

    def collapsed(self, states: Sequence[str], axis: int) -> str:
        """Triton text of the state (a tuple if it has several values) folded along `axis`, without that axis."""
        if self.base == "sum":
            return f"tl.sum({states[0]}, {axis})"
        if len(states) > 1:
            return f"tl.reduce(({', '.join(states)}), {axis}, {self.combine()})"
        return f"tl.reduce({states[0]}, {axis}, {self.combine()})"

    def results(self, states: Sequence[str]) -> list[tuple[str, torch.dtype]]:
        if self.base in ARG:
            return [(f"{states[1]}.to(tl.int64)", torch.int64)]
        if self.base == "welford":
            return [(states[0], self.dtype), (states[1], self.dtype)]
        if self.base in ("any", "all"):
            return [(f"({states[0]} != 0)", torch.bool)]
        if self.dtype == torch.bool:
            return [(f"({states[0]} != 0)", torch.bool)]
        return [(f"{states[0]}.to({compute(self.dtype)})", self.dtype)]
