"""`guard_profile` beside callgrind: the nanoseconds of each guard of a call, and the instructions that its check takes.

`python bench/guard_costs.py [--rows 12]` prints the costliest guards of three programs, which have most kinds of guards, the
rank correlation of all (Spearman's), and the largest difference of the shares.  As in a profile, the first guard below a path
pays for the read of the path.  A guard's instructions are the instructions of a check of all guards up to it, less the
instructions of a check of the guards before it (without the fast path, which evaluates no guard).  All guards on one class
are one row, because most of their cost is one comparison of the class's version.  Needs valgrind with its headers, and a C
compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from instructions import INSIDE, build_marks

import pycompiler
from pycompiler import _native
from pycompiler.ir.guards import Guard


class Holder:
    def __init__(self, value: object) -> None:
        self.value = value


class Basket:
    """An object whose truth test runs code of the program."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __bool__(self) -> bool:
        return self.count > 0


CHECKS = 40
PROFILES = 20


def values(x: Any, n: int, flag: bool, text: str, holder: Holder, names: dict[str, int], few: dict[str, int],
           many: list[int], pair: tuple[int, int], kinds: set[str], basket: Basket) -> Any:  # fmt: skip
    y = x * n + (1 if flag else 0) + len(text) + holder.value.value
    y = y + len([k for k in names if k]) + len([k for k in few if k])
    y = y + sum(many) + pair[0] + len([k for k in kinds if k]) + few.get("name 7", 0)
    return y + 1 if basket else y - 1


def modules(xs: list[Any], table: dict[str, Any], model: Any) -> Any:
    return sum(x.relu() for x in xs) + model(xs[0]) + table["scale"] * table.get("other", 2)


def sizes(x: Any, y: Any, z: Any, at: dict[str, int]) -> Any:
    x.add_(1)
    rows = x.shape[0] + y.shape[0] if x.shape[0] > y.shape[0] else z.shape[0]
    return x.sum(0) * rows + y.sum(0) + z.sum(0) + ("missing" in at)


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Program and arguments by name; the same in each process."""
    x = torch.ones(4, 4)
    return {
        "values": (values, {
            "x": x, "n": 3, "flag": True, "text": "a text", "holder": Holder(Holder(5)),
            "names": {f"name {i}": i for i in range(300)}, "few": {f"name {i}": i for i in range(30)}, "many": list(range(6)),
            "pair": (1, 2), "kinds": {f"kind {i}" for i in range(40)}, "basket": Basket(1),
        }),
        "modules": (modules, {
            "xs": [x + k for k in range(6)], "table": {"scale": torch.ones(4), "first": 1},
            "model": torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.ReLU()),
        }),
        "sizes": (sizes, {"x": torch.ones(9, 4), "y": torch.ones(5, 4), "z": torch.ones(6, 4), "at": dict.fromkeys("abc", 1)}),
    }  # fmt: skip


def compiled_of(name: str) -> tuple[Any, dict[str, Any], list[Guard]]:
    """The callable, its arguments and its guards."""
    program, given = calls()[name]
    compiled = pycompiler.compile(program, backend="eager", dynamic=name == "sizes")
    compiled(**given)
    [entry] = compiled.entries
    return compiled, given, list(entry.guards)


def row_of(guard: Guard) -> str:
    """The row of a guard: its string; for guards on attributes of a class, the class alone."""
    root = guard.source.root
    return f"attributes of {root.name}" if root.kind == "const" and isinstance(root.arg, type) else str(guard)


def profiled(name: str) -> list[tuple[float, str]]:
    """Nanoseconds and row of each guard: the least of many profiles."""
    compiled, given, guards = compiled_of(name)
    least = dict.fromkeys(map(id, guards), float("inf"))
    for _ in range(PROFILES):
        [entry] = pycompiler.guard_profile(compiled, **given).entries
        for ns, guard in entry.guards:
            least[id(guard)] = min(least[id(guard)], ns)
    return [(least[id(guard)], row_of(guard)) for guard in guards]


def count() -> None:
    """Under valgrind: for each program, dumps of checks of no guard, of the first guard, of the first two and so on."""
    marks, names_here = ctypes.CDLL(os.environ[INSIDE]), globals()
    for name in calls():
        _, given, guards = compiled_of(name)
        _native.set_fast_guards(False)
        gc.disable()
        for k in (
            0,
            *range(len(guards) + 1),
        ):  # the first 0 lets the interpreter specialise this code; the second count is the stable one
            tree = _native.GuardTree(guards[:k], list(given))
            assert tree.check(given, names_here) is None, guards[k - 1]
            marks.start()
            for times in (1, 2):  # work outside of the rounds is in both dumps
                marks.dump(b"discard")
                for _ in range(times * CHECKS):
                    tree.check(given, names_here)
                marks.dump(json.dumps({"name": name, "guards": k, "times": times}).encode())
            marks.stop()


def instructions() -> dict[str, list[float]]:
    """Instructions of each guard by program, counted by `count` in a child process."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build_marks(folder)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/callgrind"]
        env = {**os.environ, INSIDE: str(folder / "marks.so"), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, sys.executable, __file__, "--count"], env=env, check=True, stderr=subprocess.DEVNULL)
        found: dict[str, dict[tuple[int, int], float]] = {}
        for path in sorted(folder.glob("callgrind.*"), key=lambda p: int(p.suffix[1:] or 0)):
            text = path.read_text(errors="replace")
            label = re.search(r"^desc: Trigger: Client Request: (\{.*\})$", text, re.M)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
            if label and total:
                told = json.loads(label[1])
                found.setdefault(told["name"], {})[told["guards"], told["times"]] = int(total[1]) / CHECKS
    upto = {name: [row[k, 2] - row[k, 1] for k in range(len(row) // 2)] for name, row in found.items()}
    return {name: [after - before for before, after in zip(row, row[1:], strict=False)] for name, row in upto.items()}


def ranks(numbers: list[float]) -> list[float]:
    order = sorted(numbers)
    return [(order.index(n) + len(order) - 1 - order[::-1].index(n)) / 2 for n in numbers]


def correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: 1 if both sort the guards in the same order."""
    return float(torch.corrcoef(torch.tensor([ranks(a), ranks(b)], dtype=torch.float64))[0, 1])


def compare(name: str, counted: list[float], shown: int) -> None:
    """Prints the table of one program."""
    rows: dict[str, list[float]] = {}
    for (ns, row), n in zip(profiled(name), counted, strict=True):
        sums = rows.setdefault(row, [0.0, 0.0])
        sums[0] += ns
        sums[1] += n
    whole = [sum(row[i] for row in rows.values()) for i in (0, 1)]
    ranked = sorted(rows.items(), key=lambda row: -row[1][1])
    print(f"\n{name}: {len(counted)} guards\n\n| guard | ns | instructions | share of ns | share of instructions |")
    print("| --- | --- | --- | --- | --- |")
    for text, (ns, n) in ranked[:shown]:
        print(f"| `{text[:60]}` | {ns:.1f} | {n:,.0f} | {ns / whole[0]:.1%} | {n / whole[1]:.1%} |")
    off = max(abs(ns / whole[0] - n / whole[1]) for ns, n in rows.values())
    alike = correlation(*([row[i] for row in rows.values()] for i in (0, 1)))
    print(f"\nrank correlation {alike:.3f} of {len(rows)} rows; shares of the whole differ by {off:.1%} at most;"
          f" {whole[0]:.0f} ns, {whole[1]:,.0f} instructions")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12, help="number of rows for each program")
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        return count()
    if shutil.which("valgrind") is None:
        return print("guard_costs.py counts nothing: valgrind is not installed (apt-get install valgrind)")
    counted = instructions()
    for name in calls():
        compare(name, counted[name], options.rows)


if __name__ == "__main__":
    main()
