"""Queries over the data of a document: functions and their lines, frames of graphs, ranked guards and steps.

In: the data of a document (`document.py`).  Out: rows of it.
"""

from __future__ import annotations

from functools import cached_property

from pycompiler.debug.describe import Data
from pycompiler.debug.number_format import title


class DocumentQueries:
    """The data of a document, with queries."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.frames: list[Data] = data["frames"]
        self.graphs: list[Data] = data["graphs"]
        self.recompiles: list[Data] = data["recompiles"]

    @cached_property
    def functions(self) -> dict[tuple[str, int], Data]:
        """Captured and inlined functions by file and first line, without functions nested in another one."""
        found: dict[tuple[str, int], Data] = {}
        for frame in self.frames:
            for function in (frame, *frame["inlined"]):
                if any(text.strip() for _, text in function["source"]):
                    named = title(function["function"]).partition(" (")[0]
                    found.setdefault((function["file"], function["line"]), {**function, "function": named})
        last: dict[str, int] = {}  # last line of the outer functions of a file so far
        for file, line in sorted(found):
            end = found[file, line]["source"][-1][0]
            if end <= last.get(file, -1):
                del found[file, line]
            else:
                last[file] = end
        return found

    @cached_property
    def shown(self) -> dict[tuple[str, str], str]:
        """(file, line) -> id in the page, for the lines of these functions."""
        files = {file: k for k, file in enumerate(dict.fromkeys(file for file, _ in self.functions))}
        return {
            (file, str(n)): f"L{files[file]}-{n}"
            for (file, _), function in self.functions.items()
            for n, _ in function["source"]
        }

    def id_of(self, where: str) -> str | None:
        """The id in the page of the line `file:line...`; None if the page does not print it."""
        file, _, rest = where.partition(":")
        return self.shown.get((file, rest.split(" ")[0]))

    def line(self, where: str) -> str:
        """The source line of `file:line...`, if the page prints that line."""
        file, _, rest = where.partition(":")
        return self._texts.get((file, rest.split(" ")[0]), "")

    @cached_property
    def _texts(self) -> dict[tuple[str, str], str]:
        return {
            (file, str(n)): text.strip()
            for (file, _), function in self.functions.items()
            for n, text in function["source"]
        }

    @cached_property
    def main_steps(self) -> Data | None:
        """The steps of the root in which most time was spent; None if no step was measured."""
        return max(self.data["steps"], key=lambda row: row["step"] * row["steps"], default=None)

    # queries ------------------------------------------------------------------------------------------------------
    @property
    def breaks(self) -> list[Data]:
        return [f for f in self.frames if f["break"]]

    def graphs_of(self, frame: Data) -> list[Data]:
        return [g for g in self.graphs if g["run"] == frame["run"] and g["model"] in frame["models"]]

    def ranked_guards(self) -> list[tuple[float, Data, Data]]:
        """(nanoseconds, frame, guard) of every measured guard, the most expensive first."""
        found = [
            (ns, frame, frame["guards"][i])
            for frame in self.frames
            if frame["entry"]
            for i, ns in frame["entry"]["each"].items()
        ]
        return sorted(found, key=lambda row: -row[0])

    def ranked_steps(self) -> list[tuple[float, Data, Data]]:
        """(nanoseconds, graph, step) of every measured step, by its least time in a call, the most expensive first."""
        found = [
            (ns, graph, step)
            for graph in self.graphs
            if graph["calls"] and len(graph["calls"]["least"]) == len(graph["steps"])
            for ns, step in zip(graph["calls"]["least"], graph["steps"], strict=True)
        ]
        return sorted(found, key=lambda row: -row[0])

    def seconds(self, phase: str) -> float:
        return float(sum(self.data["phases"].get(phase, ())))

    @property
    def compiling(self) -> float:
        """Seconds of all compiles, including later compiles of backwards."""
        return self.seconds("compile") + self.seconds("backward")
