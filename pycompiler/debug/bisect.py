"""`python -m pycompiler bisect script.py`: the part of a compile that makes a program fail, crash, hang or compute
wrong values.

In: a program that fails by itself (an exception, an assertion, a crash, a hang), or whose values `verify_correctness`
reports as wrong.  Out: a text: the layer, the frame, the graph, the decomposition, operator or fusion, found by
halving, with the program's lines.  Each run is a child of this process.  `ir/choices.py` lists the optional steps that
can be left out.
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
from pycompiler.debug.program import UserProgram, at_exits, chosen
from pycompiler.debug.program import add_arguments as add_program
from pycompiler.debug.trial import Outcome, Symptom, in_child, symptom_of
from pycompiler.errors import VerificationError
from pycompiler.ir import choices

LIMIT = 120.0
# The first failing backend, in this order → the part at fault, and the levels to halve, each separately.
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
# The last suspect: no backend above fails, and the program works if its graphs run as captured, not by its own backend.
OWN_BACKEND = "backend"
LAYERS_OF_OTHERS = {
    OWN_BACKEND: (
        "the program's own backend, or a compiler that it calls",
        ("captured graph", "graph", "operator", "fusion"),
    )
}
# If the program works without one of these levels, no other level is at fault.
DECISIVE = ("background", "cache", "region", "memory")


@dataclass(frozen=True)
class Culprit:
    """A step without which the program works."""

    level: str
    number: int
    count: int
    what: str


@dataclass
class Report:
    symptom: Symptom | None = None
    layer: str = ""
    found: list[Culprit] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    runs: int = 0

    def __str__(self) -> str:
        lines = [f"symptom: {self.symptom}"]
        if self.layer:
            lines.append(f"layer: {self.layer}: {(LAYERS | LAYERS_OF_OTHERS)[self.layer][0]}")
        lines += [f"{f.level}: {f.number} of {f.count}: {f.what}" for f in self.found]
        return "\n".join([*lines, *self.remarks, f"({self.runs} runs)"])


class NothingFound(Exception):
    """The program does not fail because of the compiler; the text reports the observation."""


class Bisector:
    """A program (or a script with its arguments), run repeatedly with parts of the compiler left out."""

    def __init__(
        self, program: UserProgram | str, arguments: Sequence[str] = (), limit: float = LIMIT, *, quiet: bool = True
    ) -> None:
        self.wrong = program if isinstance(program, UserProgram) else UserProgram(program, [*arguments])
        self.limit, self.quiet = limit, quiet
        self.report = Report()
        self.verify = ""  # calls of a graph that are compared: none, the "first", or "each"
        self.backend = ""
        self.wanted: Symptom | None = None
        self.choices: dict[str, Choices] = {}  # of the last run, by level
        self.whole: dict[str, Choices] = {}  # of a run that left out nothing
        self.input: IO[bytes]  # standard input read by earlier runs

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
        """Runs in the child: the program's symptom, or None."""
        verify = {"verify_correctness": True} if self.verify else {}
        sys.stdin = io.TextIOWrapper(io.BufferedReader(SameInput(self.input)))
        for name, value in {**verify, "raise_internal_errors": True, **knobs}.items():
            config.set_knob(name, value)
            os.environ[config.BY_NAME[name].variables[0]] = str(value)  # for child processes of the program
        try:
            with at_exits(sys.exit):  # an exit that can be reported
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
                "guards: the program is right when every call is compiled again: a guard is missing, or holds too often"
            )
            levels = ("frame", "guards")
        if report.layer == "aot_eager" and not self.fails(partition="save_all"):
            report.remarks.append(
                "partition: the program is right with config.partition = 'save_all': the min-cut partition is wrong"
            )
        if report.layer == "native" and self.halve(OWN_BACKEND):
            report.layer, (_, levels) = OWN_BACKEND, LAYERS_OF_OTHERS[OWN_BACKEND]
        for level in levels:
            if self.halve(level) and level in DECISIVE:
                report.remarks.append(f"the program is right when {choices.LEVELS[level]}")
                break
        return report

    def begin(self) -> None:
        """Find the symptom of the compiled program; raises NothingFound if the program fails without the compiler too."""
        eager = self.run(disable=True).symptom
        if eager is not None:
            raise NothingFound(f"the program also fails without the compiler: {eager}")
        self.wanted = self.run().symptom
        for calls in ("first", "each"):
            if self.wanted is None:
                self.verify = calls
                self.wanted = self.run().symptom
        if self.wanted is None:
            raise NothingFound("the program does not fail, and each graph gives eager's values (verify_correctness)")
        self.say(f"the program fails: {self.wanted}")

    def halve(self, level: str) -> bool:
        """Find the first step of a level that makes the program fail, if the failure depends on this level."""
        more = {"recompile_limit": 1 << 20, "accumulated_recompile_limit": 1 << 20} if level == "guards" else {}
        known = self.whole.get(level, {})
        high = count = max(known, default=0)
        if not count:
            return False
        if self.fails(f"{level}<0", **more):
            if level not in DECISIVE:
                self.report.remarks.append(f"{level}: none of {count}: the program also fails without them")
            return False
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.fails(f"{level}<{middle}", **more):
                high = middle
            else:
                low = middle
        # all steps up to this one were done, as in the whole run, so its log names the step
        self.report.found.append(Culprit(level, high, count, self.with_places(level, known.get(high, "?"))))
        return True

    def with_places(self, level: str, what: str) -> str:
        """A fused pair, or buffers with shared memory, with the lines of the operators."""
        if level not in ("fusion", "memory"):
            return what
        names = what.replace("[", " ").replace("]", " ").split()
        operators = self.whole.get("operator", {}).values()
        known = dict(line.partition(": ")[::2] for lines in operators for line in lines.split(OR))
        return what + "".join(f"\n    {n}: {known[n]}" for n in dict.fromkeys(names) if n in known)


Choices = dict[int, str]  # number -> name; several names, if processes of the program count separately
OR = "; in another process: "


def read_choices(log: str) -> dict[str, Choices]:
    """The steps of a log, by level."""
    found: dict[str, Choices] = {}
    for line in log.splitlines():
        level, _, rest = line.partition("\t")
        number, tab, what = rest.partition("\t")
        if not tab:
            continue  # a process ended while it wrote
        known = found.setdefault(level, {})
        others = known.get(int(number), what).split(OR)
        known[int(number)] = OR.join(dict.fromkeys([*others, what]))
    return found


class SameInput(io.RawIOBase):
    """Standard input of a run: repeats all input that earlier runs have read, and stores new input for later runs."""

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
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="time limit of a run in seconds (default: %(default)g)"
    )
    parser.add_argument("--show", action="store_true", help="show the output of the program")
    add_program(parser)


def main(options: argparse.Namespace) -> int:
    """Exit status: 0 if a culprit was found, 1 if there is none, 2 without a program."""
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
