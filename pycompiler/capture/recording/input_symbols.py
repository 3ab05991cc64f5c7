"""Size symbols: which sizes and integers of a frame's inputs are symbols, and their origins.

In: `SymbolPolicy`, one per code object: the user's settings, changes between captures, forced constants.  Out: `Sizes`, one
per capture: symbolic sizes and strides of fakes, symbols with their origins, and the relations to guard.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.errors import UserError
from pycompiler.ir.computed_sources import OF_NUMPY
from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import ELEMENTS, Source, const_source
from pycompiler.ir.weak_guards import weak_source
from pycompiler.logs import stage
from pycompiler.symbolic.dynamic_marks import Mark, marks_of
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.size_checks import size_guard
from pycompiler.symbolic.symbol import Origin, Symbol
from pycompiler.symbolic.symbols import Relation, Specialise, Symbols, expr_of
from pycompiler.torch_compat.fake_mode import Layout, as_plain, is_plain

log = stage("dynamic")
SymbolKey = tuple[Source, str, int]  # an Origin without its class

# Greatest magnitude of an integer symbol: twice of it still fits into 64 bits.
_GREATEST = 2**62 - 1


class DrawnNumbers:
    """Stands for the numbers that generated code has drawn: a source that is never read."""


DRAWN = const_source(DrawnNumbers)


class RestartWithSymbols(LeavesCompile):
    """A capture without symbols has met a marked tensor: it restarts with symbols."""


@dataclass
class SymbolPolicy:
    """The choice of symbols in the captures of one code object.

    - `everything`: all arguments are symbolic (`dynamic=True`).
    - `automatic`: other values that changed since the last capture are symbolic.
    - `integers`, `floats`: whether they can be symbols.
    - `static`: keys that are constants, since a value was needed or symbols were unsupported.
    """

    everything: bool = False
    automatic: bool = False
    marked: bool = True
    integers: bool = True
    floats: bool = True
    changed: set[SymbolKey] = field(default_factory=set)
    static: set[SymbolKey] = field(default_factory=set)
    seen: dict[tuple[Source, str, int | None], tuple[Any, ...]] = field(default_factory=dict)
    owners: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # modules, by id
    news: dict[SymbolKey, tuple[Any, Any]] = field(default_factory=dict)  # changes since the last report, as (old, new)

    @property
    def symbolic(self) -> bool:
        """Whether a capture needs symbols from its start."""
        return self.everything or bool(self.changed)

    def observe(self, source: Source, what: str, now: tuple[Any, ...], owner: Any = None) -> None:
        """Record the value at `source` in this call.  If it differs from the last capture, it is symbolic from now on.

        `owner`: the module that holds it.  Other modules of the class have their own value, which counts as no change.
        """
        source = weak_source(source)
        at = None if owner is None else id(owner)
        if owner is not None and ((known := self.owners.get(id(owner))) is None or known() is not owner):
            self.owners[id(owner)] = weakref.ref(owner)
            self.seen = {k: v for k, v in self.seen.items() if k[2] != at}
        before, self.seen[source, what, at] = self.seen.get((source, what, at)), now
        if what == "int" and self.automatic and before is None and (source, "size", at) in self.seen:
            self.changed.add((source, what, 0))  # a tensor was here before: such a program passes other numbers too
            return
        if not self.automatic or before is None or len(before) != len(now):
            return
        for i, (a, b) in enumerate(zip(before, now, strict=True)):
            key = (source, what, i)
            if a != b and not self.is_static(*key) and not self.wants(*key):
                self.changed.add(key)
                self.news[key] = (a, b)

    def repeats(self, source: Source, contents: list[Any]) -> bool:
        """Whether the list of numbers and str there had the same contents at each observation."""
        if self.everything:
            return False
        key = (weak_source(source), "items", None)
        now = (hash(tuple(contents)),)
        self.seen[key] = now if self.seen.get(key, now) == now else ()
        return self.seen[key] == now

    def will_change(self, source: Source, what: str) -> bool:
        """Mark a number that the frame itself changes as symbolic.  Returns whether that is new."""
        key = (weak_source(source), what, 0)
        if not self.automatic or not self.floats or key in self.static or key in self.changed:
            return False
        self.changed.add(key)
        return True

    def told(self) -> list[str]:
        """Descriptions of the values that became symbols since the last call of this method."""
        news, self.news = self.news, {}
        return [f"{Origin(s, int, what, d).number.name} was {a!r}, is {b!r}" for (s, what, d), (a, b) in news.items()]

    def wants(self, source: Source, what: str, dim: int, inside: bool = False) -> bool:
        """Whether the value should be a symbol.  `inside`: it belongs to an argument of the program."""
        if self.is_static(source, what, dim):
            return False
        source = weak_source(source)
        seen = (source, "int" if what == "minus" else what, dim)
        return (self.everything and (inside or _is_argument(source))) or seen in self.changed

    def is_static(self, source: Source, what: str, dim: int) -> bool:
        return (weak_source(source), what, dim) in self.static

    def specialise(self, origins: Sequence[Origin]) -> None:
        self.static.update((weak_source(o.source), o.what, o.dim) for o in origins)


def _least(number: int) -> int:
    """The lower bound of an integer symbol.

    2, as for sizes, if the current value allows it, since many facts follow from it; else all numbers of this sign (a
    counter starts at 0).
    """
    return 1 if number < 0 else 2 if number >= 2 else 0


_PARTS = (*ELEMENTS, "as_tensor")
_SAME = (*OF_NUMPY, as_plain)  # functions that return the argument itself, with another class


def _is_argument(source: Source) -> bool:
    """Whether the source leads to an argument, possibly through containers.  Attributes of objects live longer."""
    while source.base is not None:
        if source.kind not in _PARTS and not (source.kind == "computed" and source.arg.function in _SAME):
            return False
        source = source.base
    return source.kind == "local"


@dataclass
class Sizes:
    """The symbols of one capture.

    `origins`: where symbols, and strides that follow from sizes, are read.
    """

    policy: SymbolPolicy
    symbols: Symbols | None = None
    origins: dict[str, Origin] = field(default_factory=dict)
    required: dict[str, Origin] = field(default_factory=dict)  # marked dynamic: a constant instead is an error
    integers: dict[Source, Any] = field(default_factory=dict)
    modules: dict[Source, Any] = field(default_factory=dict)
    inside: set[Source] = field(default_factory=set)  # inner tensors of subclass arguments

    def within(self, wrapper: Source, places: Iterable[Source]) -> None:
        """Treat sizes of inner tensors as the sizes of their tensor subclass."""
        if wrapper in self.inside or _is_argument(wrapper):
            self.inside.update(places)

    def layout(self, real: torch.Tensor, source: Source, *, wrapper: bool = False) -> Layout | None:
        """Sizes and strides of an input with its symbols; None if it has none.  `wrapper`: a tensor subclass with sizes
        of its own."""
        shape = tuple(real.size()) if real.layout is torch.strided else ()
        marks = marks_of(real) if self.policy.marked else {}
        changes = not isinstance(real, torch.nn.Parameter)
        if changes:
            self.policy.observe(source, "size", shape, self._owner(source))
        wanted = [d for d, n in enumerate(shape) if self._wants(changes, source, d, n, marks.get(d))]
        steps = self._changing_strides(real, source) if changes else frozenset()
        if not (wanted or steps) or not (wrapper or is_plain(real)):
            return None
        sizes: list[Any] = list(shape)
        for d in wanted:
            mark = marks.get(d, Mark("maybe"))
            origin = Origin(source, type(real), "size", d)
            sizes[d] = self._new(shape[d], origin, mark)
        return sizes, self._strides(real, source, sizes, steps)

    def _owner(self, source: Source) -> Any:
        """The module that the source belongs to."""
        at: Source | None = source
        while at is not None:
            if at in self.modules:
                return self.modules[at]
            at = at.base
        return None

    def _wants(self, changes: bool, source: Source, d: int, n: int, mark: Mark | None) -> bool:
        if mark is not None:
            # An inner tensor of a torch subclass: sizes 0 and 1 stay constants.
            if mark.kind == "dynamic" and n < 2 and source in self.inside:
                return False
            if mark.kind in ("dynamic", "unbacked"):
                mark.check(n, f"{source.name}.size({d})")
            if mark.kind == "dynamic":
                return True
            if mark.kind == "static":
                return False
            if n > 1 and not self.policy.is_static(source, "size", d) and mark.admits(n):
                return True
        return n > 1 and changes and self.policy.wants(source, "size", d, source in self.inside)

    def _changing_strides(self, real: torch.Tensor, source: Source) -> frozenset[int]:
        """Dimensions whose strides are symbols of their own, since they follow from no sizes."""
        if real.layout is not torch.strided:
            return frozenset()
        steps = real.stride()
        follows = {1, *(a * b for a, b in zip(steps, real.size(), strict=True))}
        alone = tuple(0 if s in follows else s for s in steps)
        self.policy.observe(source, "stride", alone, self._owner(source))
        return frozenset(d for d, s in enumerate(alone) if s > 1 and self.policy.wants(source, "stride", d))

    def integer(self, real: int, source: Source, *, of_process: bool = False) -> Any:
        """The SymInt of an integer argument; None if it is a constant.

        Symbols are non-negative: a negative integer is minus a symbol.
        `of_process`: the number was counted for all modules of the process, so another module's number is a change.
        """
        if not self.policy.integers:
            return None
        self.policy.observe(source, "int", (real,), None if of_process else self._owner(source))
        what = "minus" if real < 0 else "int"
        if not (abs(real) <= _GREATEST and self.policy.wants(source, what, 0)):
            return None
        if source not in self.integers:
            origin = Origin(source, int, what)
            symbol = self._new(abs(real), origin, Mark("maybe", high=_GREATEST), low=_least(real))
            self.integers[source] = -symbol if real < 0 else symbol
        return self.integers[source]

    def is_other_text(self, real: str, source: Source) -> bool:
        """Whether a str differs between calls.  A str that stays is a constant, which guards compare fastest."""
        self.policy.observe(source, "text", (real,), self._owner(source))
        return self.policy.wants(source, "text", 0)

    def fits(self, sym: Any) -> None:
        """Assume that a number passed to a graph call, and each of its summands, is within half of 64 bits.

        Eager rejects larger numbers, while kernels would wrap around.  Half of the range is assumed so that sums in
        guards fit too.
        """
        expr = expr_of(sym) if isinstance(sym, torch.SymInt) else Expr.of(0)
        if any(map(self._is_integer, expr.symbols)):
            known = self.known_symbols
            for part in expr.sums():
                if not (known.at_least(Expr.of(_GREATEST), part) and known.at_least(part, -_GREATEST)):
                    raise Specialise(sorted(expr.symbols), "the number may exceed the range that graphs assume")

    def _is_integer(self, name: str) -> bool:
        """Whether the symbol is an integer of the program, not a size."""
        origin = self.origins.get(name)
        return self.known_symbols.unbacked.get(name) == "int" if origin is None else origin.what in ("int", "minus")

    def floating(self, real: float, source: Source) -> Any:
        """The SymFloat of a float; None if it is a constant."""
        if not self.policy.floats:
            return None
        self.policy.observe(source, "float", (real,))
        if not self.policy.wants(source, "float", 0):
            return None
        if source not in self.integers:
            name = f"float{len(self.known_symbols.floats)}"
            self.integers[source] = self.known_symbols.float(name, real)
            self.origins[name] = Origin(source, float, "float")
            log.info("%s is %s, now %s", name, source, real)
        return self.integers[source]

    def drawn(self, index: int, kind: type, greatest: float) -> Any:
        """A symbol for a number that generated code draws before the graph; None if it cannot be one.

        `kind`: float, or int from 0 on.  `greatest`: the bound of its magnitude.
        """
        source, what = DRAWN.item(index), kind.__name__
        wanted = self.policy.floats if kind is float else self.policy.integers
        if not wanted or self.policy.is_static(source, what, 0):
            return None
        how, most = ("float", None) if kind is float else ("drawn", Expr.of(int(greatest)))
        made = self.known_symbols.bind(how, most, held=greatest)
        self.origins[[*self.known_symbols.unbacked][-1]] = Origin(source, kind, what)
        return made

    def is_read(self, names: Iterable[str]) -> bool:
        """Whether the graph reads one of these symbols from data."""
        return any(n in self.known_symbols.unbacked and n not in self.origins for n in names)

    def _new(self, hint: int, origin: Origin, mark: Mark, low: int = 2) -> torch.SymInt:
        made = self.known_symbols.new(hint, low=max(mark.low or low, low), high=mark.high)
        self.origins[f"{made}"] = origin
        if mark.kind == "dynamic":
            self.required[f"{made}"] = origin
        log.info("%s is %s, now %d", made, origin.number, hint)
        return made

    def _strides(self, real: torch.Tensor, source: Source, sizes: Sequence[Any], steps: Set[int]) -> list[Any]:
        """Symbolic strides of an input.

        A stride that equals the extent of the inner dimensions is that product of sizes.  Others are symbols (`steps`)
        or numbers.
        """
        strides: list[Any] = list(real.stride())
        extents: dict[int, Any] = {}
        for d in sorted(range(real.dim()), key=lambda d: (real.stride(d), real.size(d))):
            step, origin = strides[d], Origin(source, type(real), "stride", d)
            if step not in extents:
                strides[d] = extents[step] = self._new(step, origin, Mark("maybe")) if d in steps else step
            elif isinstance(extents[step], torch.SymInt):
                strides[d], known = extents[step], self.known_symbols
                name = f"stride{sum(s.follows is not None for s in known.records.values())}"
                known.record(Symbol(name, step, follows=expr_of(strides[d])))
                self.origins[name] = origin
            extents[step * real.size(d)] = strides[d] * sizes[d]
        return strides

    @property
    def known_symbols(self) -> Symbols:
        """The symbols; the capture restarts if it has none."""
        if self.symbols is None:
            raise RestartWithSymbols
        return self.symbols

    def source_of(self, name: str) -> Source:
        """The source of the symbol's number."""
        return self.origins[name].number

    # results --------------------------------------------------------------------------------------------------
    def leave(self) -> None:
        """Call at the end of the capture: assumptions of later stages belong to no line of the program."""
        self.integers.clear()
        self.modules.clear()
        self.policy = SymbolPolicy()
        if self.symbols is not None:
            self.symbols.place = tuple

    def guard(self) -> Guard | None:
        """The guard of all assumptions so far."""
        return self.guard_about(None)

    def guard_about(self, is_watched: Callable[[Source], bool] | None) -> Guard | None:
        """The part of the guard that concerns symbols of watched sources; None: all of it."""
        known = self.symbols
        if known is None:
            return None
        about = None if is_watched is None else {n for n, o in self.origins.items() if is_watched(o.source)}
        return size_guard(known.records, self.origins, [*known.declared(), *known.relations], known.decisions, about)

    def specialised(self) -> tuple[Origin, Relation] | None:
        """A marked size that became a constant, and the relation that caused it."""
        for name, origin in self.required.items():
            if self.known_symbols.is_static(name):
                why = next(r for r in self.known_symbols.relations if r.kind == "==" and name in r.expr.symbols)
                return origin, why
        return None

    def unmarked(self, origins: Sequence[Origin], wanted: Specialise) -> list[Origin]:
        """The origins that may become constants.  A size marked dynamic is a symbol in each capture."""
        required = [*self.required.values()]
        if all(o in required for o in origins):
            raise UserError(f"{origins[0].number} is marked dynamic, but cannot be: {wanted.why}")
        return [o for o in origins if o not in required]

    def origins_of(self, wanted: Specialise) -> list[Origin]:
        known = self.known_symbols
        return [self.origins[n] for n in wanted.names or (*known.hints, *known.floats) if n in self.origins]
