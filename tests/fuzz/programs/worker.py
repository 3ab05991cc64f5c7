"""A process of a campaign: it compares programs and prints lines of JSON, so that a crash has a seed."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from seams import first_difference

import pycompiler

from . import operators  # noqa: F401
from .compare import Verdict, compare
from .coverage import aim, watching
from .generate import generate
from .overlaps import ordered
from .program import Program
from .reduce import reduce


class Said(logging.Handler):
    """Counts the compiler's warnings: parts that ran eagerly, and the reasons."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[record.getMessage().split("; ")[0][:110]] += 1


def listen() -> Said:
    """Send the compiler's log to a counter instead of the terminal; silence torch's log."""
    handler = Said()
    logger = logging.getLogger("pycompiler")
    logger.handlers[:], logger.propagate = [handler], False
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("pycompiler."):
            logging.getLogger(name).handlers[:] = []
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    return handler


def prepare() -> Said:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pycompiler.config.raise_internal_errors = True
    pycompiler.config.progress = False
    return listen()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def judge(program: Program, device: str, backend: str) -> Verdict:
    """`compare`; an error of the harness itself is a finding as well."""
    try:
        return compare(program, device, backend)
    except Exception as e:
        return Verdict("differs", "harness", f"{type(e).__name__}: {str(e)[:300]}")


def walk(seeds: range, device: str, backend: str) -> None:
    """Compares the programs of `seeds`."""
    said = prepare()
    for seed in seeds:
        say(start=seed)
        program, dropped = generate(seed, device, aim(seed))
        if not program.results:
            say(seed=seed, kind="dropped", what="returns nothing", dropped=dropped)
            continue
        said.counts.clear()
        with watching() as cells:
            v = judge(program, device, backend)
        say(
            seed=seed,
            kind=v.kind,
            what=v.what,
            detail=v.detail,
            dropped=dropped,
            said=said.counts,
            size=len(program.statements),
            cells=[(*cell, n) for cell, n in cells.items()],
        )
    say(done=True)


def shrink(seed: int, device: str, backend: str, seconds: float) -> None:
    """Reduces the program of `seed` and prints its script."""
    prepare()
    program, _ = generate(seed, device, aim(seed))
    ask = judge_in_child if judge_in_child(program, device, backend).what == "crash" else judge
    first = ask(program, device, backend)
    if first.kind == "differs":
        program = reduce(program, lambda p: not ordered(p, device) and alike(ask(p, device, backend), first), seconds)
    last = ask(program, device, backend)
    where = seam_of(program) if last.kind == "differs" and last.what != "crash" and backend == "native" else ""
    say(script=program.script(device, backend), body=program.body(), detail=f"{last}{where}")


def seam_of(program: Program) -> str:
    """The first compiler stage that differs, on the CPU: `, first at <seam>: ...`."""
    make, fn = program.load("cpu")
    try:
        found = first_difference(fn, make()[1])
    except Exception as e:
        return f", at no seam: {type(e).__name__}: {str(e)[:200]}"
    return f", first at {found}" if found is not None else ", at no seam"


def judge_in_child(program: Program, device: str, backend: str) -> Verdict:
    """`judge`, in a forked process, which may die."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        v = judge(program, device, backend)
        os.write(write, json.dumps([v.kind, v.what, v.detail[:1000]]).encode())
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(read) as file:
        text = file.read()
    return (
        Verdict(*json.loads(text))
        if text
        else Verdict("differs", "crash", f"signal {os.waitstatus_to_exitcode(status)}")
    )


def alike(v: Verdict, first: Verdict) -> bool:
    """Whether a smaller program fails in the same way."""
    if (v.kind, v.what) != (first.kind, first.what):
        return False
    if v.what == "crash":
        return v.detail == first.detail  # the signal
    return v.what != "error" or v.detail.split(" in the ")[0] == first.detail.split(" in the ")[0]


def main(arguments: list[str]) -> None:
    mode, first, last, device, backend = arguments
    if mode == "walk":
        walk(range(int(first), int(last)), device, backend)
    else:
        shrink(int(first), device, backend, float(last))


if __name__ == "__main__":
    main(sys.argv[1:])
