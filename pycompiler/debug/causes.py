"""The causes of graph breaks, recompiles and eager calls, and what follows from each.

In: a document.  Out: `causes_of(document)`, dicts in order of their expected gain: `kind` ("break", "recompile",
"eager"), `what`, `where`, `do` (advice), `follows`, `warm_up`, `cost` (of a step; None if no step was measured),
`seconds` of compiles.

Rules, in this order:
- A break at a line that already has a cause follows from that cause.
- A break that only the end of an earlier graph makes follows from the break that its frame continues.  Examples: an
  iterator in use, a tensor of an earlier graph.  So does a break without a line of the program.
- A recompile of a resume function, or of a function called in a break, for a local value follows from that break,
  unless the value is an argument of the program's function.
- Recompiles for the same value have one cause.  A single recompile because a value was None, empty or static in the
  first call is warm-up.
- Eager calls at the recompile limit follow from the recompiles.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pycompiler.debug import advice
from pycompiler.debug.describe import Data, is_library
from pycompiler.debug.document_queries import DocumentQueries
from pycompiler.debug.number_format import RESUMED, begins, counted, nanoseconds, short, title

LOCAL = re.compile(r"\bL\['(\w+)'\]")
Key = tuple[int, int]  # run and number of a frame
# Kinds of breaks that exist only because an earlier break ended a graph, and a phrase of others' reasons.
FOLLOWING, OUTSIDE = {"running-iterator", "generator-state"}, "outside of the graph"
# Aspect -> why one recompile for it is warm-up.
WARM_UP = {
    "none": "it was None in the first call",
    "keys": "it had other keys in the first call",
    "length": "it had another length in the first call",
    "attribute": "the attribute did not exist in the first call",
    "cell": "it was unbound in the first call",
    "sizes": "it changed for the first time, and one compile covers later sizes",
    "number": "it changed for the first time, and one compile covers later values",
}


@dataclass
class Cause:
    kind: str
    what: str
    where: str
    order: int
    do: str = ""
    keeps: str = ""  # part of a broken statement that the advice keeps in the graph (`advice.kept`)
    function: str = ""
    reasons: list[str] = field(default_factory=list)  # of breaks at the cause's own line
    frames: list[Key] = field(default_factory=list)  # frames that end at this break, or at one that follows from it
    follows: list[Data] = field(default_factory=list)
    times: int = 1  # recompiles
    seconds: float = 0.0
    aspects: tuple[str, ...] = ()
    warm_up: str = ""
    limit: bool = False
    cost: Data | None = None

    @property
    def gain(self) -> float:
        """Nanoseconds of a step that the program would gain."""
        return sum(self.cost.values()) if self.cost else 0.0

    def data(self) -> Data:
        return {
            "kind": self.kind, "what": self.headline, "where": self.where, "do": self.do, "follows": self.follows,
            "warm_up": self.warm_up, "seconds": self.seconds, "cost": self.cost, "gain": self.gain,
            "times": self.times,
        }  # fmt: skip

    @property
    def headline(self) -> str:
        kinds = {"break": "further graph break", "recompile": "recompile", "eager": "function run eagerly"}
        told = [(kinds[kind], sum(row["times"] for row in self.follows if row["kind"] == kind)) for kind in kinds]
        parts = [f"{n} {what if n == 1 else _plural(what)}" for what, n in told if n]
        single = sum(n for _, n in told) == 1
        return self.what + (f"; {' and '.join(parts)} follow{'s' if single else ''} from it" if parts else "")

    def followed_by(self, kind: str, what: str, where: str) -> None:
        same = next(
            (row for row in self.follows if (row["kind"], row["what"], row["where"]) == (kind, what, where)), None
        )
        if same is not None:
            same["times"] += 1
        else:
            self.follows.append({"kind": kind, "what": what, "where": where, "times": 1})


def _plural(what: str) -> str:
    return what.replace("function", "functions") if what.startswith("function") else f"{what}s"


def own_line(stack: list[Data]) -> Data | None:
    """The innermost line of the program in a stack."""
    return next((f for f in reversed(stack) if not is_library(f["file"])), None)


def base_name(function: str) -> str:
    """The last part of the name of a function; for a resume function that of its function."""
    return title(function).partition(" (from line")[0].rpartition(".")[2]


class CauseGraph:
    """The causes of a document, by key."""

    def __init__(self, document: DocumentQueries) -> None:
        self.document = document
        self.frames: dict[Key, Data] = {(f["run"], f["number"]): f for f in document.frames}
        self.parents: dict[Key, Key] = {}  # frame -> the frame whose break it continues, or in whose break it is called
        self.by_break: dict[Key, Cause] = {}
        self.by_line: dict[tuple[str, int | None], Cause] = {}
        self.by_value: dict[tuple[str, ...], Cause] = {}
        self.causes: list[Cause] = []
        for key, frame in self.frames.items():
            self.link(key, frame)
            if frame["break"]:
                self.add_break(key, frame)
        for row in document.recompiles:
            self.add_recompile(row)
        for row in document.data["eager"]:
            self.add_eager(row)
        self.finish()

    def new(self, kind: str, what: str, where: str, function: str) -> Cause:
        made = Cause(kind, what, where, len(self.causes), function=function)
        self.causes.append(made)
        return made

    # breaks -------------------------------------------------------------------------------------------------------
    def link(self, key: Key, frame: Data) -> None:
        resumed = RESUMED.search(frame["function"])
        if resumed is None and not frame.get("hooked"):
            return
        name, line = base_name(frame["function"]), int(resumed[2]) if resumed else None
        best: tuple[int, Key] | None = None
        for other in reversed([k for k in self.by_break if k[0] == key[0]]):
            stack = self.frames[other]["break"]["stack"]
            named = any(f["function"].rpartition(".")[2] == name for f in stack)
            exact = any(f["file"] == frame["file"] and f["line"] == line for f in stack)
            own = base_name(self.frames[other]["function"]) == name and self.frames[other]["file"] == frame["file"]
            rank = 3 * exact + 2 * own + named
            if best is None or rank > best[0]:
                best = rank, other
        if best is not None:
            self.parents[key] = best[1]

    def add_break(self, key: Key, frame: Data) -> None:
        broke = frame["break"]
        line = own_line(broke["stack"])
        parent = self.by_break.get(self.parents.get(key, (-1, -1)))
        told = f"graph break [{broke['kind']}]: {broke['reason']}"
        last = broke["stack"][-1] if broke["stack"] else {"file": frame["file"], "line": frame["line"]}
        at = line or last
        place = f"{at['file']}:{at['line']}"
        if line is not None and (known := self.by_line.get((line["file"], line["line"]))) is not None:
            if broke["reason"] not in known.reasons:
                known.reasons.append(broke["reason"])
            known.followed_by("break", told, place)
        elif parent is not None and (line is None or broke["kind"] in FOLLOWING or OUTSIDE in broke["reason"]):
            known = parent
            known.followed_by("break", told, place)
        else:
            known = self.new("break", told, place, frame["function"])
            known.reasons = [broke["reason"]]
            known.aspects = (broke["kind"], broke["hint"])
            self.by_line[at["file"], at["line"]] = known
        known.frames.append(key)
        self.by_break[key] = known

    # recompiles ---------------------------------------------------------------------------------------------------
    def frame_of(self, row: Data) -> tuple[Key | None, Data | None]:
        """The frame that a recompile led to."""
        for key, frame in self.frames.items():
            if key[0] == row["run"] and row.get("id") and frame.get("id") == row["id"]:
                return key, frame
        return None, None

    def add_recompile(self, row: Data) -> None:
        key, frame = self.frame_of(row)
        seconds = frame["seconds"] + self.document.data["backward_seconds"].get(row["id"], 0.0) if frame else 0.0
        found = row.get("differences") or []
        difference = found[0] if found else None
        source, file = (difference["source"], row["file"]) if difference else ("", row["file"])
        name = base_name(row["function"])
        shared = ("G[" in source) or (difference is not None and difference["kind"] == "global_state")
        value = (file, source) if shared else (file, name, source)
        known = self.by_value.get(value) if difference else None
        parent = self.by_break.get(self.parents.get(key, (-1, -1))) if key else None
        if known is not None:
            known.times += 1
            known.aspects = tuple(dict.fromkeys((*known.aspects, *(difference["aspects"] if difference else ()))))
        elif parent is not None and difference is not None and not shared and not self.is_argument(frame, source):
            what = f"{title(row['function'])} was compiled again: {self.differs(difference)}"
            parent.followed_by("recompile", what, begins(row))
            parent.seconds += seconds
            return
        else:
            reason = (
                self.differs(difference) if difference else (row["reasons"] or ["unknown"])[0].partition("way out:")[0]
            )
            line = own_line(difference["stack"]) if difference else None
            where = f"{line['file']}:{line['line']}" if line else begins(row)
            known = self.new("recompile", f"{title(row['function'])} was compiled again: {reason.strip()}", where, name)
            known.aspects = tuple(difference["aspects"]) if difference else ()
            known.reasons = [advice.in_words(source)] if difference else []
            if not difference:
                known.do = (row["reasons"] or [""])[0].partition("way out:")[2].strip()
            self.by_value[value if difference else (file, name, str(len(self.by_value)))] = known
        known.seconds += seconds

    def is_argument(self, frame: Data | None, source: str) -> bool:
        """Whether the value of a resume function is an argument of the program's function: it exists without the break."""
        if frame is None or not RESUMED.search(frame["function"]):
            return False
        name, found = base_name(frame["function"]), LOCAL.search(source)
        made = (f for other in self.document.frames for f in (other, *other["inlined"]))
        functions = (f for f in made if f["file"] == frame["file"] and f["function"].rpartition(".")[2] == name)
        return found is not None and any(found[1] in f.get("parameters", ()) for f in functions)

    def differs(self, difference: Data) -> str:
        if difference["kind"] == "global_state":
            return str(difference["seen"])
        expected = difference["text"] if difference["kind"] != "tensor" else difference["source"]
        return f"{short(advice.in_words(expected), 120)}: seen {short(difference['seen'], 200)}"

    # eager calls --------------------------------------------------------------------------------------------------
    def add_eager(self, row: Data) -> None:
        name, at = base_name(row["function"]), begins(row)
        told = f"{title(row['function'])} runs eagerly: {short(row['reason'], 200)}"
        if row["kind"] == "limit":
            found = [c for c in self.causes if c.kind == "recompile" and c.function == name]
            known = max(found, key=lambda c: c.times, default=None)
            known = known or next((c for c in self.causes if any(r["kind"] == "recompile" for r in c.follows)), None)
            if known is not None:
                known.limit = True
                known.followed_by("eager", f"{title(row['function'])} runs eagerly: its recompile limit is reached", at)
                return
        made = self.new("eager", told, at, name)
        made.do = advice.of_eager(row["kind"], _short_place(at))

    # costs and advice ---------------------------------------------------------------------------------------------
    def finish(self) -> None:
        steps = self.document.main_steps
        for cause in self.causes:
            place = _short_place(cause.where)
            if cause.kind == "break":
                kind, hint = cause.aspects
                text = self.document.line(cause.where)
                cause.do = advice.of_break(kind, cause.reasons, text, hint, place)
                cause.keeps = advice.kept(kind, cause.reasons)
                line = cause.where.rpartition(":")[2]
                cause.what = f"line {line}: {cause.what}"
                if not advice.PRINTS.search(cause.reasons[0]) and any(map(advice.PRINTS.search, cause.reasons)):
                    cause.what += ", for a print"
            elif cause.kind == "recompile":
                cause.do = cause.do or advice.of_recompile(cause.aspects, (cause.reasons or ["the value"])[0], place)
                cause.warm_up = self.warm_up(cause)
                if cause.warm_up:
                    cause.do = f"Nothing: this is warm-up ({cause.warm_up}); no later call compiled again."
                elif cause.times > 1:
                    cause.what = cause.what.replace("was compiled again", f"was compiled again {cause.times} times", 1)
            if steps is not None:
                cause.cost = self.cost(cause, steps)

    def warm_up(self, cause: Cause) -> str:
        whys = [WARM_UP.get(aspect, "") for aspect in cause.aspects]
        return whys[0] if cause.times == 1 and not cause.limit and whys and all(whys) else ""

    def cost(self, cause: Cause, steps: Data) -> Data:
        """Nanoseconds of a step: measured, except for `fusion`, an estimate.

        Operators and custom operators of an eager stretch are no part of the cost if a graph runs them once the advice is
        followed.
        """
        n, run = steps["steps"], steps["run"]
        found = {"eager": 0.0, "guards": 0.0, "dispatch": 0.0, "fusion": 0.0, "compiles": self.compiles(cause, steps)}
        for key in self.frames:
            parent = self.parents.get(key)
            ends = parent is None and key in cause.frames  # the stretch up to the end of the root
            if key[0] != run or not (ends or parent in cause.frames):
                continue
            found["eager"] += steps["before"].get(key[1], 0.0) / n
            if ends or cause.keeps == "operators":
                found["eager"] -= steps["operators"].get(key[1], 0.0) / n
            elif cause.keeps == "functions":
                found["eager"] -= steps["functions"].get(key[1], 0.0) / n
            if not ends:
                found["guards"] += steps["guards"].get(key[1], 0.0) / n
                graphs = [g for g in self.document.graphs_of(self.frames[key]) if g["kind"] != "backward"]
                found["dispatch"] += sum(steps["dispatch"].get(g["number"], 0.0) for g in graphs) / n
                if steps["before"].get(key[1]):
                    found["fusion"] += self.fusion(cause, key, steps)
        return found

    def compiles(self, cause: Cause, steps: Data) -> float:
        """Nanoseconds of a step for compiles: seconds of the recompiles over all calls.  One recompile is left if sizes
        differ: a program without dynamic=False compiles once more, with symbolic sizes."""
        left = 1 if cause.times > 1 and set(cause.aspects) == {"sizes"} else 0
        return cause.seconds * (cause.times - left) / cause.times * 1e9 / float(steps["calls"])

    def fusion(self, cause: Cause, after: Key, steps: Data) -> float:
        """An estimate of what fusion across a break would save: the cheaper of the two kernels beside it.

        No kernel is saved if the advice keeps the value or the operator at the break, since later kernels wait for it.
        """
        before = self.parents.get(after)
        while before is not None and not self.graphs_of(before):
            before = self.parents.get(before)
        if before is None or cause.keeps:
            return 0.0
        return min(self.kernel(before, -1, steps), self.kernel(after, 0, steps))

    def kernel(self, key: Key, at: int, steps: Data) -> float:
        """Nanoseconds of the first (at = 0) or last (at = -1) step of a frame's graphs, and of its buffers; 0 if that
        step is no kernel.  The time is the step's share of the median time of its graph."""
        timed = [(g, s, ns) for g in self.graphs_of(key)
                 for s, ns in zip(g["steps"], g["calls"]["least"], strict=False)]  # fmt: skip
        if not timed or timed[at][1]["kind"] != "kernel":
            return 0.0
        graph, _, ns = timed[at]
        whole, least = steps["graph"].get(graph["number"], 0.0) / steps["steps"], sum(graph["calls"]["least"])
        return float(ns * max(1.0, whole / least)) if least else 0.0

    def graphs_of(self, key: Key) -> list[Data]:
        """The graphs of a frame that ran, without backward graphs."""
        return [g for g in self.document.graphs_of(self.frames[key]) if g["kind"] != "backward" and g["calls"]]


def _short_place(where: str) -> str:
    file, _, line = where.rpartition(":")
    return f"{os.path.basename(file)}:{line}"


def causes_of(document: DocumentQueries) -> list[Data]:
    made = CauseGraph(document).causes
    ranked = sorted(made, key=lambda c: (bool(c.warm_up), -c.gain, c.order))
    return [cause.data() for cause in ranked]


def cost_text(cause: Data, steps: Data | None) -> str:
    """What a cause costs, in one line; empty if nothing was measured."""
    cost, parts = cause["cost"], []
    if cost and steps:
        names = {"eager": "eager code", "guards": "guards", "dispatch": "dispatch"}
        parts = [f"{what} {nanoseconds(cost[key])}" for key, what in names.items() if cost[key]]
        measured = sum(cost[key] for key in names)
        texts = (
            [f"costs {nanoseconds(measured)} of {nanoseconds(steps['step'])} a step: {', '.join(parts)}"]
            if parts
            else []
        )
        if cost["fusion"]:
            texts.append(f"about {nanoseconds(cost['fusion'])} more by fusion across it (an estimate)")
    else:
        texts = []
    if cause["seconds"]:
        texts.append(f"{cause['seconds']:.2f} s of compiles")
    return "; ".join(texts)


def summary(document: DocumentQueries) -> str:
    """`3 breaks and 8 recompiles cost about 41 ms of 96 ms a step`; empty if there are none.

    Recompiles that are warm-up stand apart, since they cost no later step.
    """
    causes = document.data["causes"]
    warm_ups = [cause for cause in causes if cause["warm_up"]]
    breaks, recompiles = len(document.breaks), len(document.recompiles) - len(warm_ups)
    limits = sum(row["kind"] == "limit" for row in document.data["eager"])
    told = [counted(n, what) for n, what in ((breaks, "break"), (recompiles, "recompile")) if n]
    if limits:
        told.append(f"{counted(limits, 'function')} at the recompile limit")
    text = ", ".join(told[:-1]) + (" and " if told[1:] else "") + told[-1] if told else ""
    if text and (steps := document.main_steps) is not None:
        faults = [cause for cause in causes if cause["cost"] and not cause["warm_up"]]
        compiles = sum(cause["cost"]["compiles"] for cause in faults)
        costs = sum(cause["gain"] for cause in faults)
        verb = "costs" if breaks + recompiles + limits == 1 else "cost"
        text += f" {verb} about {nanoseconds(costs)} of {nanoseconds(steps['step'] + compiles)} a step"
    if warm_ups:
        seconds = sum(cause["seconds"] for cause in warm_ups)
        text += f"{'; ' if text else ''}{counted(len(warm_ups), 'warm-up recompile')} took {seconds:.2f} s"
    return text


def followers(cause: Data) -> Iterator[str]:
    for row in cause["follows"]:
        times = f" ({row['times']} times)" if row["times"] > 1 else ""
        yield f"{row['what']}{times} at {_short_place(row['where'])}"
