"""Runs rows: in this process, or each in a child of its own.

`run_here(row, who)`: a `Verdict`. `run_apart(keys, who)`: the same in forks, so that a crash or an endless compile
is a verdict, too. Verdicts: "right", "wrong" (a silent difference), "error" (an error that eager does not have),
"crash", "timeout". For pycompiler also the numbers of graphs and breaks: a compiler that returns its argument would
be right everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch

import pycompiler
import tests.reports
from pycompiler import wrapping
from tests.reports.core import REPORTS, Raised, Report, difference, eager, outcome

LIMIT = 300


@dataclasses.dataclass
class Verdict:
    word: str
    text: str = ""
    graphs: int = 0
    calls: int = 0  # operators in them
    compiles: int = 0  # 0: capture left everything to eager
    breaks: list[str] = dataclasses.field(default_factory=list)


def load() -> dict[str, Report]:
    """All rows, by number."""
    for module in pkgutil.iter_modules(tests.reports.__path__):
        if module.name.startswith("programs_"):
            importlib.import_module(f"tests.reports.{module.name}")
    return dict(sorted(REPORTS.items(), key=lambda item: (item[1].number, item[0])))


class Ours:
    """`pycompiler.compile` that records its captures."""

    def __init__(self, row: Report) -> None:
        self.options, self.verdict = row.options, Verdict("right")
        self.uncompiled = False
        self.made: list[Any] = []

    def __call__(self, fn: Any, **options: Any) -> Any:
        compiled = pycompiler.compile(fn, **self.options, **options)
        made = wrapping.compiled_of(compiled)
        if made is None:
            self.uncompiled = True
        else:
            made._pycompiler_family.listener = self.note
            self.made.append(compiled)
        return compiled

    def note(self, record: Any) -> None:
        if record.graph is not None:
            self.verdict.graphs += 1
            self.verdict.calls += record.op_count
        if record.broke is not None:
            self.verdict.breaks.append(record.broke.kind)


@contextlib.contextmanager
def peer_settings(row: Report) -> Iterator[None]:
    modules = {
        "inductor": "torch._inductor.config", "functorch": "torch._functorch.config", "dynamo": "torch._dynamo.config",
    }  # fmt: skip
    kept = []
    for name, value in row.peer_config.items():
        where, _, field = name.partition(".")
        config = importlib.import_module(modules[where])
        kept.append((config, field, getattr(config, field)))
        setattr(config, field, value)
    try:
        yield
    finally:
        for config, field, value in kept:
            setattr(config, field, value)


def run_here(row: Report, who: str) -> Verdict:
    wanted = outcome(row, eager)
    if who == "ours":
        ours = Ours(row)
        verdict, got = ours.verdict, outcome(row, ours)
        verdict.compiles = sum(pycompiler.counters(compiled)["compiles"] for compiled in ours.made)
        if ours.uncompiled:
            return Verdict("error", "compile returned something that is not compiled")
    else:
        verdict = Verdict("right")
        torch._dynamo.reset()
        with peer_settings(row):
            got = outcome(row, lambda fn, **options: torch.compile(fn, **row.options, **options))
    text = difference(got, wanted, row.exact)
    if text is not None:
        verdict.word = "error" if loud(got, wanted) else "wrong"
        verdict.text = text
    return verdict


def loud(got: Any, wanted: Any) -> bool:
    """Whether `got` has an error at a place where eager has none; earlier values do not matter."""
    if isinstance(got, Raised):
        return not isinstance(wanted, Raised)
    if isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        return any(loud(a, b) for a, b in zip(got, wanted, strict=True))
    return False


def run_apart(row: Report, who: str) -> Verdict:
    """Run a row in a fork of this process: torch is imported once."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        status = 1
        try:
            verdict = run_here(row, who)
            os.write(write, json.dumps(dataclasses.asdict(verdict)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Verdict("timeout") if number == signal.SIGALRM else Verdict("crash", signal.Signals(number).name)
    return Verdict(**json.loads(data)) if data else Verdict("crash", "no answer")
