"""The break fuzzer: `python -m tests.fuzz.breaks --count 1000 --seed 0 --jobs 1 --seconds 600` (from the root).

Programs run in forks of one process that has imported and warmed up everything; each names its seed before it runs it,
so that a crash or a hang has a seed too. Failures are printed as they come, progress every ten seconds, and a summary
at the end, at `--seconds`, or when the process is told to end; then failing programs are cut down, each printed with
its seed. Exit status 1 if there were any.
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
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

PATIENCE = 60.0
"""Seconds without a new seed after which a process counts as hanging."""
WORDY = 600
"""Characters printed of what differs."""


def prepare() -> None:
    """One thread, no warnings; errors inside of the compiler are raised; what one program imports is imported."""
    import torch

    from fuzz.break_check import difference
    from fuzz.break_programs import generate, source
    from pycompiler import config

    torch.set_num_threads(1)
    config.raise_internal_errors = True
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    difference(source(generate(3)))
    settle()


def settle() -> None:
    """From here on the collector looks only at what comes: all of torch would take it longer than most programs take."""
    gc.collect()
    gc.freeze()


def backend_of(seed: int, chosen: str) -> str:
    """By default every twentieth program runs on `native`."""
    return chosen if chosen != "mixed" else "native" if seed % 20 == 19 else "eager"


def outcome(text: str, backend: str, patience: int = 20) -> str | None:
    """What is wrong with a program, found out in a fork: its kind ("log", "result", a signal ...), or None."""
    from fuzz.break_check import difference

    process = os.fork()
    if process == 0:
        signal.alarm(patience)
        code = BROKEN
        with contextlib.suppress(BaseException):
            found = difference(text, backend)
            code = 0 if found is None else KINDS.index(kind_of(found))
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return None if code in (0, BROKEN) else f"signal {-code}" if code < 0 else KINDS[code]


BROKEN = 100
KINDS = ("", "result", "error", "line", "handled", "log", "items", "table", "box", "grad mode", "alive")


def kind_of(found: str) -> str:
    """What differs, of a text that `difference` gave."""
    return found.partition(":")[0].partition(", ")[2]


def cut_down(seed: int, backend: str) -> str:
    """The reduced program of a failing seed."""
    from fuzz.break_check import reduced
    from fuzz.break_programs import generate, source

    program = generate(seed)
    kind = outcome(source(program), backend)
    if kind is None:
        return source(program) + "# it does not fail alone\n"
    return source(reduced(program, lambda text: outcome(text, backend) == kind, 300))


class Worker:
    """A fork that runs every `step`-th seed and writes `seed N` before, `ok` or `FAIL what` after each."""

    def __init__(self, seeds: range, backend: str) -> None:
        self.seeds, self.backend = seeds, backend
        self.running: int | None = None
        self.seen = time.monotonic()
        self.rest = b""
        self.output, writes = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            self._work(writes)
        os.close(writes)

    def _work(self, writes: int) -> NoReturn:
        from fuzz.break_check import difference
        from fuzz.break_programs import generate, source

        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for position, seed in enumerate(self.seeds):
                os.write(writes, b"seed %d\n" % seed)
                found = difference(source(generate(seed)), backend_of(seed, self.backend))
                os.write(writes, b"ok\n" if found is None else f"FAIL {found[:4000]!r}\n".encode())
                if position % 50 == 49:
                    settle()
            code = 0
        finally:
            os._exit(code)

    def read(self) -> tuple[list[tuple[int, str | None]], bool]:
        """(seed, what differs or None) of the programs that have ended since, and whether the process has."""
        data = os.read(self.output, 1 << 16)
        self.seen = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        ended: list[tuple[int, str | None]] = []
        for text in lines:
            word, _, what = text.decode().partition(" ")
            if word == "seed":
                self.running = int(what)
            elif self.running is not None:
                ended.append((self.running, what if word == "FAIL" else None))
                self.running = None
        return ended, not data

    def end(self) -> int:
        """Kill it if it still runs; its exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        os.close(self.output)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def after(self) -> range:
        """The seeds behind the one that runs."""
        return self.seeds if self.running is None else self.seeds[self.seeds.index(self.running) + 1 :]


class Campaign:
    """All workers of one run and what they found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.begin = time.monotonic()
        self.done = 0
        self.failures: list[tuple[int, str]] = []
        self.selector = selectors.DefaultSelector()

    def start(self, seeds: range) -> None:
        if seeds:
            worker = Worker(seeds, self.arguments.backend)
            self.selector.register(worker.output, selectors.EVENT_READ, worker)

    def workers(self) -> list[Worker]:
        return [key.data for key in self.selector.get_map().values()]

    def note(self, seed: int, what: str | None) -> None:
        self.done += 1
        if what is not None:
            self.failures.append((seed, what))
            print(f"# seed {seed}, backend {backend_of(seed, self.arguments.backend)}: {what[:WORDY]}", flush=True)

    def lose(self, worker: Worker, what: str | None) -> None:
        """A worker has ended, or hangs: its program failed, and another goes on behind it."""
        self.selector.unregister(worker.output)
        status = worker.end()
        if worker.running is not None:
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


def run(arguments: argparse.Namespace) -> int:
    """The parent."""
    campaign = Campaign(arguments)
    print(f"{arguments.count} programs from seed {arguments.seed} on, {arguments.jobs} processes", flush=True)

    def told_to_end(*_: object) -> None:
        arguments.reduce = False
        raise SystemExit

    signal.signal(signal.SIGTERM, told_to_end)
    try:
        prepare()
        campaign.run()
    except (KeyboardInterrupt, SystemExit):
        arguments.reduce = False
    finally:
        campaign.stop()
        campaign.failures.sort()
        print(f"{campaign.summary()}; failing seeds {[f[0] for f in campaign.failures]}", flush=True)
    for seed, what in campaign.failures if arguments.reduce else ():
        backend = backend_of(seed, arguments.backend)
        print(f"\n# seed {seed}, backend {backend}: {what[:WORDY]}\n{cut_down(seed, backend)}", flush=True)
    return int(bool(campaign.failures))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.breaks", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    parser.add_argument("--backend", default="mixed", help="eager, aot_eager, native; mixed: every twentieth is native")
    parser.add_argument("--no-reduce", dest="reduce", action="store_false", help="do not cut failing programs down")
    parser.add_argument("--show", action="store_true", help="print the program of --seed")
    parser.add_argument("--file", help="run the program of this file")
    arguments = parser.parse_args()
    if arguments.show:
        from fuzz.break_programs import generate, source

        print(source(generate(arguments.seed)))
        return 0
    if arguments.file:
        from fuzz.break_check import difference

        prepare()
        found = difference(Path(arguments.file).read_text(), arguments.backend)
        print(found or "")
        return int(found is not None)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
