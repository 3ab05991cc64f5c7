"""All information about compiles and calls as one document, from which text and page are rendered.

In: events (`debug/events.py`) of one or several processes, in any order of processes.  Out: `Document`, whose `data` is
JSON: `frames`, `graphs`, `recompiles`, `hints`, `phases`, `start`, `advice`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycompiler.debug.causes import causes_of, cost_text, followers
from pycompiler.debug.describe import Data
from pycompiler.debug.document_queries import DocumentQueries
from pycompiler.debug.guard_groups import group_text, groups_of, of_whole
from pycompiler.debug.number_format import begins, counted, name, nanoseconds, place, title
from pycompiler.debug.step_shares import shares_text
from pycompiler.debug.step_times import PARTS

SLOW_GUARDS = 0.2  # share of a call's time above which guards are mentioned
SMALL = 5_000  # nanoseconds: a smaller kernel is mostly launch time
MANY = 40  # number of kernels above which a graph is mentioned, if most of them are small

# OUTER: phases that contain others.  Another phase is mentioned if it takes long, and more than half of all compile time.
OUTER, SLOW_PHASE = {"compile", "backend", "backward"}, 2.0  # s
PHASES = {
    "build": (
        "the C++ compiler's",
        "keep the kernel cache between processes, or ship the compiled entries (pycompiler.save)",
    ),
}
REPORT_IT = "report it, with TORCH_COMPILE_DEBUG=1 and trace.compile_profile: compile.prof names the functions"


class Document(DocumentQueries):
    """The document; built by `Document.of(events)`."""

    @staticmethod
    def of(events: Iterable[Data]) -> Document:
        data: Data = {"starts": [], "frames": [], "graphs": [], "recompiles": [], "hints": [], "phases": {},
                      "eager": [], "steps": [], "backward_seconds": {}}  # fmt: skip
        frames: dict[Any, Data] = {}  # by process and number
        graphs: dict[Any, Data] = {}
        steps: dict[Any, Data] = {}  # by process and root
        run = 0
        for event in events:
            kind = event["event"]
            if kind == "start":
                run += 1
                data["starts"].append(event)
            elif kind == "phase":
                data["phases"].setdefault(event["name"], []).append(event["seconds"])
                if event["name"] == "backward" and event.get("id"):
                    seconds = data["backward_seconds"]
                    seconds[event["id"]] = seconds.get(event["id"], 0.0) + event["seconds"]
            elif kind == "frame":
                frames[run, event["number"]] = made = {**event, "run": run, "entry": None}
                data["frames"].append(made)
            elif kind == "graph":
                graphs[run, event["number"]] = made = {**event, "run": run, "calls": None}
                data["graphs"].append(made)
            elif kind == "recompile":
                data["recompiles"].append({**event, "run": run})
            elif kind == "eager":
                data["eager"].append({**event, "run": run})
            elif kind == "steps":
                steps[run, event["root"], event["function"]] = _steps(event, run)
            elif kind == "hint":
                data["hints"].append({**event, "run": run})
            elif kind == "entry" and (found := frames.get((run, event["frame"]))):
                known = found["entry"]
                each = {int(i): ns for i, ns in event["each"].items()}
                if known is None or event["call"] < known["call"]:
                    found["entry"] = {**event, "each": each}
            elif kind == "calls" and (found := graphs.get((run, event["graph"]))):
                found["calls"] = event
            elif kind == "running":
                data["running"] = True
            elif kind == "end":
                data["end"] = event
        data["steps"] = list(steps.values())
        made_document = Document(data)
        data["causes"] = causes_of(made_document)
        plain = {"warm_up": "", "cost": "", "follows": []}
        data["advice"] = [plain | row for row in made_document.advice()]
        return made_document

    # advice -------------------------------------------------------------------------------------------------------
    def advice(self) -> Iterable[Data]:
        """Advice, the most important first: dicts with the keys "what", "where" and "do"."""
        if (end := self.data.get("end")) and end["signal"]:
            yield {"what": f"the program was ended by signal {end['signal']} ({end['what']}): the page shows all until then",
                   "where": "", "do": "python -m pycompiler bisect finds the part of the compiler to blame"}  # fmt: skip
        if self.data.get("running"):
            yield {"what": "the program still runs: the page shows all until now", "where": "",
                   "do": "load the page again for later events"}  # fmt: skip
        if not self.frames and not self.data.get("running"):
            yield {"what": "nothing was compiled", "where": "",
                   "do": "call the result of pycompiler.compile; PYCOMPILER_LOGS=dynamo names "
                   "functions that run eagerly"}  # fmt: skip
        for cause in self.data["causes"]:
            yield {"what": cause["what"], "where": cause["where"], "do": cause["do"], "warm_up": cause["warm_up"],
                   "cost": cost_text(cause, self.main_steps), "follows": list(followers(cause))}  # fmt: skip
        seen: set[tuple[str, str]] = set()
        for hint in self.data["hints"]:
            if (hint["operator"], hint["why"]) not in seen:
                seen.add((hint["operator"], hint["why"]))
                yield {"what": f"{hint['operator']} has {hint['why']}: it runs as ATen's kernel, and nothing fuses with it",
                       "where": hint["place"],
                       "do": "nothing if the operator is expensive; else write it with other operators"}  # fmt: skip
        yield from self._costs()

    def _costs(self) -> Iterable[Data]:
        for frame in self.frames:
            ran = [g["calls"] for g in self.graphs_of(frame) if g["calls"] and g["kind"] != "backward"]
            work = sum(sum(calls["least"]) + calls["rest"] / calls["calls"] for calls in ran)
            if (
                frame["entry"]
                and work
                and frame["entry"]["call"] > SLOW_GUARDS * work
                and frame["entry"]["call"] > SMALL
            ):
                check = nanoseconds(frame["entry"]["call"])
                yield {"what": f"the guards of {title(frame['function'])} take {check} of a call, its graphs "
                       f"{nanoseconds(work)}", "where": begins(frame),
                       "do": "see its guards, costliest first; compile a function that reads fewer objects"}  # fmt: skip
        for graph in self.graphs:
            calls = graph["calls"]
            small = [ns for ns in calls["least"] if ns < SMALL] if calls else []
            if len(small) > MANY and len(small) > len(calls["least"]) / 2:
                small_steps = f"{counted(len(small), 'step')} of {name(graph)}"
                yield {"what": f"{small_steps} take less than {nanoseconds(SMALL)} each", "where": "",
                       "do": "larger inputs (a batch) use the machine better; the page lists kernels that were not "
                       "fused, and why"}  # fmt: skip
        whole = self.compiling
        for phase in (p for p in self.data["phases"] if p not in OUTER):
            if (seconds := self.seconds(phase)) > SLOW_PHASE and seconds > whole / 2:
                what, do = PHASES.get(phase, (f"the phase {phase}'s", REPORT_IT))
                yield {"what": f"{seconds:.1f} s of the {whole:.1f} s of compiles are {what}", "where": "", "do": do}

    # rendering ----------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        operators = sum(f["operators"] for f in self.frames)
        lines = [
            f"{counted(len(self.frames), 'frame')}, {counted(len(self.breaks), 'graph break')}, "
            f"{counted(len(self.graphs), 'compiled graph')}, {counted(operators, 'operator')}, "
            f"{counted(len(self.recompiles), 'recompile')}, {self.compiling:.2f} s of compiles",
        ]
        lines += ["", "What to do next:"] if self.data["advice"] else []
        for k, row in enumerate(self.data["advice"], 1):
            lines += [
                f"  {k}. {row['what']}",
                *([f"     at {place(row['where'])}"] if row["where"] else []),
                *([f"        {text}"] if (text := self.line(row["where"])) else []),
                *([f"     {row['cost']}"] if row.get("cost") else []),
                f"     -> {row['do']}",
            ]
        lines = [line for line in lines if line or line is lines[1]]
        if (whole := self.main_steps) is not None:
            lines += ["", shares_text(whole)]
        groups = groups_of(self)[:5]
        lines += ["", "Costliest guards:"] if groups else []
        lines += [
            f"  {nanoseconds(group.nanoseconds):>8} of {nanoseconds(of_whole(self, group))}  {group_text(self, group)}"
            + (f" at {place(group.where)}" if group.where else "")
            for group in groups
        ]
        steps = self.ranked_steps()[:5]
        lines += ["", "Costliest kernels and ATen calls:"] if steps else []
        lines += [f"  {nanoseconds(ns):>8}  {name(graph)}: {step['name']}" for ns, graph, step in steps]
        return "\n".join(lines)


def _steps(event: Data, run: int) -> Data:
    """The steps of a root, with numbers as keys, and the nanoseconds of one step."""
    parts = {part: {int(key): ns for key, ns in event[part].items()} for part in PARTS}
    whole = event["outside"] + sum(sum(found.values()) for found in parts.values())
    for part in ("operators", "functions"):  # parts of "before"
        parts[part] = {int(key): ns for key, ns in event.get(part, {}).items()}
    return {**event, **parts, "run": run, "step": whole / event["steps"] if event["steps"] else 0.0}
