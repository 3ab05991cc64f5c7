"""The break fuzzer: `python -m tests.fuzz.breaks --count 1000 --seed 0 --jobs 1 --seconds 600` (from the root).

Programs run in child processes, which write each seed before they run it: a crash or a hang names its seed. Failing
programs are cut down; each is printed with the command that repeats it. Exit status 1 if there were any.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PATIENCE = 120.0
"""Seconds without a new seed after which a child counts as hanging."""


def work(arguments: argparse.Namespace) -> int:
    """A child: its seeds, one after the other; prints `seed text` before, `ok` or `FAIL what` after."""
    from fuzz.break_check import difference
    from fuzz.break_programs import generate, source

    prepare()
    begin = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + arguments.count, arguments.jobs):
        if time.monotonic() - begin > arguments.seconds:
            return 0
        print(f"seed {seed}", flush=True)
        found = difference(source(generate(seed)), backend_of(seed, arguments.backend))
        print("ok" if found is None else f"FAIL {found!r}", flush=True)
    return 0


def prepare() -> None:
    """One thread, no warnings; errors inside of the compiler are raised."""
    import torch

    from pycompiler import config

    torch.set_num_threads(1)
    config.raise_internal_errors = True
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


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


class Child:
    """One worker process; restarted behind the seed that ended it."""

    def __init__(self, arguments: argparse.Namespace, first: int, until: float) -> None:
        self.arguments, self.next, self.until = arguments, first, until
        self.failures: list[tuple[int, str]] = []
        self.done = 0
        self.start()

    def start(self) -> None:
        a = self.arguments
        count = a.seed + a.count - self.next
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "tests.fuzz.breaks", "--work", "--seed", str(self.next), "--count", str(count),
                   "--jobs", str(a.jobs), "--backend", a.backend, "--seconds", str(max(0.0, self.until - time.monotonic()))]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.DEVNULL, text=True)
        self.offset, self.seen = 0, time.monotonic()
        self.running: int | None = None

    def poll(self) -> bool:
        """Read what the child wrote; whether it is still at work."""
        code = self.process.poll()
        self.output.seek(self.offset)
        for text in self.output:
            if not text.endswith("\n"):
                break
            self.offset += len(text.encode())
            self.seen = time.monotonic()
            word, _, rest = text.rstrip("\n").partition(" ")
            if word == "seed":
                self.running = int(rest)
            elif self.running is not None:
                self.done += 1
                if word == "FAIL":
                    self.failures.append((self.running, rest))
                self.next, self.running = self.running + self.arguments.jobs, None
        hangs = code is None and time.monotonic() - self.seen > PATIENCE
        if hangs:
            self.process.kill()
            self.process.wait()
        if (code is not None and code != 0 or hangs) and self.running is not None:
            self.failures.append((self.running, "hangs" if hangs else f"the process ended with {code}"))
            self.done += 1
            self.next, self.running = self.running + self.arguments.jobs, None
            if time.monotonic() < self.until and self.next < self.arguments.seed + self.arguments.count:
                self.start()
                return True
        return code is None and not hangs


def run(arguments: argparse.Namespace) -> int:
    """The parent."""
    begin = time.monotonic()
    until = begin + arguments.seconds
    jobs = min(arguments.jobs, arguments.count)
    children = [Child(arguments, arguments.seed + job, until) for job in range(jobs)]
    while any([child.poll() for child in children]):
        time.sleep(0.2)
    failures = sorted(f for child in children for f in child.failures)
    done = sum(child.done for child in children)
    prepare()
    for seed, what in failures:
        backend = backend_of(seed, arguments.backend)
        print(f"\n# seed {seed}, backend {backend}: {what}")
        if arguments.reduce:
            print(cut_down(seed, backend), flush=True)
    version = ".".join(map(str, sys.version_info[:3]))
    print(
        f"Python {version}: {done} programs, {len(failures)} failures, {time.monotonic() - begin:.0f} s; failing seeds {[f[0] for f in failures]}"
    )
    return int(bool(failures))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.breaks", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="child processes")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    parser.add_argument("--backend", default="mixed", help="eager, aot_eager, native; mixed: every twentieth is native")
    parser.add_argument("--no-reduce", dest="reduce", action="store_false", help="do not cut failing programs down")
    parser.add_argument("--show", action="store_true", help="print the program of --seed")
    parser.add_argument("--file", help="run the program of this file")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
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
    return work(arguments) if arguments.work else run(arguments)


if __name__ == "__main__":
    sys.exit(main())
