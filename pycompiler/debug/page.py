"""The report as one self-contained HTML page: no network, no fonts, one script for long lists.

In: a `Document`.  Out: the page as a str; it contains the document as JSON.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pycompiler.debug.describe import Data, is_library
from pycompiler.debug.document import Document
from pycompiler.debug.html_parts import (
    OPEN,
    PAGE,
    PLAIN,
    POLICY,
    STYLE,
    UNFOLD,
    bar,
    code,
    escape,
    folded,
    link,
    some,
    table,
    tag,
)  # fmt: skip
from pycompiler.debug.number_format import begins, counted, name, nanoseconds, place, short, size, title

COSTLY = 5  # guards of all frames that are printed at the top


def page(document: Document) -> str:
    sections = [(key, title, content) for key, title, make in SECTIONS if (content := make(document))]
    start = document.data["starts"][0] if document.data["starts"] else {}
    program = os.path.basename(start.get("program", "").split(" ")[0]) or "a program"
    made = [start.get("machine", ""), *(f"{what} {start.get(what, '')}" for what in ("pycompiler", "torch", "python"))]
    return PAGE.format(
        title=escape(f"Compile report: {program}"),
        style=STYLE,
        made=escape(" · ".join(made)),
        facts=facts(document),
        nav="".join(tag("li", link(key, escape(title))) for key, title, _ in sections),
        sections="".join(
            tag("section", f'<h2 id="{key}">{escape(title)}</h2>{content}', aria_labelledby=key)
            for key, title, content in sections
        ),
        data=json.dumps(document.data).replace("<", "\\u003c"),  # no tag or comment can begin in it
        policy=escape(POLICY),
        plain=f"{PLAIN:,}",
        unfold=UNFOLD,
    )


def facts(document: Document) -> str:
    peak = max((g["memory"].get("peak", 0) for g in document.graphs), default=0)
    ranked = document.ranked_guards()[:1]
    rows = [
        (f"{len(document.frames):,}", "frames", False),
        (f"{len(document.breaks):,}", "graph breaks", bool(document.breaks)),
        (f"{len(document.recompiles):,}", "recompiles", bool(document.recompiles)),
        (f"{sum(f['operators'] for f in document.frames):,}", "operators", False),
        (f"{sum(s['kind'] == 'kernel' for g in document.graphs for s in g['steps']):,}", "kernels", False),
        (f"{document.compiling:.2f} s", "compiling", False),
        (size(peak), "peak of a graph", False),
        *((nanoseconds(ns), "costliest guard", False) for ns, _, _ in ranked),
    ]
    return tag(
        "ul",
        "".join(f"<li{' class=bad' if bad else ''}><b>{n}</b> {what}</li>" for n, what, bad in rows),
        class_="facts",
    )


# sections -----------------------------------------------------------------------------------------------------
def todo(document: Document) -> str:
    rows = document.data["advice"]
    if not rows:
        return "<p>Nothing: one graph, no break, no recompile, and no operator left to ATen.</p>"
    items = [
        f"<li><p>{escape(r['what'])}</p>"
        + (f'<p class="dim">{_place(document, r["where"])} {code(document.line(r["where"]))}</p>' if r["where"] else "")
        + f'<p class="do">{escape(r["do"])}</p></li>'
        for r in rows
    ]
    shown = tag("ol", "".join(items[:OPEN]), class_="todo")
    return shown + (
        folded(f"{len(items) - OPEN} more", tag("ol", "".join(items[OPEN:]), class_="todo")) if items[OPEN:] else ""
    )


def costly_guards(document: Document) -> str:
    """The most expensive guards of all frames, with the program's line of each."""
    ranked = document.ranked_guards()
    rows = [
        (nanoseconds(ns), bar(ns / (ranked[0][0] or 1)), code(short(guard["text"])), _made_at(document, guard),
         link(_id("F", frame), escape(title(frame["function"]))))
        for ns, frame, guard in ranked[:COSTLY]
    ]  # fmt: skip
    heads = ("#of a check", "", "guard", "made at", "all guards of")
    return (
        table(f"{len(rows)} of {counted(len(ranked), 'guard')}, each evaluated by itself", heads, rows) if rows else ""
    )


def costly_steps(document: Document) -> str:
    """The slowest steps of all graphs, which a list of 40,000 steps in order would hide."""
    ranked = document.ranked_steps()
    rows = [
        (nanoseconds(ns), bar(ns / (ranked[0][0] or 1)), code(step["name"]), _lines(document, _places(graph), step),
         link(_id("G", graph), escape(name(graph))))
        for ns, graph, step in ranked[:COSTLY]
    ]  # fmt: skip
    heads = ("#of a call", "", "step", "lines", "all steps of")
    return table(f"{len(rows)} of {counted(len(ranked), 'step')}, least time of a call", heads, rows) if rows else ""


def _id(letter: str, made: Data) -> str:
    """The id of a frame or graph in the page."""
    return f"{letter}{made['run']}-{made['number']}"


def _places(graph: Data) -> dict[str, str]:
    return {n["name"]: n["place"] for n in graph["nodes"]}


def _lines(document: Document, places: dict[str, str], step: Data) -> str:
    """The program's first lines that a step computes."""
    lines = dict.fromkeys(places[o] for o in step["operators"] if places.get(o))
    return " ".join(_place(document, line) for line in list(lines)[:3])


def _made_at(document: Document, guard: Data) -> str:
    """The program's innermost line that a guard comes from."""
    places = [f"{f['file']}:{f['line']}" for f in guard["stack"]]
    shown = [p for p, f in zip(places, guard["stack"], strict=True) if (f["file"], str(f["line"])) in document.shown]
    return _place(document, (shown or places)[-1]) if places else ""


def _place(document: Document, where: str) -> str:
    """`file:line...`, as a link if the page prints that line."""
    file, _, rest = where.partition(":")
    line = rest.split(" ")[0]
    text = tag("code", escape(place(f"{os.path.basename(file)}:{rest}")), title=where)
    at = document.shown.get((file, line))
    return link(at, text) if at else text


class Notes:
    """Notes about each line of a file."""

    def __init__(self, document: Document, file: str, lines: set[int]) -> None:
        self.breaks: dict[int, list[str]] = defaultdict(list)
        self.guards: dict[int, list[tuple[float | None, str]]] = defaultdict(list)
        self.kernels: dict[int, dict[str, None]] = defaultdict(dict)
        self.costliest: dict[int, str] = {}
        for ns, _, guard in document.ranked_guards()[:1]:
            if (line := _line(guard["stack"], file, lines)) is not None:
                told = f"the costliest guard: {nanoseconds(ns)} {code(short(guard['text'], 80))}"
                self.costliest[line] = tag("span", told, class_="costly")
        for frame in document.frames:
            each = frame["entry"]["each"] if frame["entry"] else {}
            for i, guard in enumerate(frame["guards"]):
                if (line := _line(guard["stack"], file, lines)) is not None:
                    self.guards[line].append((each.get(i), guard["text"]))
            broke = frame["break"]
            if broke and (line := _line(broke["stack"], file, lines)) is not None:
                self.breaks[line].append(
                    f"<b>graph break</b> [{escape(broke['kind'])}] {escape(broke['reason'])}<br>→ {escape(broke['hint'])}"
                )
        for graph in document.graphs:
            by_node = {o: step["name"] for step in graph["steps"] for o in step["operators"]}
            for node in graph["nodes"]:
                at, _, rest = node["place"].partition(":")
                number = rest.split(" ")[0]
                if at == file and number.isdigit() and node["name"] in by_node:
                    self.kernels[int(number)][f"{by_node[node['name']]} ({graph['kind']})"] = None

    def of(self, line: int) -> str:
        made = [tag("span", text, class_="bad") for text in dict.fromkeys(self.breaks.get(line, ()))]
        made += [self.costliest[line]] if line in self.costliest else []
        if guards := self.guards.get(line):
            known = [ns for ns, _ in guards if ns is not None]
            told = counted(len(guards), "guard") + (f", {nanoseconds(sum(known))}" if known else "")
            ranked = sorted(guards, key=lambda g: -(g[0] or 0))
            rows = [
                f"<li>{escape(nanoseconds(ns)) if ns is not None else ''} {code(short(text))}</li>"
                for ns, text in ranked[:OPEN]
            ]
            rows += [f"<li>{len(ranked) - OPEN} more</li>"] if ranked[OPEN:] else []
            made.append(folded(told, tag("ul", "".join(rows))))
        if kernels := self.kernels.get(line):
            made.append(
                folded(
                    counted(len(kernels), "step"),
                    tag("ul", "".join(f"<li>{code(k)}</li>" for k in list(kernels)[:OPEN])),
                )
            )
        return "".join(made)


def _line(stack: Sequence[Data], file: str, lines: set[int]) -> int | None:
    return next((f["line"] for f in reversed(stack) if f["file"] == file and f["line"] in lines), None)


def program(document: Document) -> str:
    made: list[str] = []
    library: list[str] = []
    for (file, _), function in document.functions.items():
        text = _function(document, file, function)
        (library if is_library(file) else made).append(text)
    folded_away = folded(f"{counted(len(library), 'function')} of libraries", "".join(library)) if library else ""
    return some(made, "functions") + folded_away


def _function(document: Document, file: str, function: Data) -> str:
    """A function's lines with notes; lines with a graph break and of the most expensive guard are highlighted."""
    notes = Notes(document, file, {n for n, _ in function["source"]})
    rows = []
    for n, text in function["source"]:
        kind = "broken" if n in notes.breaks else "hot" if n in notes.costliest else ""
        cells = f'<td class="n dim">{escape(n)}</td><td class="code">{escape(text)}</td><td class="notes">{notes.of(n)}</td>'
        rows.append(tag("tr", cells, id=document.shown[file, str(n)], class_=kind))
    heads = "".join(f"<th scope=col>{head}</th>" for head in ("line", "source", "breaks, guards, kernels"))
    body = tag("table", f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>", class_="source")
    head = f"<h3>{escape(function['function'])} <span class=dim>{escape(file)}</span></h3>"
    return head + tag("div", body, class_="wide")


def frames(document: Document) -> str:
    made = []
    for frame in document.frames:
        entry = frame["entry"]
        each = entry["each"] if entry else {}
        ranked = sorted(enumerate(frame["guards"]), key=lambda g: -each.get(g[0], 0.0))
        top = max(each.values(), default=0.0)
        guards = table(
            "Guards, costliest first",
            ("#cost", "", "guard", "made at"),
            [
                (nanoseconds(each.get(i)), bar(each.get(i, 0) / top if top else 0), code(g["text"]),
                 _made_at(document, g))
                for i, g in ranked
            ],
        )  # fmt: skip
        told = [
            counted(frame["operators"], "operator"),
            counted(len(frame["guards"]), "guard"),
            f"{frame['seconds']:.3f} s to compile",
        ]
        if entry:
            told.append(f"a check {nanoseconds(entry['call'])}, of all guards one by one {nanoseconds(entry['all'])}")
        if frame["break"]:
            told.append(f"ends at a graph break: {frame['break']['kind']}")
        content = f"<p class=dim>{escape('; '.join(told))}</p>"
        content += folded(counted(len(ranked), "guard"), guards)
        if frame["graph"]:
            content += folded("captured graph", f"<pre tabindex=0>{escape(frame['graph'])}</pre>")
        links = ", ".join(link(_id("G", g), escape(name(g))) for g in document.graphs_of(frame))
        content += f"<p>{links}</p>" if links else ""
        where = escape(os.path.basename(begins(frame)))
        head = f"{escape(title(frame['function']))} <span class=dim>{where}</span>"
        made.append(tag("h3", head, id=_id("F", frame)) + content)
    return some(made, "frames")


def kernels(document: Document) -> str:
    return some([_graph(document, graph) for graph in document.graphs], "graphs")


def _graph(document: Document, graph: Data) -> str:
    calls, steps = graph["calls"], graph["steps"]
    told = f"{counted(len(graph['nodes']), 'operator')} in {counted(len(steps), 'step')}"
    if calls:
        rest = nanoseconds(calls["rest"] / calls["calls"])
        told += f"; {counted(calls['calls'], 'call')}, the rest of each (allocations, views) {rest}"
    content = f"<p class=dim>{escape(told)}</p>"
    heads = ("step", "#time", "", "fused into it", "#reads", "#writes", "lines")
    content += table("Steps in order: least time of a call, bytes read and written", heads, _steps(document, graph))
    if pairs := [(code(" and ".join(u["kernels"])), escape(u["why"])) for u in graph["unfused"]]:
        why = table("Kernels that were not fused", ("kernels", "why"), pairs)
        content += folded(f"why not fewer kernels: {counted(len(pairs), 'pair')}", why)
    nodes = [
        (code(n["name"]), code(n["operator"]), escape(n["of"]), _place(document, n["place"]) if n["place"] else "")
        for n in graph["nodes"]
    ]
    content += folded("operators", table("ATen graph", ("node", "operator", "of", "line"), nodes))
    if graph["code"]:
        content += folded("generated code", f"<pre tabindex=0>{escape(graph['code'])}</pre>")
    return tag("h3", escape(name(graph)), id=_id("G", graph)) + content


def _steps(document: Document, graph: Data) -> Iterator[tuple[str, ...]]:
    calls, steps = graph["calls"], graph["steps"]
    times = calls["least"] if calls and len(calls["least"]) == len(steps) else [None] * len(steps)
    top = max((t for t in times if t), default=0.0)
    places = _places(graph)
    for step, time in zip(steps, times, strict=True):
        operators = step["operators"]
        items = "".join(f"<li>{code(o)}</li>" for o in operators[:OPEN])
        yield (code(step["name"]), nanoseconds(time), bar((time or 0) / top if top else 0),
               folded(counted(len(operators), "operator"), tag("ul", items)), size(step["reads"]), size(step["writes"]),
               _lines(document, places, step))  # fmt: skip


def times(document: Document) -> str:
    phases = {p: t for p, t in document.data["phases"].items() if t}
    whole = max((sum(t) for t in phases.values()), default=0.0)
    rows = [
        (escape(p), f"{sum(t):.4f} s", bar(sum(t) / whole if whole else 0), f"{len(t):,}", f"{max(t):.4f} s")
        for p, t in phases.items()
    ]
    note = "<p class=dim>compile contains capture and backend; backend and backward contain the phases below them.</p>"
    per_graph = [
        (
            link(_id("G", g), escape(name(g))),
            escape(", ".join(f"{p} {s:.3f} s" for p, s in g["phases"].items())),
        )
        for g in document.graphs
    ]
    made = (
        table("Seconds of all compiles, by phase", ("phase", "#sum", "", "#times", "#longest"), rows) + note
        if rows
        else ""
    )
    return made + (
        folded("by graph", table("Phases of each graph", ("graph", "phases"), per_graph)) if per_graph else ""
    )


def memory(document: Document) -> str:
    made = []
    for graph in document.graphs:
        found = graph["memory"]
        if not found:
            continue
        top = found["peak"] or 1
        rows = [
            (code(step["name"]), size(n), bar(n / top)) for step, n in zip(graph["steps"], found["after"], strict=True)
        ]
        parts = [("peak", "peak"), ("inputs", "inputs"), ("constants", "constants"), ("library", "kernels")]
        told = f"{name(graph)}: {', '.join(f'{what} {size(found[key])}' for key, what in parts)}"
        made.append(
            folded(
                escape(told),
                table("Bytes of the graph's own tensors that are alive after each step", ("step", "#bytes", ""), rows),
            )
        )
    return "".join(made)


RECOMPILES = 500  # most recompiles on a page


def recompiles(document: Document) -> str:
    rows = []
    for row in document.recompiles[:RECOMPILES]:
        for reason in row["reasons"] or ["there was no entry to compare with"]:
            seen, _, way_out = reason.partition("way out:")
            rows.append(
                (
                    code(title(row["function"])),
                    _place(document, begins(row)),
                    escape(seen.strip()),
                    escape(way_out.strip()),
                )
            )
    left = len(document.recompiles) - RECOMPILES
    return (
        table(
            "Each call that fitted no entry" + (f" ({left:,} later ones are left out)" if left > 0 else ""),
            ("function", "line", "guard that failed: seen, expected, where", "way out"),
            rows,
        )
        if rows
        else ""
    )


SECTIONS: tuple[tuple[str, str, Any], ...] = (
    ("next", "What to do next", todo),
    ("guards", "Costliest guards", costly_guards),
    ("steps", "Costliest steps", costly_steps),
    ("program", "The program", program),
    ("recompiles", "Recompiles", recompiles),
    ("frames", "Frames and their guards", frames),
    ("kernels", "Graphs and kernels", kernels),
    ("time", "Time of compiles", times),
    ("memory", "Memory by step", memory),
)
