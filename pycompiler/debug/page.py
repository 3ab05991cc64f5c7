"""The report as one self-contained HTML page: no network, no fonts, one script.

In: a `Document`.  Out: the page as a str; it contains the document's data, compressed (`page_data.py`).  The templates are
in `templates/`.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence

import markupsafe

from pycompiler.debug.causes import summary
from pycompiler.debug.describe import Data, is_library
from pycompiler.debug.document import Document
from pycompiler.debug.guard_groups import groups_of, of_whole
from pycompiler.debug.html_parts import PageParts, policy, script, text_of
from pycompiler.debug.number_format import begins, counted, nanoseconds, size, title
from pycompiler.debug.page_data import encode, packed
from pycompiler.debug.step_shares import shares_of, spent

COSTLY = 5  # groups of guards, and steps, that are printed at the top


def page(document: Document) -> str:
    parts = PageParts(document)
    made = [(key, name, markupsafe.Markup(make(parts).strip())) for key, name, make in SECTIONS]
    start = document.data["starts"][0] if document.data["starts"] else {}
    program = os.path.basename(start.get("program", "").split(" ")[0]) or "a program"
    about = [start.get("machine", ""), *(f"{what} {start.get(what, '')}" for what in ("pycompiler", "torch", "python"))]
    lines = {f"{file}:{line}": at for (file, line), at in document.shown.items()}
    return parts.render(
        "page.html",
        title=f"Compile report: {program}",
        style=text_of("page.css"),
        script=script(),
        policy=policy(),
        made=" · ".join(about),
        facts=facts(document),
        sections=[row for row in made if row[2]],
        lines=json.dumps(lines).replace("<", "\\u003c"),  # no tag or comment can begin in it
        parts=packed(parts.kept),
        timeline=packed(encode(parts.timeline)),
        data=packed(encode(document.data)),
    )


def framed(page: str) -> str:
    """A page inside of another one, such as a notebook; the frame may run the page's script and nothing else."""
    style = "width:100%;height:40rem;border:1px solid #8c959f"
    return f'<iframe title="Compile report" sandbox="allow-scripts" style="{style}" srcdoc="{markupsafe.escape(page)}"></iframe>'


def facts(document: Document) -> list[tuple[str, str, bool]]:
    peak = max((g["memory"].get("peak", 0) for g in document.graphs), default=0)
    ranked, steps = document.ranked_guards()[:1], document.main_steps
    return [
        (f"{len(document.frames):,}", "frames", False),
        (f"{len(document.breaks):,}", "graph breaks", bool(document.breaks)),
        (f"{len(document.recompiles):,}", "recompiles", bool(document.recompiles)),
        (f"{sum(f['operators'] for f in document.frames):,}", "operators", False),
        (f"{sum(s['kind'] == 'kernel' for g in document.graphs for s in g['steps']):,}", "kernels", False),
        (f"{document.compiling:.2f} s", "compiling", False),
        (size(peak), "peak of a graph", False),
        *((nanoseconds(ns), "costliest guard", False) for ns, _, _ in ranked),
        *([(nanoseconds(steps["step"]), "a step", False)] if steps else []),
        *([(nanoseconds(spent(steps)["guards"]), "guards of a step", False)] if steps else []),
    ]


# sections -----------------------------------------------------------------------------------------------------
def _next(parts: PageParts) -> str:
    return parts.render("next.html", summary=summary(parts.document))


def _shares(parts: PageParts) -> str:
    steps = parts.document.main_steps
    return parts.render(
        "shares.html",
        steps=steps,
        shares=steps and shares_of(steps),
        lanes=len(parts.timeline["lanes"]) if parts.timeline else 0,
    )


def _guards(parts: PageParts) -> str:
    groups = groups_of(parts.document)
    return parts.render(
        "guards.html", groups=groups, shown=groups[:COSTLY], whole=lambda group: of_whole(parts.document, group)
    )


def _steps(parts: PageParts) -> str:
    """The slowest steps of all graphs, which a list of 40,000 steps in order would hide."""
    ranked = parts.document.ranked_steps()
    return parts.render("steps.html", ranked=ranked, shown=ranked[:COSTLY], lines_of=_lines, position=_position)


def _lines(graph: Data, step: Data) -> list[str]:
    """The program's first lines that a step computes."""
    places = {n["name"]: n["place"] for n in graph["nodes"]}
    return list(dict.fromkeys(places[o] for o in step["operators"] if places.get(o)))[:3]


def _position(graph: Data, step: Data) -> int:
    return next(k for k, other in enumerate(graph["steps"]) if other is step)


class Notes:
    """Notes about each line of a file."""

    def __init__(self, parts: PageParts, file: str, lines: set[int]) -> None:
        document = parts.document
        self.breaks: dict[int, dict[str, Data]] = defaultdict(dict)
        self.guards: dict[int, list[tuple[float | None, Data]]] = defaultdict(list)
        self.kernels: dict[int, dict[str, str]] = defaultdict(dict)  # name -> key
        self.costliest: dict[int, tuple[float, str]] = {}
        for ns, _, guard in document.ranked_guards()[:1]:
            if (line := _line(guard["stack"], file, lines)) is not None:
                self.costliest[line] = ns, guard["text"]
        for frame in document.frames:
            each = frame["entry"]["each"] if frame["entry"] else {}
            for i, guard in enumerate(frame["guards"]):
                if (line := _line(guard["stack"], file, lines)) is not None:
                    self.guards[line].append((each.get(i), guard))
            broke = frame["break"]
            if broke and (line := _line(broke["stack"], file, lines)) is not None:
                self.breaks[line][broke["reason"]] = broke
        for graph in document.graphs:
            by_node = {o: k for k, step in enumerate(graph["steps"]) for o in step["operators"]}
            for node in graph["nodes"]:
                at, _, rest = node["place"].partition(":")
                number = rest.split(" ")[0]
                if at == file and number.isdigit() and node["name"] in by_node:
                    position = by_node[node["name"]]
                    shown = f"{graph['steps'][position]['name']} ({graph['kind']})"
                    self.kernels[int(number)][shown] = parts.step_key(graph, position)

    def of(self, line: int) -> Data:
        guards = sorted(self.guards.get(line, ()), key=lambda g: -(g[0] or 0))
        known = [ns for ns, _ in guards if ns is not None]
        told = counted(len(guards), "guard") + (f", {nanoseconds(sum(known))}" if known else "")
        return {
            "breaks": list(self.breaks.get(line, {}).values()), "costliest": self.costliest.get(line),
            "guards": guards, "told": told, "kernels": list(self.kernels.get(line, {}).items()),
        }  # fmt: skip


def _line(stack: Sequence[Data], file: str, lines: set[int]) -> int | None:
    return next((f["line"] for f in reversed(stack) if f["file"] == file and f["line"] in lines), None)


def _program(parts: PageParts) -> str:
    """Each function's lines with notes; lines with a graph break and of the most expensive guard are highlighted."""
    document = parts.document
    own: list[Data] = []
    library: list[Data] = []
    for (file, _), function in document.functions.items():
        notes = Notes(parts, file, {n for n, _ in function["source"]})
        lines = [
            {"number": n, "text": text, "id": document.shown[file, str(n)], "notes": notes.of(n)}
            for n, text in function["source"]
        ]
        made = {"name": function["function"], "file": file, "lines": lines}
        (library if is_library(file) else own).append(made)
    return parts.render("program.html", own=own, library=library)


RECOMPILES = 500  # most recompiles on a page


def _recompiles(parts: PageParts) -> str:
    rows = []
    for k, row in enumerate(parts.document.recompiles[:RECOMPILES]):
        for i, reason in enumerate(row["reasons"] or ["there was no entry to compare with"]):
            seen, _, way_out = reason.partition("way out:")
            rows.append({"function": title(row["function"]), "where": begins(row), "seen": seen.strip(),
                         "way_out": way_out.strip(), "id": "" if i else f"R{k}"})  # fmt: skip
    return parts.render("recompiles.html", rows=rows, left=max(0, len(parts.document.recompiles) - RECOMPILES))


def _frames(parts: PageParts) -> str:
    return parts.render("frames.html", told=_of_frame)


def _of_frame(frame: Data) -> str:
    entry = frame["entry"]
    told = [
        counted(frame["operators"], "operator"),
        counted(len(frame["guards"]), "guard"),
        f"{frame['seconds']:.3f} s to compile",
    ]
    if entry:
        told.append(f"a check {nanoseconds(entry['call'])}, of all guards one by one {nanoseconds(entry['all'])}")
    if frame["break"]:
        told.append(f"ends at a graph break: {frame['break']['kind']}")
    return "; ".join(told)


def _graphs(parts: PageParts) -> str:
    return parts.render("graphs.html")


def _times(parts: PageParts) -> str:
    phases = {p: t for p, t in parts.document.data["phases"].items() if t}
    return parts.render("times.html", phases=phases, longest=max((sum(t) for t in phases.values()), default=0.0))


def _memory(parts: PageParts) -> str:
    return parts.render("memory.html")


SECTIONS: tuple[tuple[str, str, Callable[[PageParts], str]], ...] = (
    ("next", "What to do next", _next),
    ("shares", "A step of the program", _shares),
    ("guards", "Costliest guards", _guards),
    ("steps", "Costliest kernels", _steps),
    ("program", "The program", _program),
    ("recompiles", "Recompiles", _recompiles),
    ("frames", "Frames and their guards", _frames),
    ("kernels", "Graphs and kernels", _graphs),
    ("time", "Time of compiles", _times),
    ("memory", "Memory by step", _memory),
)
