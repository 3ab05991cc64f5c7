"""A step's time as shares of one bar, and as a timeline.

In: the steps of a root (`step_times.py`).  Out: `shares_of(steps)` and `timeline_of(document)`, rows for the page, and
`shares_text(steps)`, a line.  Example: `a step of train takes 4.3 ms: graphs 41 %, eager code 30 %, dispatch 9 %, ...`.
"""

from __future__ import annotations

from typing import Any

from pycompiler.debug.describe import Data
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


def timeline_of(document: DocumentQueries) -> dict[str, Any] | None:
    """The parts of the last measured step, in order."""
    steps = document.main_steps
    if steps is None or not steps["last"]:
        return None
    run = steps["run"]
    frames = {f["number"]: title(f["function"]) for f in document.frames if f["run"] == run}
    graphs = {g["number"]: name(g) for g in document.graphs if g["run"] == run}
    rows, at = [], 0.0
    for part, number, ns in (row for row in steps["last"] if row[0] in NAMES):
        kind, shown = NAMES[part]
        whose = (graphs if part in ("graph", "dispatch") else frames).get(number, "")
        told = {"before": f"eager code before {whose}", "guards": f"guards of {whose}"}.get(part, f"{shown} {whose}")
        lane = list(NAMES).index(part) * 2
        rows.append({"kind": kind, "x": round(at, 1), "width": round(ns, 1), "y": lane,
                     "text": f"{told.strip()}: {nanoseconds(ns)}"})  # fmt: skip
        at += ns
    return {"width": round(at, 1), "parts": rows}
