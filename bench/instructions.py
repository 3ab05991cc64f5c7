"""Instructions of a call, counted by callgrind: they repeat within one in a hundred where times do not.

`python bench/instructions.py [-k EXPRESSION] [--out counts.json]` runs the benches of guards and calls (those that
pytest's EXPRESSION selects, such as `pycompiler and linears`) under valgrind and prints a table; `ratios.py` puts the
counts beside the times with `--instructions counts.json`.  Each case runs its round of calls once and then twice
between two marks: the difference is one round without any overhead.  Needs valgrind with its headers, and a C
compiler.  The processor that valgrind emulates has no AVX-512, so kernels are compiled for AVX2.

`--compiles` counts cold compiles instead: function, graph and kernels are new each time.  The C++ compiler is another process,
and is not counted.  Compare two commits by two worktrees, each with its engine: `PYTHONPATH=<worktree> python
<worktree>/bench/instructions.py --compiles`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
BENCHES = ("bench_guards.py", "bench_calls.py")
COMPILES = ("instructions.py",)
WARM = 3  # compiles before the counted ones: they import modules and fill tables of the process
RUNS = 5  # counted compiles
INSIDE = "BENCH_MARKS"  # path of the library of marks, for the process under valgrind

# Valgrind's client requests are macros: a library turns them into functions.
MARKS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""


class Counting:
    """Replaces pytest-benchmark's fixture: runs the function between marks, which name the dumps."""

    def __init__(self) -> None:
        self.marks = ctypes.CDLL(os.environ[INSIDE])
        self.group = ""
        self.extra_info: dict[str, Any] = {}

    def __call__(self, work: Callable[[], Any]) -> None:
        self.marks.start()
        work()  # warms valgrind's own caches, and the allocators
        for rounds in (1, 2):
            self.marks.dump(b"discard")
            for _ in range(rounds):
                work()
            label = {"group": self.group, "rounds": rounds, **{k: self.extra_info[k] for k in ("impl", "calls")}}
            self.marks.dump(json.dumps(label).encode())
        self.marks.stop()

    def each(self, work: Callable[[], Any], times: int) -> None:
        """Counts each of several runs alone, without the garbage collector: `counts` takes the median."""
        gc.collect()
        gc.disable()
        for number in range(times):
            self.marks.start()
            work()
            self.marks.dump(json.dumps({"group": self.group, "run": number, **self.extra_info}).encode())
            self.marks.stop()
        gc.enable()


@pytest.fixture
def benchmark() -> Counting:
    return Counting()


# A function of its own number, so that no earlier compile has its code, its graph or its kernel.
COLD = {
    "one graph": "def step(x):\n    return (x @ x).relu().softmax(-1).sum() * {number}.5\n",
    "a graph break": "def step(x):\n    y = x.sin() * {number}.5\n    print(end='')\n    return (y @ y).softmax(-1).sum()\n",
}


@pytest.mark.parametrize("backward", [False, True], ids=["pycompiler forward", "pycompiler forward and backward"])
@pytest.mark.parametrize("name", COLD)
def test_compiles(benchmark: Counting, name: str, backward: bool) -> None:
    import torch

    import pycompiler

    numbers = itertools.count(1)
    x = torch.ones(4, 4, requires_grad=backward)

    def work() -> None:
        namespace: dict[str, Any] = {}
        exec(COLD[name].format(number=next(numbers)), namespace)
        result = pycompiler.compile(namespace["step"], dynamic=False)(x)
        if backward:
            result.backward()

    for _ in range(WARM):
        work()
    benchmark.group = f"compile: {name}, {'forward and backward' if backward else 'forward'}"
    benchmark.extra_info.update(impl="pycompiler", calls=1)
    benchmark.each(work, RUNS)


def counts(folder: Path) -> dict[str, dict[str, float]]:
    """Instructions of a call by group and implementation, from callgrind's dumps."""
    rounds: dict[tuple[str, str], dict[int, float]] = {}
    runs: dict[tuple[str, str], list[float]] = {}
    for path in folder.glob("callgrind.*"):
        text = path.read_text(errors="replace")
        name = re.search(r"^desc: Trigger: Client Request: (\{.*\})$", text, re.M)
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
        if name and total:
            label = json.loads(name[1])
            if "run" in label:
                runs.setdefault((label["group"], label["impl"]), []).append(int(total[1]) / label["calls"])
                continue
            by_rounds = rounds.setdefault((label["group"], label["impl"]), {})
            by_rounds[label["rounds"]] = int(total[1]) / label["calls"]
    found: dict[str, dict[str, float]] = {}
    for (group, impl), by_rounds in sorted(rounds.items()):
        found.setdefault(group, {})[impl] = by_rounds[2] - by_rounds[1]
    for (group, impl), each in sorted(runs.items()):
        found.setdefault(group, {})[impl] = statistics.median(each)
    return found


def build_marks(folder: Path) -> None:
    source, library = folder / "marks.c", folder / "marks.so"
    source.write_text(MARKS)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True)


def compiler_for_avx2(folder: Path) -> str:
    """A C++ compiler that overrides `-march=native`, as a command that both implementations read from $CXX."""
    script = folder / "cxx"
    script.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX", "g++")} "$@" -march=x86-64-v3\n')
    script.chmod(0o755)
    return str(script)


def run_benches(folder: Path, select: str, benches: Sequence[str]) -> int:
    """Runs the selected benches under callgrind, which writes its dumps to `folder`; the exit code."""
    build_marks(folder)
    env = {
        **os.environ,
        INSIDE: str(folder / "marks.so"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "PYCOMPILER_CACHE_DIR": str(folder / "cache"),
    }
    if platform.machine() == "x86_64":
        env["CXX"] = compiler_for_avx2(folder)
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/callgrind"]
    command += [sys.executable, "-m", "pytest", "-q", "-k", select, *(str(HERE / name) for name in benches)]
    command += ["-p", "no:benchmark", "-p", "instructions", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=--import-mode=importlib", "-o", "timeout=0"]
    return subprocess.run(command, env=env, cwd=HERE.parent).returncode


def table(found: dict[str, dict[str, float]]) -> Iterator[str]:
    yield "| instructions of a call | eager | torch.compile | pycompiler | ours / torch.compile | ours / eager |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for group, by_impl in found.items():
        numbers = [
            f"{by_impl[name]:,.0f}" if name in by_impl else "–" for name in ("eager", "torch.compile", "pycompiler")
        ]
        ours = by_impl.get("pycompiler")
        ratios = [
            f"{ours / by_impl[peer]:.3f}" if ours and by_impl.get(peer) else "–" for peer in ("torch.compile", "eager")
        ]
        yield f"| {group} | {' | '.join(numbers + ratios)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="select", default="pycompiler or torch.compile or eager", help="as pytest's -k")
    parser.add_argument("--compiles", action="store_true", help="count cold compiles instead of calls")
    parser.add_argument("--out", type=Path, help="write the counts as JSON")
    parser.add_argument("--dumps", type=Path, help="keep callgrind's dumps in this folder, for callgrind_annotate")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("instructions.py counts nothing: valgrind is not installed (apt-get install valgrind)")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.dumps.resolve() if args.dumps else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        code = run_benches(folder, args.select, COMPILES if args.compiles else BENCHES)
        found = counts(folder)
    print("\n".join(table(found)))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
