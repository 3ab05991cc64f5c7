"""Shared driver of the fuzzers of Python programs: programs by seed run in forks of one warm process.

In: a `Subject` (its programs by seed, the check and the reduction of one) and the command's arguments. Out:
failures as they occur, progress every ten seconds, and a summary at the end, after `--seconds`, or on a signal to
end. Then failing programs are reduced, and each is printed with its seed. A fork reports its seed before the run,
so that a crash or a hang has one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import selectors
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

PATIENCE = 60.0
"""Seconds without a new seed after which a process counts as hanging."""
WORDY = 600
"""Characters printed of a difference."""
BROKEN = 100
SAME = "the same"
UNSETTLED = "eager does not repeat its own result"
"""The reason that ends the comparison of a program whose two eager runs differ."""
LIMITS = {UNSETTLED: 0.005}
"""By reason: the largest share of programs that a run may compare only up to a point."""


class Subject(Protocol):
    """A fuzzer of programs that are source text. A fuzzer that ends comparisons early also has `ended_by`, the reasons
    of the last program, and `too_many(counts, programs)`, the lines that fail a run."""

    def text(self, seed: int) -> str:
        """The program of a seed."""

    def difference(self, text: str, backend: str) -> str | None:
        """The failure of a program, or None."""

    def kind(self, found: str) -> str:
        """The kind of a failure that `difference` describes; a reduced program keeps it."""

    def reduced(self, seed: int | None, text: str, fails: Callable[[str], bool]) -> str:
        """The program (of a seed), reduced as long as it `fails`."""


def too_many(ended_by: Mapping[str, int], programs: int, limits: Mapping[str, float] = LIMITS) -> list[str]:
    """A line for each reason that has ended more programs than its limit allows (one program is always allowed)."""
    return [
        f"{count} of {programs} programs ended early, at most {limits[reason]:.1%} may: {reason}"
        for reason, count in sorted(ended_by.items())
        if count > max(1, limits[reason] * programs)
    ]


def prepare(subject: Subject) -> None:
    """Use one thread and no warnings, raise errors of the compiler, and import the modules that programs import."""
    import torch

    from pycompiler import config

    torch.set_num_threads(1)
    config.raise_internal_errors = True
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    subject.difference(subject.text(3), "eager")
    settle()


def begin() -> None:
    """First call in a fork, while it has one thread. Torch renews its thread pool at the first query; the autograd
    thread could read the pool during the renewal, which ends the process."""
    import torch

    torch.set_num_threads(1)


def settle() -> None:
    """Exclude all existing objects from garbage collection: scanning all of torch takes longer than most programs."""
    gc.collect()
    gc.freeze()


def backend_of(seed: int, chosen: str) -> str:
    """By default one of twenty programs runs on `native`, and another one `apart`."""
    return chosen if chosen != "mixed" else {19: "native", 9: "apart"}.get(seed % 20, "eager")


def compiled(fn: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The function on a backend; `apart`: it runs uncompiled, and each callee is compiled by itself, with arguments
    that all exist before."""
    import pycompiler

    made: Callable[..., Any]
    if backend == "apart":
        made = pycompiler.compile(pycompiler.disable(fn, recursive=False), backend="eager")
    else:
        made = pycompiler.compile(fn, backend=backend)
    return made


def outcome(subject: Subject, text: str, backend: str, patience: int = 20) -> str | None:
    """The failure of a program in a fork: its kind or a signal; None if there is none, or the program cannot run."""
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(patience)
        code = BROKEN
        with contextlib.suppress(BaseException):
            begin()
            found = subject.difference(text, backend)
            os.write(writes, (SAME if found is None else subject.kind(found)).encode()[:4000])
            code = 0
        os._exit(code)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        said = file.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return f"signal {-code}" if code < 0 else None if said in ("", SAME) else said


def is_made(subject: Subject, seed: int) -> bool:
    """Whether the program of a seed can be generated, tried in a fork: generation runs statements, and some statements
    crash torch."""
    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            begin()
            subject.text(seed)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def cut_down(subject: Subject, seed: int | None, text: str, backend: str) -> str:
    """The reduced form of a failing program."""
    kind = outcome(subject, text, backend)
    if kind is None:
        return text + "# it does not fail alone\n"
    return subject.reduced(seed, text, lambda candidate: outcome(subject, candidate, backend, 10) == kind)


class Worker:
    """A fork that runs every `step`-th seed and writes `seed N` before, `ok` or `FAIL what` after each."""

    def __init__(self, subject: Subject, seeds: range, backend: str) -> None:
        self.subject, self.seeds, self.backend = subject, seeds, backend
        self.running: int | None = None
        self.seen = time.monotonic()
        self.rest = b""
        self.ended_by: Counter[str] = Counter()
        self.output, writes = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            self._work(writes)
        os.close(writes)

    def _work(self, writes: int) -> NoReturn:
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            begin()
            for position, seed in enumerate(self.seeds):
                os.write(writes, b"seed %d\n" % seed)
                found = self.subject.difference(self.subject.text(seed), backend_of(seed, self.backend))
                ended = "|".join(sorted(getattr(self.subject, "ended_by", ()))).replace(" ", "_")
                os.write(writes, f"ok {ended}\n".encode() if found is None else f"FAIL {found[:4000]!r}\n".encode())
                if position % 50 == 49:
                    settle()
            code = 0
        finally:
            os._exit(code)

    def read(self) -> tuple[list[tuple[int, str | None]], bool]:
        """(seed, difference or None) of the programs that ended since the last call, and whether the process has
        ended."""
        data = os.read(self.output, 1 << 16)
        self.seen = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        ended: list[tuple[int, str | None]] = []
        for text in lines:
            word, _, what = text.decode().partition(" ")
            if word == "seed":
                self.running = int(what)
            elif self.running is not None:
                if word == "ok" and what:
                    self.ended_by.update(reason.replace("_", " ") for reason in what.split("|"))
                ended.append((self.running, what if word == "FAIL" else None))
                self.running = None
        return ended, not data

    def end(self) -> int:
        """Kill the process if it still runs; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        os.close(self.output)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def after(self) -> range:
        """The seeds after the running one."""
        return self.seeds if self.running is None else self.seeds[self.seeds.index(self.running) + 1 :]


class Campaign:
    """All workers of one run and their findings."""

    def __init__(self, subject: Subject, arguments: argparse.Namespace) -> None:
        self.subject, self.arguments = subject, arguments
        self.begin = time.monotonic()
        self.done = 0
        self.failures: list[tuple[int, str]] = []
        self.ended_by: Counter[str] = Counter()
        self.selector = selectors.DefaultSelector()

    def start(self, seeds: range) -> None:
        if seeds:
            worker = Worker(self.subject, seeds, self.arguments.backend)
            self.selector.register(worker.output, selectors.EVENT_READ, worker)

    def workers(self) -> list[Worker]:
        return [key.data for key in self.selector.get_map().values()]

    def note(self, seed: int, what: str | None) -> None:
        self.done += 1
        if what is not None:
            self.failures.append((seed, what))
            print(f"# seed {seed}, backend {backend_of(seed, self.arguments.backend)}: {what[:WORDY]}", flush=True)

    def lose(self, worker: Worker, what: str | None) -> None:
        """Handle a worker that has ended or hangs: its program failed, and another worker continues after it."""
        self.selector.unregister(worker.output)
        status = worker.end()
        if worker.running is not None:
            if what is None and not is_made(self.subject, worker.running):
                print(f"# seed {worker.running}: eager itself ends the process with {status}", flush=True)
                self.note(worker.running, None)
            else:
                self.note(worker.running, what or f"the process ended with {status}")
            self.start(worker.after())

    def run(self) -> None:
        a = self.arguments
        until, told = self.begin + a.seconds, self.begin
        jobs = min(a.jobs, a.count)
        for job in range(jobs):
            self.start(range(a.seed + job, a.seed + a.count, jobs))
        while self.selector.get_map() and time.monotonic() < until:
            for key, _ in self.selector.select(min(1.0, max(0.0, until - time.monotonic()))):
                ended, gone = key.data.read()
                for seed, what in ended:
                    self.note(seed, what)
                self.ended_by += key.data.ended_by
                key.data.ended_by.clear()
                if gone:
                    self.lose(key.data, None)
            for worker in self.workers():
                if time.monotonic() - worker.seen > PATIENCE:
                    self.lose(worker, "hangs")
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(self.summary(), flush=True)

    def stop(self) -> None:
        for worker in self.workers():
            self.selector.unregister(worker.output)
            worker.end()

    def summary(self) -> str:
        spent = time.monotonic() - self.begin
        version = ".".join(map(str, sys.version_info[:3]))
        return f"Python {version}: {self.done} programs, {len(self.failures)} failures, {spent:.0f} s"


def run(subject: Subject, arguments: argparse.Namespace) -> int:
    """Run the parent process: the exit status is 1 if anything failed."""
    campaign = Campaign(subject, arguments)
    print(f"{arguments.count} programs from seed {arguments.seed} on, {arguments.jobs} processes", flush=True)

    def told_to_end(*_: object) -> None:
        arguments.reduce = False
        raise SystemExit

    signal.signal(signal.SIGTERM, told_to_end)
    try:
        prepare(subject)
        campaign.run()
    except (KeyboardInterrupt, SystemExit):
        arguments.reduce = False
    finally:
        campaign.stop()
        campaign.failures.sort()
        print(f"{campaign.summary()}; failing seeds {[f[0] for f in campaign.failures]}", flush=True)
    for seed, what in campaign.failures if arguments.reduce else ():
        backend = backend_of(seed, arguments.backend)
        text = cut_down(subject, seed, subject.text(seed), backend)
        print(f"\n# seed {seed}, backend {backend}: {what[:WORDY]}\n{text}", flush=True)
    for reason, count in campaign.ended_by.most_common():
        print(f"# {count} programs were compared up to a point: {reason}", flush=True)
    excess = subject.too_many(campaign.ended_by, campaign.done) if hasattr(subject, "too_many") else []
    print("".join(f"# {line}\n" for line in excess), end="", flush=True)
    return int(bool(campaign.failures or excess))


def options(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of these fuzzers."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # programs run in forked processes, in which CUDA cannot be initialised
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit in seconds")
    parser.add_argument(
        "--backend",
        default="mixed",
        help="eager, aot_eager, native; apart: each function compiled separately; mixed: every twentieth program native, another apart",
    )
    parser.add_argument("--no-reduce", dest="reduce", action="store_false", help="do not reduce failing programs")
    parser.add_argument("--show", action="store_true", help="print the program of --seed")
    parser.add_argument("--file", help="run the program of this file")
    return parser


def command(subject: Subject, arguments: argparse.Namespace) -> int:
    """Run the command."""
    if arguments.show:
        print(subject.text(arguments.seed))
        return 0
    if arguments.file:
        prepare(subject)
        found = subject.difference(Path(arguments.file).read_text(), backend_of(0, arguments.backend))
        print(found or "")
        return int(found is not None)
    return run(subject, arguments)
