"""`python -m pycompiler bisect script.py`: which part of a compile makes a program fail, crash, hang or compute wrong values.

In: a program that fails by itself (an exception, an assertion, a crash, a hang), or whose values `verify_correctness` finds
wrong.  Out: a text: the layer, the frame, the graph, the decomposition, operator or fusion, by halving, with the program's
lines.  Each run is a child of this process; what may be left out, and is counted, stands in `ir/choices.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from pycompiler import config
from pycompiler.debug.program import Program, at_exits, chosen
from pycompiler.debug.program import add_arguments as add_program
from pycompiler.debug.trial import Outcome, Symptom, in_child, symptom_of
from pycompiler.errors import VerificationError
from pycompiler.ir import choices

LIMIT = 120.0
# The first backend, in this order, that fails → where the fault is, and the levels that are halved, each on its own.
LAYERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "eager": (
        "capture: the captured graph itself, its guards, or the code around it",
        ("background", "frame", "captured graph"),
    ),
    "aot_eager": (
        "autograd: the joint graph, its decompositions, or its partition",
        ("background", "captured graph", "decomposition"),
    ),
    "native": (
        "the compiler of ATen graphs: lowering, fusion, memory, caches or generated code",
        ("background", "cache", "region", "memory", "graph", "operator", "fusion"),
    ),
}
# Where it fails with none of them, and no more when the graph runs as captured in the place of the program's own backend.
OWN_BACKEND = "backend"
LAYERS_OF_OTHERS = {
    OWN_BACKEND: (
        "the program's own backend, or a compiler that it calls",
        ("captured graph", "graph", "operator", "fusion"),
    )
}
# Where what is kept or shared is left out and all is right, nothing else is to blame.
DECISIVE = ("background", "cache", "region", "memory")


@dataclass(frozen=True)
class Found:
    """A choice without which the program is right."""

    level: str
    number: int
    count: int
    what: str


@dataclass
class Report:
    symptom: Symptom | None = None
    layer: str = ""
    found: list[Found] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    runs: int = 0

    def __str__(self) -> str:
        lines = [f"symptom: {self.symptom}"]
        if self.layer:
            lines.append(f"layer: {self.layer}: {(LAYERS | LAYERS_OF_OTHERS)[self.layer][0]}")
        lines += [f"{f.level}: {f.number} of {f.count}: {f.what}" for f in self.found]
        return "\n".join([*lines, *self.remarks, f"({self.runs} runs)"])


class NothingFound(Exception):
    """The program does not fail because of the compiler; the text says what was seen."""


class Bisector:
    """A program (or a script, with its arguments), run again and again with parts of the compiler left out."""

    def __init__(
        self, program: Program | str, arguments: Sequence[str] = (), limit: float = LIMIT, *, quiet: bool = True
    ) -> None:
        self.wrong = program if isinstance(program, Program) else Program(program, [*arguments])
        self.limit, self.quiet = limit, quiet
        self.report = Report()
        self.verify = ""  # which calls of a graph are compared: none, the "first", or "each"
        self.backend = ""
        self.wanted: Symptom | None = None
        self.choices: dict[str, Choices] = {}  # of the last run, by level
        self.whole: dict[str, Choices] = {}  # of a run that left out nothing
        self.input: IO[bytes]  # what runs have read of standard input

    # runs ---------------------------------------------------------------------------------------------------------
    def run(self, bisect: str = "", **knobs: Any) -> Outcome:
        self.report.runs += 1
        more = [f"backend={self.backend}"] * bool(self.backend) + ["verify=each"] * (self.verify == "each")
        text = ",".join([bisect, *more] if bisect else more)
        with tempfile.NamedTemporaryFile(suffix=".log") as log:
            outcome = in_child(
                lambda: self.program({"bisect": text or None, "bisect_log": log.name, **knobs}),
                self.limit, torch.get_num_threads(), quiet=self.quiet,
            )  # fmt: skip
            self.choices = read_choices(Path(log.name).read_text())
        return outcome

    def program(self, knobs: dict[str, Any]) -> list[str] | None:
        """In the child: what goes wrong with the program, None where nothing does."""
        verify = {"verify_correctness": True} if self.verify else {}
        sys.stdin = io.TextIOWrapper(io.BufferedReader(SameInput(self.input)))
        for name, value in {**verify, "raise_internal_errors": True, **knobs}.items():
            config.set_knob(name, value)
            os.environ[config.BY_NAME[name].variables[0]] = str(value)  # for processes that the program starts
        try:
            with at_exits(sys.exit):  # which can be told of
                self.wrong.run()
        except SystemExit as end:
            if end.code in (None, 0):
                return None
            return ["error", "SystemExit", str(end.code)]
        except BaseException as error:
            found = symptom_of(error)
            kind = "values" if isinstance(error, VerificationError) else found.kind
            text = str(error).strip() if kind == "values" else found.text
            return [kind, found.what, text]
        return None

    def fails(self, bisect: str = "", **knobs: Any) -> bool:
        outcome = self.run(bisect, **knobs)
        fails = self.wanted is not None and self.wanted.is_like(outcome.symptom)
        self.say(
            f"{self.backend or 'native'} {bisect} {' '.join(knobs)}: {'fails' if fails else outcome.symptom or 'right'}"
        )
        return fails

    def say(self, text: str) -> None:
        print(f"bisect: run {self.report.runs}: {' '.join(text.split())[:160]}", file=sys.stderr, flush=True)

    # the search -----------------------------------------------------------------------------------------------------
    def search(self) -> Report:
        with tempfile.TemporaryFile() as self.input:
            return self.searched()

    def searched(self) -> Report:
        report = self.report
        self.begin()
        report.symptom = self.wanted
        whole = self.choices
        for layer, (_, levels) in LAYERS.items():
            self.backend = "" if layer == "native" else layer
            if layer == "native" or self.fails():
                report.layer = layer
                break
        self.whole = whole if report.layer == "native" else self.choices
        if report.layer == "eager" and not self.fails(
            "guards<0", recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20
        ):
            report.remarks.append(
                "guards: right when every call is compiled anew: a guard is missing, or holds too often"
            )
            levels = ("frame", "guards")
        if report.layer == "aot_eager" and not self.fails(partition="save_all"):
            report.remarks.append("partition: right with config.partition = 'save_all': the min-cut partition is wrong")
        if report.layer == "native" and self.halve(OWN_BACKEND):
            report.layer, (_, levels) = OWN_BACKEND, LAYERS_OF_OTHERS[OWN_BACKEND]
        for level in levels:
            if self.halve(level) and level in DECISIVE:
                report.remarks.append(f"right where {choices.LEVELS[level]}")
                break
        return report

    def begin(self) -> None:
        """What is wrong with the program, and only when it is compiled."""
        eager = self.run(disable=True).symptom
        if eager is not None:
            raise NothingFound(f"without the compiler too: {eager}")
        self.wanted = self.run().symptom
        for calls in ("first", "each"):
            if self.wanted is None:
                self.verify = calls
                self.wanted = self.run().symptom
        if self.wanted is None:
            raise NothingFound("the program ends well, and each graph gives what eager gives (verify_correctness)")
        self.say(f"the program fails: {self.wanted}")

    def halve(self, level: str) -> bool:
        """Finds the first choice of a level that makes the program fail, where it fails because of one."""
        more = {"recompile_limit": 1 << 20, "accumulated_recompile_limit": 1 << 20} if level == "guards" else {}
        known = self.whole.get(level, {})
        high = count = max(known, default=0)
        if not count:
            return False
        if self.fails(f"{level}<0", **more):
            if level not in DECISIVE:
                self.report.remarks.append(f"{level}: none of {count} alone: it fails without them too")
            return False
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.fails(f"{level}<{middle}", **more):
                high = middle
            else:
                low = middle
        # up to this choice all were made, as in the whole run: its log names it
        self.report.found.append(Found(level, high, count, self.with_places(level, known.get(high, "?"))))
        return True

    def with_places(self, level: str, what: str) -> str:
        """What was fused, or lies in one place, with the lines of the operators."""
        if level not in ("fusion", "memory"):
            return what
        names = what.replace("[", " ").replace("]", " ").split()
        operators = self.whole.get("operator", {}).values()
        known = dict(line.partition(": ")[::2] for lines in operators for line in lines.split(OR))
        return what + "".join(f"\n    {n}: {known[n]}" for n in dict.fromkeys(names) if n in known)


Choices = dict[int, str]  # by number: what it is; several, where processes of the program count by themselves
OR = "; in another process: "


def read_choices(log: str) -> dict[str, Choices]:
    """By level."""
    found: dict[str, Choices] = {}
    for line in log.splitlines():
        level, _, rest = line.partition("\t")
        number, tab, what = rest.partition("\t")
        if not tab:
            continue  # a process was ended while it wrote
        known = found.setdefault(level, {})
        others = known.get(int(number), what).split(OR)
        known[int(number)] = OR.join(dict.fromkeys([*others, what]))
    return found


class SameInput(io.RawIOBase):
    """Standard input of a run: what runs before it have read comes again; what is new is kept for those after it."""

    def __init__(self, kept: IO[bytes]) -> None:
        self.kept, self.at = kept.fileno(), 0

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        part = os.pread(self.kept, len(buffer), self.at)
        if not part:
            part = os.read(0, len(buffer))
            os.pwrite(self.kept, part, self.at)
        self.at += len(part)
        buffer[: len(part)] = part
        return len(part)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a run may take (default: %(default)g)")
    parser.add_argument("--show", action="store_true", help="show what the program prints")
    add_program(parser)


def main(options: argparse.Namespace) -> int:
    """0 where a culprit was found, 1 where there is none to find, 2 where there is no program."""
    program = chosen(options, "bisect")
    if program is None:
        return 2
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run = Bisector(program, limit=options.limit, quiet=not options.show)
    try:
        print(run.search())
    except NothingFound as reason:
        print(f"nothing to bisect: {reason}")
        return 1
    return 0
