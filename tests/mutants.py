"""Mutants: seeded small changes of the product, each of which its room's tests should notice.

    python -m tests.mutants --room scheduling --count 20 --seed 1      # from the repository's root
    python -m tests.mutants --room guards-rs --count 10                # rebuilds the extension for each

In: rooms (all by default), how many mutants of each, a seed.  Out: by room the mutants that tests killed of those made, and each
survivor with its place and its change; the exit status is 1 when a room is below `--least` (0.9).

A mutant changes one place of one file: a comparison, a constant, `and` or `or`, `not`, a result, a statement, two arguments.
Python is changed by its syntax tree, Rust by its text.  All happens in a copy of the tree; the tests of `ROOMS` run there with
`-x`; their time limit is four times what they take without a mutant.  A mutant that does not build is not counted; one whose tests
reach the limit is killed, and told apart: on a busy machine try it again.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLEAN_S = 1200.0  # the longest that a room's tests may take without a mutant


@dataclass(frozen=True)
class Room:
    """Sources that mutants are made of, and the tests that should see them, the quickest first."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "scheduling": Room(
        ("pycompiler/scheduling",),
        ("tests/scheduling", "tests/seams", "tests/lowering", "tests/codegen/test_growth.py", "tests/codegen/test_fuzz.py", "tests/fuzz/test_programs.py"),
    ),
    "lowering": Room(
        ("pycompiler/lowering",),
        ("tests/lowering", "tests/seams", "tests/codegen/test_operators.py", "tests/codegen/test_symbolic.py", "tests/fuzz/test_programs.py"),
    ),
    "codegen": Room(
        ("pycompiler/codegen/cpp",),
        ("tests/seams", "tests/lowering", "tests/codegen/test_columns.py", "tests/codegen/test_calls.py", "tests/codegen/test_parts.py",
         "tests/codegen/test_operators.py", "tests/codegen/test_symbolic.py", "tests/codegen/test_growth.py", "tests/codegen/test_fuzz.py"),
    ),
    "partition": Room(
        ("pycompiler/autograd/partition.py", "pycompiler/autograd/maxflow.py", "pycompiler/autograd/recompute.py", "pycompiler/autograd/saved.py",
         "pycompiler/autograd/policies.py"),
        ("tests/autograd/test_partition.py", "tests/autograd/test_saved.py", "tests/autograd/test_policies.py", "tests/autograd/test_pieces.py",
         "tests/autograd/test_cuts.py", "tests/autograd/test_values.py", "tests/autograd/test_memory_of_gradients.py"),
    ),
    "guards": Room(
        ("pycompiler/pipeline/guards.py", "pycompiler/ir/guards.py", "pycompiler/ir/guard_entries.py", "pycompiler/capture/stand_in_guards.py"),
        ("tests/capture/test_guards.py", "tests/native/test_guards.py", "tests/native/test_fast_guards.py", "tests/capture/test_recompiles.py",
         "tests/test_dynamic.py", "tests/fuzz/test_fuzz.py"),
    ),
    "capture": Room(
        ("pycompiler/capture/builtins", "pycompiler/capture/operators.py", "pycompiler/capture/opcodes"),
        ("tests/capture/test_opcodes.py", "tests/capture/test_corpus.py", "tests/fuzz/test_calls.py", "tests/capture/test_language.py",
         "tests/capture/test_methods_of_containers.py", "tests/capture/test_found_by_operands.py", "tests/capture/test_numpy.py",
         "tests/capture/test_programs.py", "tests/capture/test_breaks.py", "tests/capture/test_replaced_data.py", "tests/test_loops.py"),
    ),
    "guards-rs": Room(("guards-rs/src/guard", "guards-rs/src/cache.rs", "guards-rs/src/compiled.rs"), ("tests/native",)),
    "plan-rs": Room(
        ("guards-rs/src/plan.rs", "guards-rs/src/plan"),
        ("tests/runtime/test_plan.py", "tests/runtime/test_pins.py", "tests/runtime/test_plan_operators.py", "tests/native/test_ownership.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    path: str
    line: int
    what: str
    text: str  # of the whole file


# ---- changes of Python ------------------------------------------------------------------------------------------------
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NOT_SWAPPED = (
    "isinstance",
    "issubclass",
    "hasattr",
    "getattr",
    "zip",
    "max",
    "min",
    "cast",
)  # ends at once, or is the same
Change = tuple[str, Callable[[], ast.AST]]
SILENT = (
    "log",
    "warn",
    "report",
    "say",
    "describe",
    "explain",
    "__repr__",
    "__str__",
    "shown",
)  # no test owes words a test


def changes(node: ast.AST) -> Iterator[Change]:
    """The mutations of one node: what they do, and the node that takes its place."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in FLIPPED:
        op = FLIPPED[type(node.ops[0])]
        yield "comparison", lambda: ast.Compare(node.left, [op()], node.comparators)
    if isinstance(node, ast.BoolOp):
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield "and/or", lambda: ast.BoolOp(other, node.values)
        yield "operand dropped", lambda: node.values[0]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", lambda: node.operand
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign dropped", lambda: node.operand
    if isinstance(node, ast.BinOp) and type(node.op) in OTHER:
        yield "operator", lambda: ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", lambda: ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "plus one", lambda: ast.Constant(int(node.value) + 1)  # type: ignore[arg-type]
        yield "minus one", lambda: ast.Constant(int(node.value) - 1)  # type: ignore[arg-type]
    if isinstance(node, ast.IfExp):
        yield "branches", lambda: ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.Return) and node.value is not None and not is_constant(node.value, None):
        yield "result is None", lambda: ast.Return(ast.Constant(None))
    if (
        isinstance(node, ast.Call)
        and len(node.args) >= 2
        and ast.unparse(node.func) not in NOT_SWAPPED
        and not any(isinstance(a, ast.Starred) for a in node.args)
    ):
        yield "arguments", lambda: ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "statement removed", ast.Pass
    if isinstance(node, (ast.AugAssign, ast.Continue)):
        yield "statement removed", ast.Pass


def is_constant(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def places(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Nodes that code of functions runs: no annotations, defaults, raises, assertions, or words for people."""
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if not any(word in tree.name for word in SILENT):
            for node in tree.body:
                yield from places(node, True)
        return
    if isinstance(tree, (ast.Raise, ast.Assert, ast.JoinedStr)) or is_silent(tree):
        return
    if inside:
        yield tree
    for name, field in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from places(child, inside)


def is_silent(node: ast.AST) -> bool:
    """A call that only logs, or a docstring."""
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    called = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
    return any(word in called for word in SILENT)


def python_mutants(path: str, text: str) -> list[tuple[int, str, Callable[[], str]]]:
    """(line, what, the text of the file) of each change."""
    tree, found = ast.parse(text), []
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    data = text.encode()
    offsets = [len(text[:at].encode()) for at in starts]
    for node in places(tree):
        for what, make in changes(node):

            def changed(node: ast.AST = node, make: Callable[[], ast.AST] = make) -> str:
                assert isinstance(node, (ast.stmt, ast.expr))
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                first = offsets[node.lineno - 1] + node.col_offset
                last = offsets[node.end_lineno - 1] + node.end_col_offset
                new = ast.unparse(ast.fix_missing_locations(make()))
                new = f"({new})" if isinstance(node, ast.expr) else new
                return (data[:first] + new.encode() + data[last:]).decode()

            found.append((node.lineno, what, changed))
    return found


# ---- changes of Rust --------------------------------------------------------------------------------------------------
RUST = (
    (r"(?<= )==(?= )", "!="), (r"(?<= )!=(?= )", "=="), (r"(?<= )<=(?= )", "<"), (r"(?<= )>=(?= )", ">"), (r"(?<= )&&(?= )", "||"),
    (r"(?<= )\|\|(?= )", "&&"), (r"(?<= )\+=(?= )", "-="), (r"(?<=\w )\+(?= \w)", "-"), (r"(?<=\w )-(?= \w)", "+"), (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"), (r"(?<=if )!(?=\w)", ""), (r"(?<=&& )!(?=\w)", ""), (r"(?<![.\w])0\b(?![.x])", "1"), (r"(?<![.\w])1\b(?!\.)", "2"),
    (r"\.is_some\(\)", ".is_none()"), (r"\.is_none\(\)", ".is_some()"), (r"\.any\(", ".all("), (r"\.all\(", ".any("),
)  # fmt: skip


def rust_mutants(path: str, text: str) -> list[tuple[int, str, Callable[[], str]]]:
    """The same of Rust: outside of tests, comments, texts, attributes and constants' names."""
    found: list[tuple[int, str, Callable[[], str]]] = []
    code = text.partition("#[cfg(test)]")[0]
    begin = 0
    for number, line in enumerate(code.splitlines(keepends=True), 1):
        bare = line.partition("//")[0]
        if (
            not bare.strip().startswith(("#", "use ", "const ", "pub const ", "static "))
            and '"' not in bare
            and "SAFETY" not in line
        ):
            for pattern, new in RUST:
                for m in re.finditer(pattern, bare):
                    first, last = begin + m.start(), begin + m.end()
                    made = f"{m.group()} → {new or 'nothing'}"
                    found.append((number, made, lambda a=first, b=last, n=new: text[:a] + n + text[b:]))
        begin += len(line)
    return found


# ---- choice and trial -------------------------------------------------------------------------------------------------
def files(room: Room) -> list[Path]:
    if missing := [s for s in room.sources if not (ROOT / s).exists()]:
        raise SystemExit(f"no such sources: {', '.join(missing)}")
    found = [p for s in room.sources for p in ([ROOT / s] if (ROOT / s).is_file() else sorted((ROOT / s).rglob("*")))]
    return [p for p in found if p.suffix in (".py", ".rs") and "ffi" not in p.parts]


def chosen(room: Room, count: int, seed: int) -> list[Mutant]:
    """`count` mutants; all places of the room are alike likely."""
    made: list[tuple[Path, str, tuple[int, str, Callable[[], str]]]] = []
    for path in files(room):
        text = path.read_text()
        make = python_mutants if path.suffix == ".py" else rust_mutants
        made += [(path, text, change) for change in make(str(path), text)]
    picked = random.Random(seed).sample(made, min(count, len(made)))
    result = []
    for path, before, (line, what, change) in picked:
        after = change()
        if after != before:
            result.append(Mutant(str(path.relative_to(ROOT)), line, what, after))
    return result


class Tree:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.jobs = folder, jobs
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        for name in filter(None, names.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for library in (ROOT / "pycompiler").glob("_native*.so"):
            shutil.copy2(library, folder / "pycompiler" / library.name)

    def run(self, tests: Sequence[str], seconds: float) -> str:
        """Whether the tests pass: survived | killed | killed by time."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-o", "timeout=0"]
        if missing := [t for t in tests if not (self.folder / t).exists()]:
            raise SystemExit(f"no such tests: {', '.join(missing)}")
        spread = ["-n", str(self.jobs), "--dist", "loadfile", "--maxfail", "1"] if self.jobs > 1 else []
        process = subprocess.Popen(
            [*command, *spread, *tests],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return "killed" if process.wait(seconds) else "survived"
        except subprocess.TimeoutExpired:
            return "killed by time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # our own session
                process.wait()

    def builds(self) -> bool:
        """Whether the extension builds; it is the tree's from then on."""
        target = ROOT / "target" / "mutants"
        environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "PYO3_PYTHON": sys.executable}
        command = ["cargo", "build", "--release", "--quiet", "--features", "extension-module"]
        if subprocess.run(command, cwd=self.folder, env=environment, capture_output=True).returncode:
            return False
        name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        shutil.copy2(target / "release" / "lib_native.so", self.folder / "pycompiler" / name)
        return True

    def verdict(self, mutant: Mutant, room: Room, seconds: float) -> str:
        """survived | killed | killed by time | does not build"""
        path = self.folder / mutant.path
        before = path.read_text()
        path.write_text(mutant.text)
        try:
            if mutant.path.endswith(".rs") and not self.builds():
                return "does not build"
            return self.run(room.tests, seconds)
        finally:
            path.write_text(before)


def difference(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.text.splitlines(), n=0, lineterm="")
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def run_room(name: str, tree: Tree, count: int, seed: int) -> tuple[int, int]:
    """(killed, made) of one room; prints each survivor."""
    room, killed, made = ROOMS[name], 0, 0
    rust = any(p.suffix == ".rs" for p in files(room))
    if rust and not tree.builds():
        raise SystemExit("the extension does not build")
    clean = time.monotonic()
    if tree.run(room.tests, CLEAN_S) != "survived":
        raise SystemExit(f"{name}: its tests fail without a mutant")
    limit = 4 * (time.monotonic() - clean)
    for mutant in chosen(room, count, seed):
        begin = time.monotonic()
        verdict = tree.verdict(mutant, room, limit)
        made += verdict != "does not build"
        killed += verdict.startswith("killed")
        where = f"{mutant.path}:{mutant.line}: {mutant.what}"
        print(f"{name}: {verdict} in {time.monotonic() - begin:.0f} s: {where}", flush=True)
        if verdict == "survived":
            print(difference(mutant), flush=True)
    return killed, made


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--room", action="append", choices=ROOMS, help="one or several; default: all")
    parser.add_argument("--count", type=int, default=20, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest")
    parser.add_argument("--least", type=float, default=0.9, help="the share that must be killed in each room")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    asked = parser.parse_args()
    rooms = asked.room or list(ROOMS)
    if asked.list:
        for name in rooms:
            for mutant in chosen(ROOMS[name], asked.count, asked.seed):
                print(f"{name}: {mutant.path}:{mutant.line}: {mutant.what}\n{difference(mutant)}")
        return 0
    table = {}
    with tempfile.TemporaryDirectory(prefix="pycompiler-mutants-") as folder:
        for name in rooms:
            table[name] = run_room(name, Tree(Path(folder, name), asked.jobs), asked.count, asked.seed)
    print("| room | killed | made | share |\n| --- | --- | --- | --- |")
    for name, (killed, made) in table.items():
        print(f"| {name} | {killed} | {made} | {killed / max(1, made):.0%} |")
    return int(any(killed < asked.least * made for killed, made in table.values()))


if __name__ == "__main__":
    sys.exit(main())
