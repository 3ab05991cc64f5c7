"""guard_profile(compiled, *args): the cost of a call's guards, one by one.

In: a compiled callable and arguments; it is called once.  Out: `GuardProfile`, which prints and holds the entries that
the call used, its resume functions included, each with its guards, the most expensive first.

Nanoseconds of a guard are for a separate evaluation, with the path that it is the first to read.  `call` is the cost of
all of an entry's guards in a call; the fast path decides most of them with a few comparisons.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from pycompiler.debug.call_watchers import watching
from pycompiler.debug.describe import Data
from pycompiler.debug.entry_memory import memory_of_entry
from pycompiler.debug.number_format import nanoseconds, short, size
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
    """The result of `guard_profile`.

    Attributes:
        entries: Entries in the order of the call; each has `function`, `call` (nanoseconds) and `guards`.
        result: The result of the call.
        guards: Guards of all entries as (nanoseconds, function, guard), the most expensive first.
    """

    entries: list[EntryCost]
    result: Any = None

    @property
    def guards(self) -> list[tuple[float, str, Guard]]:
        return sorted(((ns, e.function, g) for e in self.entries for ns, g in e.guards), key=lambda row: -row[0])

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "the call went through no compiled entry"


def guard_profile(fn: Any, /, *args: Any, **kwargs: Any) -> GuardProfile:
    """Call a compiled callable once, and measure each guard of the call.

    Entries that the call compiles, and entries of resume functions, are measured too.

    Args:
        fn (Callable | nn.Module): A compiled callable.
        *args: Positional arguments of the call.
        **kwargs: Keyword arguments of the call.

    Returns:
        GuardProfile: Entries and guards with their nanoseconds; it prints as a table.

    Example:
        ```python
        compiled = pycompiler.compile(torch.nn.Linear(8, 8))
        profile = pycompiler.guard_profile(compiled, torch.randn(4, 8))
        print(profile)
        nanoseconds, function, guard = profile.guards[0]   # the most expensive guard
        ```
    """
    found: list[EntryCost] = []
    own = threading.get_ident()

    def watch(kind: str, *told: Any) -> bool:
        if threading.get_ident() != own:
            return False
        if kind == "entry":
            function, tried, guards, call, all, each = told
            ranked = sorted(zip(each, guards, strict=True), key=lambda row: -row[0])
            found.append(EntryCost(function.name, tried, call, all, ranked, memory_of_entry(function, guards)))
        return kind == "call"

    with watching(watch):
        result = fn(*args, **kwargs)
    return GuardProfile(found, result)
