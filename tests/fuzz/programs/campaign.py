"""A campaign: many programs over several processes.

In: seeds, a device, a backend.  Out: counts and findings, printed.

A process compares a few hundred programs and ends, since loaded libraries stay in memory.  A process that dies or hangs
is a finding with its current seed; the next process continues after that seed.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
CHUNK = 250
PATIENCE = 300.0  # seconds without output
# The largest share of a run's programs for each verdict under which a program is compared only in part.
LIMITS = {"unsteady": 0.005, "raises": 0.1, "dropped": 0.02}


@dataclass
class Findings:
    """The findings of a campaign so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    failing: list[dict[str, Any]] = field(default_factory=list)
    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unsteady: list[dict[str, Any]] = field(default_factory=list)
    statements: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, line: dict[str, Any]) -> None:
        with self.lock:
            self.kinds[f"{line['kind']} {line['what']}".strip()] += 1
            self.dropped.update(line.get("dropped", {}))
            self.said.update(line.get("said", {}))
            self.statements += line.get("size", 0)
            self.cells.update({(table, row, column): n for table, row, column, n in line.get("cells", ())})
            if line["kind"] == "unsteady":
                self.unsteady.append(line)
            if line["kind"] == "differs":
                self.failing.append(line)
                print(f"seed {line['seed']}: {line['what']}: {line['detail'][:240]}", flush=True)

    def too_many(self) -> list[str]:
        """A line for each verdict with more programs than its limit allows (one program is always allowed)."""
        total, counts = self.kinds.total(), Counter[str]()
        for name, count in self.kinds.items():
            counts[name.partition(" ")[0]] += count
        return [
            f"{counts[kind]} of {total} programs are {kind}, at most {limit:.1%} may be"
            for kind, limit in LIMITS.items()
            if counts[kind] > max(1, limit * total)
        ]

    def groups(self) -> dict[str, list[dict[str, Any]]]:
        """Groups of similar findings, the frequent ones first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self.failing:
            found.setdefault(signature(line), []).append(line)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def signature(line: dict[str, Any]) -> str:
    """A key that findings of one cause probably share."""
    text = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "N", line["detail"])
    return (
        f"{line['what']}: {text[:90]}"
        if line["what"] in ("error", "crash", "harness")
        else f"{line['what']}: {text.split(':')[0]}"
    )


def command(mode: str, first: Any, last: Any, device: str, backend: str) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from fuzz.programs.worker import main; main(sys.argv[1:])"
    return [sys.executable, "-c", code, mode, str(first), str(last), device, backend]


def lines_of(arguments: list[str]) -> Iterator[dict[str, Any]]:
    """The output lines of a process; at last {"ended": its exit status}."""
    with tempfile.TemporaryDirectory(prefix="pycompiler-fuzz-") as cache:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYCOMPILER_CACHE_DIR": cache}
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            said = [time.monotonic()]
            watch = threading.Thread(target=kill_silent, args=(process, said), daemon=True)
            watch.start()
            assert process.stdout is not None
            for text in process.stdout:
                said[0] = time.monotonic()
                if text.startswith("{"):
                    yield json.loads(text)
            status = process.wait()
            errors.seek(0)
            yield {"ended": status, "errors": errors.read()[-800:]}


def kill_silent(process: subprocess.Popen[str], said: list[float]) -> None:
    while process.poll() is None:
        time.sleep(1)
        if time.monotonic() - said[0] > PATIENCE:
            process.kill()


def walk(findings: Findings, seeds: Iterator[range], device: str, backend: str, until: float) -> None:
    """Takes ranges of seeds until there is none or the time is over."""
    for chosen in seeds:
        first = chosen.start
        while first < chosen.stop and time.monotonic() < until:
            at = first
            for line in lines_of(command("walk", first, chosen.stop, device, backend)):
                if "start" in line:
                    at = line["start"]
                elif "seed" in line:
                    findings.note(line)
                    at = line["seed"] + 1
                elif line.get("ended"):
                    findings.note({"seed": at, "kind": "differs", "what": "crash", "detail": death(line)})
                    at += 1
            first = max(at, first + 1)
        if time.monotonic() > until:
            return


def death(line: dict[str, Any]) -> str:
    status = line["ended"]
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = line["errors"].strip().split("\n")[-1]
    return f"{name} {last}".strip()


class Ranges:
    """Ranges of seeds, distributed to several threads."""

    def __init__(self, seed: int, count: int, chunk: int) -> None:
        self.ranges = iter([range(k, min(k + chunk, seed + count)) for k in range(seed, seed + count, chunk)])
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[range]:
        while True:
            with self.lock:
                found = next(self.ranges, None)
            if found is None:
                return
            yield found


def run(
    seed: int, count: int, jobs: int, device: str, backend: str, seconds: float, reduced: int, out: Path | None
) -> int:
    """Runs a whole campaign; the exit status is 1 if a program differs, or more programs are excused than `LIMITS`
    allows."""
    begin = time.monotonic()
    findings = Findings()
    ranges = Ranges(seed, count, max(1, min(CHUNK, -(-count // jobs))))
    threads = [
        threading.Thread(target=walk, args=(findings, iter(ranges), device, backend, begin + seconds), daemon=True)
        for _ in range(jobs)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    report(findings, time.monotonic() - begin)
    show(findings, reduced, jobs, device, backend, out)
    return int(bool(findings.failing or findings.too_many()))


def report(findings: Findings, seconds: float) -> None:
    total = findings.kinds.total()
    print(f"\n{total} programs of {findings.statements / max(1, total):.1f} statements in {seconds:.0f} s")
    for title, counts in (
        ("verdicts", findings.kinds),
        ("left out of programs", findings.dropped),
        ("the compiler said", findings.said),
    ):
        print(f"{title}:")
        for text, n in counts.most_common(25):
            print(f"  {n:>8} {text}")
    if findings.cells:
        from .coverage import table_text  # imports the compiler, which a process that only starts others does not need

        print("scheduling decisions in pairs, schedules that reached them:")
        print(table_text(findings.cells))
    for line in findings.unsteady:
        print(f"unsteady: seed {line['seed']}: {line['detail'][:240]}")
    for text in findings.too_many():
        print(f"too many: {text}")
    if findings.failing:
        print("groups of findings:")
    for name, lines in findings.groups().items():
        print(f"  {len(lines):>5} {name.strip()}   seeds {', '.join(str(line['seed']) for line in lines[:6])}")


def chosen(findings: Findings, count: int) -> list[dict[str, Any]]:
    """Findings of all groups in turn."""
    groups = [list(lines) for lines in findings.groups().values()]
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*groups))
    return [line for line in rounds if line is not None][:count]


def show(findings: Findings, count: int, jobs: int, device: str, backend: str, out: Path | None) -> None:
    """Print the smallest form of some findings; of findings with the same operators, the shortest."""
    smallest: dict[str, tuple[str, dict[str, Any]]] = {}
    times: Counter[str] = Counter()

    def cut(line: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        found: dict[str, Any] = {}
        for said in lines_of(command("reduce", line["seed"], 90, device, backend)):
            found |= said
        return line, found

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for line, found in pool.map(cut, chosen(findings, count)):
            body = found.get("body", f"# seed {line['seed']} ends the process: {found.get('errors', '')}")
            cause = f"{line['what']} of {', '.join(sorted(set(re.findall(r'[.]([a-z_]+)[(]', body))))}"
            times[cause] += 1
            if cause not in smallest or len(body) < len(smallest[cause][1].get("body", "")):
                smallest[cause] = (
                    f"seed {line['seed']}, {found.get('detail', line['detail'])}",
                    found | {"body": body},
                )
    for cause, (head, found) in smallest.items():
        print(f"\n#### {times[cause]} of {count}: {head}\n{found['body']}", flush=True)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{head.split(',')[0].replace(' ', '-')}.py").write_text(
                f"# {head}\n{found.get('script', found['body'])}"
            )
