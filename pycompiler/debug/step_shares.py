"""A step's time as shares of one bar, and as a timeline.

In: the steps of a root (`step_times.py`).  Out: `shares_of(steps)`, rows for the page; `timeline_of(document)`, lanes of
bars, which the page's script draws (`templates/timeline.js`); `shares_text(steps)`, a line.
Example: `a step of train takes 4.3 ms: graphs 41 %, eager code 30 %, dispatch 9 %, ...`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycompiler.debug.describe import Data
from pycompiler.debug.device_times import busy
from pycompiler.debug.document_queries import DocumentQueries
from pycompiler.debug.number_format import name, nanoseconds, title

# part of `step_times` -> (class in the page, name)
NAMES = {
    "graph": ("graph", "graphs"),
    "before": ("eager", "eager code at breaks"),
    "guards": ("guards", "guards"),
    "dispatch": ("dispatch", "dispatch"),
    "outside": ("outside", "the program around"),
}
WIDTH = 1000  # of the bar


def spent(steps: Data) -> dict[str, float]:
    """Nanoseconds of a step by part."""
    found = {part: sum(steps[part].values()) / steps["steps"] for part in NAMES if part != "outside"}
    return {**found, "outside": steps["outside"] / steps["steps"]}


def shares_of(steps: Data) -> list[Data]:
    rows, at, whole = [], 0.0, steps["step"] or 1.0
    for part, ns in spent(steps).items():
        width = ns / whole * WIDTH
        kind, shown = NAMES[part]
        rows.append({"kind": kind, "name": shown, "time": nanoseconds(ns), "percent": f"{ns / whole:.0%}",
                     "x": round(at, 2), "width": round(width, 2)})  # fmt: skip
        at += width
    return rows


def shares_text(steps: Data) -> str:
    parts = [f"{row['name']} {row['percent']}" for row in shares_of(steps)]
    return f"A step of {title(steps['function'])} takes {nanoseconds(steps['step'])}: {', '.join(parts)}"


# Lanes of the timeline, in order: part of `step_times`, or kind of a graph -> lane.
LANES = {
    "outside": "program", "before": "program", "guards": "guards and dispatch", "dispatch": "guards and dispatch",
    "forward": "forward", "inference": "forward", "backward": "backward",
}  # fmt: skip


@dataclass(slots=True)
class Bar:
    """A bar of the timeline.  `key`: elements of the page that belong to it (`templates/links.js`)."""

    kind: str
    x: float
    width: float
    label: str
    of: str
    key: str

    def row(self) -> Data:
        return {"kind": self.kind, "x": round(self.x), "width": round(self.width), "label": self.label, "of": self.of,
                "key": self.key}  # fmt: skip


class Timeline:
    """The parts of the last measured step, in order: bars by lane, and the graph breaks between them.

    The device may still work on the step when the program's next call begins: its lanes end later.
    """

    def __init__(self, document: DocumentQueries, steps: Data) -> None:
        self.document, self.run = document, steps["run"]
        self.frames = {f["number"]: (k, f) for k, f in enumerate(document.frames) if f["run"] == self.run}
        self.graphs = {g["number"]: (k, g) for k, g in enumerate(document.graphs) if g["run"] == self.run}
        self.lanes: dict[str, list[Bar]] = {lane: [] for lane in LANES.values()}
        self.launched: list[tuple[str, str]] = []  # name and key of each kernel, in order
        self.breaks: list[Data] = []
        self.at = 0.0
        self.broke: Data | None = None  # the break of the frame that has run last
        self.line = ""  # the line of the last break
        self.last: list[Any] = steps["last"]
        inner = iter(steps.get("inner") or ())
        for part, number, ns in self.last:
            if part == "graph":
                self.graph(number, ns, next(inner, []))
            elif part in NAMES:
                self.part(part, number, ns)
            self.at += ns
        self.device = [list(row) for row in steps.get("device") or ()]

    def part(self, part: str, number: int, ns: float) -> None:
        kind, label = NAMES[part]
        position, frame = self.frames.get(number, (-1, None)) if part != "dispatch" else (-1, None)
        key = f"f{position}" if frame and part == "guards" else ""
        of = title(frame["function"]) if frame else ""
        if part == "dispatch":
            of = name(self.graphs[number][1]) if number in self.graphs else ""
        if part in ("before", "outside"):
            self.add_break()
            key = self.line if part == "before" else ""
            of = f"before {of}" if of else ""
        if part == "guards" and frame:
            self.broke = frame["break"]
        self.lanes[LANES[part]].append(Bar(kind, self.at, ns, label, of, key))

    def add_break(self) -> None:
        """The last frame's graph break ends a graph here."""
        if (broke := self.broke) is None:
            return
        own = [f"{f['file']}:{f['line']}" for f in broke["stack"]]
        self.line = next(filter(None, map(self.document.id_of, reversed(own))), "")
        text = f"graph break [{broke['kind']}]: {broke['reason']}"
        self.breaks.append({"x": round(self.at), "text": text, "where": own[-1] if own else "", "key": self.line})
        self.broke = None

    def graph(self, number: int, ns: float, inner: Sequence[float]) -> None:
        """The bars of the graph's kernels and ATen calls; the rest (allocations, views) is behind them."""
        position, graph = self.graphs.get(number, (-1, None))
        steps = graph["steps"] if graph else ()
        self.launched += [
            (entry, f"s{position}-{k}") for k, step in enumerate(steps) for entry in step.get("device", ())
        ]
        if graph is None or len(inner) != len(graph["steps"]):
            lane = LANES.get(graph["kind"], "forward") if graph else "forward"
            whose = f"G{graph['run']}-{graph['number']}" if graph else ""
            self.lanes[lane].append(Bar("kernel", self.at, ns, "graph", name(graph) if graph else "", whose))
            return
        bars, of, at = self.lanes[LANES.get(graph["kind"], "forward")], name(graph), self.at
        for k, (step, spent) in enumerate(zip(graph["steps"], inner, strict=True)):
            kind = "aten" if step["kind"] == "aten" else "kernel"
            bars.append(Bar(kind, at, spent, step["name"], of, f"s{position}-{k}"))
            at += spent
        if (rest := self.at + ns - at) > 0:
            bars.append(Bar("rest", at, rest, "allocations and views", of, f"G{graph['run']}-{graph['number']}"))

    def data(self) -> Data:
        lanes = [{"name": lane, "bars": [bar.row() for bar in bars]} for lane, bars in self.lanes.items() if bars]
        by_stream: dict[int, list[Data]] = {}
        # Kernels of an unknown graph may have the names of another one's.
        unknown = any(row[0] == "graph" and row[1] not in self.graphs for row in self.last)
        keys = launched_keys([row[0] for row in self.device], [] if unknown else self.launched)
        for (label, start, ns, stream), key in zip(self.device, keys, strict=True):
            by_stream.setdefault(stream, []).append(Bar("device", start, ns, label, f"stream {stream}", key).row())
        lanes += [{"name": f"device, stream {stream}", "bars": rows} for stream, rows in sorted(by_stream.items())]
        whole = max([self.at, *(start + ns for _, start, ns, _ in self.device)])
        share = f"{busy(self.device, whole):.0%}" if self.device else ""
        return {"whole": round(whole), "lanes": lanes, "breaks": self.breaks, "busy": share}


def launched_keys(names: Sequence[str], launched: Sequence[tuple[str, str]]) -> list[str]:
    """The key of the kernel that each row of the device runs, or "".

    `launched`: name and key of each launch.  Equal kernels have equal names, but the device runs them in the order of their
    launches.
    """
    positions: dict[str, list[int]] = {}
    for position, (kernel, _) in enumerate(launched):
        positions.setdefault(kernel, []).append(position)
    found, at = [], 0
    for row in names:
        known = positions.get(row, [])
        later = bisect.bisect_left(known, at)
        if later < len(known):
            at = known[later] + 1
        found.append(launched[at - 1][1] if later < len(known) else "")
    return found


def timeline_of(document: DocumentQueries) -> Data | None:
    """The lanes of the last measured step; None if no step was measured."""
    steps = document.main_steps
    return Timeline(document, steps).data() if steps is not None and steps["last"] else None
