"""guard_profile(compiled, *args): what the guards of a call cost, one by one.

In: a compiled callable and arguments; it is called once.  Out: `GuardProfile`, which prints and holds the entries that
the call went through, its resume functions included, each with its guards, the costliest first.

Nanoseconds are those of a guard evaluated by itself, with the path that it is the first to read; `call` is what a call pays
for all of an entry's guards, most of which the fast path settles by a few words.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from pycompiler.debug.calls import watching
from pycompiler.debug.describe import Data
from pycompiler.debug.figures import nanoseconds, short, size
from pycompiler.debug.held import held
from pycompiler.ir.guards import Guard


@dataclass
class EntryCost:
    """One entry: nanoseconds, and bytes that it holds.  `tried`: entries whose guards failed before it in this call."""

    function: str
    tried: int
    call: float
    all: float
    guards: list[tuple[float, Guard]]
    holds: Data = field(default_factory=dict)

    def __str__(self) -> str:
        kept = ", ".join(f"{name} {size(n)}" for name, n in self.holds.items())
        checked = f"{len(self.guards)} guards; evaluated one by one {nanoseconds(self.all)}"
        head = f"{self.function}: {nanoseconds(self.call)} a call ({checked})"
        tried = [f"  {self.tried} entries before it did not fit"] if self.tried else []
        rows = [f"  {nanoseconds(ns):>8}  {short(str(guard))}" for ns, guard in self.guards]
        return "\n".join([head, *tried, *rows, f"  holds: {kept}"])


@dataclass
class GuardProfile:
    """`entries` in the order of the call; `guards`: of all entries, the costliest first; `result`: what the call returned."""

    entries: list[EntryCost]
    result: Any = None

    @property
    def guards(self) -> list[tuple[float, str, Guard]]:
        return sorted(((ns, e.function, g) for e in self.entries for ns, g in e.guards), key=lambda row: -row[0])

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "the call went through no compiled entry"


def guard_profile(fn: Any, /, *args: Any, **kwargs: Any) -> GuardProfile:
    """Call `fn` once, and measure each guard that the call rests on (of what it compiles, too): a `GuardProfile`."""
    found: list[EntryCost] = []
    own = threading.get_ident()

    def watch(kind: str, *told: Any) -> bool:
        if threading.get_ident() != own:
            return False
        if kind == "entry":
            function, tried, guards, call, all, each = told
            ranked = sorted(zip(each, guards, strict=True), key=lambda row: -row[0])
            found.append(EntryCost(function.name, tried, call, all, ranked, held(function, guards)))
        return kind == "call"

    with watching(watch):
        result = fn(*args, **kwargs)
    return GuardProfile(found, result)
