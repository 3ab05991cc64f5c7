"""Reads pytest-benchmark's JSON.  In: a file.  Out: seconds by group and implementation, and the ratios to reach."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Group:
    """One piece of work. `seconds` of one call by implementation; `limits`: the largest allowed ratio to each peer;
    `moved`: the least bytes that a call reads and writes, with `threads` threads."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    moved: int | None = None
    threads: int = 1

    def rate(self, implementation: str) -> float | None:
        """Bytes a second."""
        seconds = self.seconds.get(implementation)
        return self.moved / seconds if self.moved and seconds else None

    def ratio(self, peer: str, ours: str = "pycompiler") -> float | None:
        """The time of pycompiler over the peer's; None if one was not measured."""
        if ours not in self.seconds or not self.seconds.get(peer):
            return None
        return self.seconds[ours] / self.seconds[peer]


def load(path: Path, stat: str = "median") -> dict[str, Group]:
    """Groups of a run by name, in the order in which they ran."""
    groups: dict[str, Group] = {}
    for bench in json.loads(path.read_text())["benchmarks"]:
        info = bench["extra_info"]
        if "impl" not in info:  # a figure of another kind: two threads beside one
            continue
        group = groups.setdefault(bench["group"], Group(bench["group"]))
        group.seconds[info["impl"]] = bench["stats"][stat] / info["calls"]
        group.limits.update(info["limits"])
        group.moved, group.threads = info.get("moved"), info.get("threads", 1)
    return groups


def show_time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def show_ratio(ratio: float | None, limit: float | None = None) -> str:
    if ratio is None:
        return "–"
    text = f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}"
    if limit is None:
        return text
    return f"{text} {'✓' if ratio <= limit else '✗'} (≤ {limit:.3g})"


def copy_rates(groups: Iterable[Group]) -> dict[int, float]:
    """Bytes a second of the machine's copy by number of threads, if a run measured it."""
    copies = (g for g in groups if g.name.startswith("kernel: copy"))
    return {g.threads: rate for g in copies if (rate := g.rate("eager")) is not None}
