"""`python -m pycompiler report --diff OLD NEW`: two reports compared.

In: two files, each the JSON of `report --json`, or a page.  Out: `Comparison`, which prints new and gone causes, and the
parts of a step, the graphs and the kernels that became slower or faster.
Example line: `new: line 12: graph break [builtin-call]: ... print(...)`.

Causes are matched by kind, function and source line, since line numbers change between two versions of a program.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pycompiler.debug.causes import cost_text
from pycompiler.debug.describe import Data
from pycompiler.debug.document_queries import DocumentQueries
from pycompiler.debug.number_format import counted, nanoseconds
from pycompiler.debug.page_data import embedded
from pycompiler.debug.step_shares import NAMES, spent
from pycompiler.debug.step_times import PARTS
from pycompiler.errors import ArgumentError

CHANGED = 0.1  # share by which a time must change to be mentioned
SHOWN = 10  # most rows of a kind
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read(path: Path) -> DocumentQueries:
    """The document of a file; ArgumentError if the file is neither a report's JSON nor its page."""
    try:
        text = path.read_text(encoding="utf-8")
        data = embedded(text) if text.lstrip().startswith("<") else json.loads(text)
        for frame in data["frames"]:
            if frame["entry"]:
                frame["entry"]["each"] = {int(i): ns for i, ns in frame["entry"]["each"].items()}
        for steps in data["steps"]:
            steps |= {part: {int(i): ns for i, ns in steps[part].items()} for part in PARTS}
        data["causes"], data["graphs"]
        return DocumentQueries(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{path} is no report (--json, or a page) of this version: {error}") from None


@dataclass
class Comparison:
    """Rows of text; `new` and `gone` are causes, `times` are (new nanoseconds - old nanoseconds, text)."""

    new: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    times: list[tuple[float, str]] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)

    @staticmethod
    def of(old: DocumentQueries, new: DocumentQueries) -> Comparison:
        made = Comparison()
        before, after = causes(old), causes(new)
        made.new = [_told(after[key], new) for key in after if key not in before]
        made.gone = [_told(before[key], old) for key in before if key not in after]
        for name, count in COUNTS.items():
            if count(old) != count(new):
                made.counts.append(f"{counted(count(new), name)}, before {count(old):,}")
        a, b = times(old), times(new)
        for key in a.keys() & b.keys():
            if abs(b[key] - a[key]) > CHANGED * max(a[key], b[key]):
                made.times.append((b[key] - a[key], f"{key}: {nanoseconds(b[key])}, before {nanoseconds(a[key])}"))
        made.times.sort(key=lambda row: -abs(row[0]))
        return made

    def __str__(self) -> str:
        lines = [*self.counts]
        for head, rows in (("new", self.new), ("gone", self.gone)):
            lines += [f"{head}: {row}" for row in rows[:SHOWN]]
            lines += [f"{head}: {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        for head, slower in (("slower", True), ("faster", False)):
            rows = [text for change, text in self.times if (change > 0) == slower]
            lines += [f"{head}: {row}" for row in rows[:SHOWN]]
            lines += [f"{head}: {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        return "\n".join(lines) or "no difference: the same causes, and no time changed by a tenth"


COUNTS: dict[str, Callable[[DocumentQueries], int]] = {
    "graph break": lambda document: len(document.breaks),
    "recompile": lambda document: len(document.recompiles),
    "compiled graph": lambda document: len(document.graphs),
}


def causes(document: DocumentQueries) -> dict[tuple[str, ...], Data]:
    """Causes by their key; numbers in texts do not count."""
    found: dict[tuple[str, ...], Data] = {}
    for cause in document.data["causes"]:
        file = os.path.basename(cause["where"].partition(":")[0])
        what = NUMBER.sub("#", cause["what"].partition("; ")[0])
        found[cause["kind"], file, document.line(cause["where"]) or what, what.partition(" [")[0]] = cause
    return found


def _told(cause: Data, document: DocumentQueries) -> str:
    file, _, line = cause["where"].rpartition(":")
    cost = cost_text(cause, document.main_steps)
    return f"{cause['what']} at {os.path.basename(file)}:{line}" + (f" ({cost})" if cost else "")


def times(document: DocumentQueries) -> dict[str, float]:
    """Nanoseconds by name: a step, its parts, and each step of each graph."""
    found: dict[str, float] = {}
    if (steps := document.main_steps) is not None:
        found["a step"] = steps["step"]
        found |= {f"{NAMES[part][1]} of a step": ns for part, ns in spent(steps).items()}
    for name, ns in _kernels(document):
        found[name] = found.get(name, 0.0) + ns
    return found


def _kernels(document: DocumentQueries) -> Iterator[tuple[str, float]]:
    for ns, graph, step in document.ranked_steps():
        yield f"{graph.get('title') or graph['kind']}: {step['name']}", ns
