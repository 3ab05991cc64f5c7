"""Which sizes and integers of a frame's inputs are symbols, and what each symbol is.

In: `Policy`, one a code object: what the user wants, what changed between captures, what had to be a number.  Out:
`Sizes`, one a capture: a fake's symbolic sizes and strides, symbols with their origins, and the relations to guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.ir.expr import Expr
from pycompiler.ir.fake import Layout, is_plain
from pycompiler.ir.guards import Guard
from pycompiler.ir.marks import Mark, marks_of
from pycompiler.ir.size_checks import Origin, size_guard
from pycompiler.ir.source import Source
from pycompiler.ir.symbols import Relation, Specialise, Symbols, expr_of

Key = tuple[Source, str, int]  # an Origin without its class


class NeedsSymbols(Exception):
    """A capture without symbols has met a marked tensor: it begins anew, with them."""


@dataclass
class Policy:
    """What is symbolic in the captures of one code object.

    `everything`: what came as an argument is (`dynamic=True`).  `automatic`: what changed since the last capture is.
    `static`: what was asked for by its value, or could not be carried, and is none.
    """

    everything: bool = False
    automatic: bool = False
    marked: bool = True
    changed: set[Key] = field(default_factory=set)
    static: set[Key] = field(default_factory=set)
    seen: dict[Source, tuple[int, ...]] = field(default_factory=dict)

    @property
    def symbolic(self) -> bool:
        """Whether a capture needs symbols from its beginning."""
        return self.everything or bool(self.changed)

    def observe(self, source: Source, what: str, now: tuple[int, ...]) -> None:
        """What is at `source` in this call; what differs from the call captured before is symbolic from now on."""
        before = self.seen.get(source)
        if self.automatic and before is not None and len(before) == len(now):
            self.changed.update((source, what, i) for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b)
        self.seen[source] = now

    def wants(self, source: Source, what: str, dim: int) -> bool:
        key = (source, what, dim)
        return key not in self.static and ((self.everything and _is_argument(source)) or key in self.changed)

    def specialise(self, origins: Sequence[Origin]) -> None:
        self.static.update((o.source, o.what, o.dim) for o in origins)


def _is_argument(source: Source) -> bool:
    """Whether the program was called with it, in containers or not: what objects hold is made for longer."""
    while source.base is not None:
        if source.kind not in ("item", "dict_item"):
            return False
        source = source.base
    return source.kind == "local"


@dataclass
class Sizes:
    """The symbols of one capture.  `origins`: of symbols, and of strides that are compared by expressions (`strides`)."""

    policy: Policy
    symbols: Symbols | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    strides: list[Relation] = field(default_factory=list)
    required: dict[str, Origin] = field(default_factory=dict)  # marked: a number instead is an error
    integers: dict[Source, Any] = field(default_factory=dict)

    def layout(self, real: torch.Tensor, source: Source) -> Layout | None:
        """Sizes and strides of an input with its symbols; None when it has none."""
        shape = tuple(real.size()) if real.layout is torch.strided else ()
        marks = marks_of(real) if self.policy.marked else {}
        if not isinstance(real, torch.nn.Parameter):
            self.policy.observe(source, "size", shape)
        wanted = [d for d, n in enumerate(shape) if self._wants(real, source, d, n, marks.get(d))]
        if not wanted or not is_plain(real):
            return None
        if self.symbols is None:
            raise NeedsSymbols
        sizes: list[Any] = list(shape)
        for d in wanted:
            mark = marks.get(d, Mark("maybe"))
            origin = Origin(source, type(real), "size", d)
            sizes[d] = self._new(shape[d], origin, mark)
            if mark.kind == "dynamic":
                self.required[f"{sizes[d]}"] = origin
        return sizes, self._strides(real, source, sizes)

    def _wants(self, real: torch.Tensor, source: Source, d: int, n: int, mark: Mark | None) -> bool:
        if mark is not None:
            if mark.kind == "dynamic":
                mark.check(n, f"{source.name}.size({d})")
                return True
            if mark.kind == "static":
                return False
            if n > 1 and (source, "size", d) not in self.policy.static and mark.admits(n):
                return True
        return n > 1 and not isinstance(real, torch.nn.Parameter) and self.policy.wants(source, "size", d)

    def integer(self, real: int, source: Source) -> Any:
        """The SymInt of an integer argument; None where it is a constant."""
        self.policy.observe(source, "int", (real,))
        if not (2 <= real < 2**62 and self.policy.wants(source, "int", 0)):
            return None
        if self.symbols is None:
            raise NeedsSymbols
        if source not in self.integers:
            self.integers[source] = self._new(real, Origin(source, int, "int"), Mark("maybe"))
        return self.integers[source]

    def _new(self, hint: int, origin: Origin, mark: Mark) -> torch.SymInt:
        assert self.symbols is not None
        made = self.symbols.new(hint, low=max(mark.low or 2, 2), high=mark.high)
        self.origins[str(made)] = origin
        return made

    def _strides(self, real: torch.Tensor, source: Source, sizes: Sequence[Any]) -> list[Any]:
        """A stride that is the extent of the dimensions inside is that product of sizes; others are numbers."""
        strides: list[Any] = list(real.stride())
        extents: dict[int, Any] = {}
        for d in sorted(range(real.dim()), key=lambda d: (real.stride(d), real.size(d))):
            stride = strides[d] = extents.get(real.stride(d), real.stride(d))
            extents[real.stride(d) * real.size(d)] = stride * sizes[d]
            if isinstance(stride, torch.SymInt):
                name = f"stride{len(self.strides)}"
                self.origins[name] = Origin(source, type(real), "stride", d)
                self.strides.append(Relation("==", Expr.sym(name) - expr_of(stride)))
        return strides

    @property
    def known_symbols(self) -> Symbols:
        """Those of a capture that has some."""
        assert self.symbols is not None
        return self.symbols

    def source_of(self, name: str) -> Source:
        """Where the symbol's number is."""
        return self.origins[name].number

    # results --------------------------------------------------------------------------------------------------
    def leave(self) -> None:
        """The capture has ended: what later stages assume comes from no line of the program."""
        self.integers.clear()
        self.policy = Policy()
        if self.symbols is not None:
            self.symbols.place = tuple

    def guard(self) -> Guard | None:
        """The guard of all that is assumed by now."""
        if self.symbols is None:
            return None
        relations = [*self.symbols.declared(), *self.strides, *self.symbols.relations]
        return size_guard(relations, self.origins, ())

    def specialised(self) -> tuple[Origin, Relation] | None:
        """A marked size that is a number, and what made it one."""
        for name, origin in self.required.items():
            if self.symbols is not None and self.symbols.is_static(name):
                why = next(r for r in self.symbols.relations if r.kind == "==" and name in r.expr.symbols)
                return origin, why
        return None

    def origins_of(self, wanted: Specialise) -> list[Origin]:
        assert self.symbols is not None
        return [self.origins[name] for name in wanted.names or self.symbols.hints if name in self.origins]
