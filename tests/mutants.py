"""Mutants: seeded small changes of the product; the tests of the changed package should detect each.

    python -m tests.mutants --room scheduling --count 20 --seed 1      # from the repository's root
    python -m tests.mutants --room guards-rs --count 10                # rebuilds the extension for each

In: packages (`--room`; all by default), the number of mutants of each, a seed. Out: by package the number of killed
and of all mutants, and each survivor with its place and its change. The exit status is 1 when a package is below
`--least` (0.9).

A mutant changes one place of one file: a comparison, a constant, `and` or `or`, `not`, a result, a statement, two
arguments. Python is changed by its syntax tree, Rust by its text.

Everything happens in copies of the tree, `--jobs` of them side by side, each with a kernel cache of its own. The
tests of `ROOMS` run in forked children, one file in each. First all files run without a mutant: tests that fail, or
have not ended after `--clean-seconds`, are named and left out. Then each mutant meets the tests that execute its
statement (`covering.py`: from Python 3.12 on; before, all tests of its package), the quickest file first, until a
test fails. The limit of a file is four times the duration of its tests without a mutant. A mutant that reaches the
limit counts as killed, and is listed as killed by time. Tests of the fast tier (`tiers.py`) run first, then the others;
the table says how many mutants the fast tier kills of those that any test kills. A mutant that does not build, or that is *unfinished* after
`--patience`, is not counted. Lines that only a started process executes are not watched.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import fcntl
import functools
import importlib
import json
import math
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import covering, tiers
from tests.side_by_side import BROKE, Work, side_by_side

ROOT = Path(__file__).resolve().parent.parent
OF_ALL = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # for all children; torch reads it at import
IMPORTED = ("pytest", "numpy", "torch", "hypothesis")  # imported before children are forked; none belongs to the tree
NOT_IMPORTED = "ImportError while loading conftest"  # pytest's words; a conftest imports the product
STARTS_S = 30.0  # added to the limit of a file's tests: imports, kernels that are not in the cache


@dataclass(frozen=True)
class Room:
    """Sources to mutate, and the tests that should detect the mutants, the quickest first."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "scheduling": Room(
        ("pycompiler/scheduling",),
        ("tests/scheduling", "tests/seams", "tests/lowering", "tests/codegen/test_growth.py", "tests/codegen/test_fuzz.py",
         "tests/codegen/test_errors.py", "tests/codegen/test_symbolic.py", "tests/codegen/test_columns.py", "tests/fuzz/test_programs.py"),
    ),
    "lowering": Room(
        ("pycompiler/lowering",),
        ("tests/lowering", "tests/seams", "tests/codegen/test_operators.py", "tests/codegen/test_symbolic.py", "tests/scheduling/test_stores.py",
         "tests/lowering/test_partial_updates.py", "tests/operators/test_value_checks.py", "tests/symbolic/test_symbolic_floats.py", "tests/fuzz/test_programs.py"),
    ),
    "codegen": Room(
        ("pycompiler/codegen/cpp",),
        ("tests/seams", "tests/lowering", "tests/codegen/test_columns.py", "tests/codegen/test_calls.py", "tests/codegen/test_joined_parts.py",
         "tests/codegen/test_operators.py", "tests/codegen/test_symbolic.py", "tests/codegen/test_errors.py", "tests/codegen/test_arithmetic.py",
         "tests/codegen/test_growth.py", "tests/codegen/test_fuzz.py", "tests/codegen/test_index.py", "tests/codegen/test_interleave.py",
         "tests/codegen/test_first.py"),
    ),
    "partition": Room(
        ("pycompiler/autograd/partition.py", "pycompiler/autograd/maxflow.py", "pycompiler/autograd/recompute.py", "pycompiler/autograd/saved_tensors.py",
         "pycompiler/autograd/checkpoint_policies.py"),
        ("tests/autograd/test_recompute.py", "tests/autograd/test_partition.py", "tests/autograd/test_saved_tensors.py", "tests/autograd/test_checkpoint_policies.py", "tests/autograd/test_split_views.py",
         "tests/autograd/test_cuts.py", "tests/autograd/test_values.py", "tests/autograd/test_gradient_memory.py",
         "tests/autograd/test_write_errors.py", "tests/autograd/test_missing_tangents.py", "tests/autograd/test_second_derivatives.py", "tests/symbolic/test_unbacked_symbols.py"),
    ),
    "guards": Room(
        ("pycompiler/pipeline/guards.py", "pycompiler/ir/guards.py", "pycompiler/ir/guard_entries.py", "pycompiler/capture/assumptions/inherited_guards.py"),
        ("tests/ir/test_guards.py", "tests/pipeline/test_guards.py", "tests/pipeline/test_reports.py", "tests/capture/assumptions/test_guards.py", "tests/native/test_guards.py",
         "tests/native/test_fast_guards.py", "tests/capture/library/standard/test_class_statements.py", "tests/capture/library/standard/test_metaclasses.py",
         "tests/capture/assumptions/test_recompiles.py", "tests/symbolic/test_dynamic_models.py", "tests/fuzz/test_fuzz.py", "tests/whole_programs/test_interrupted_calls.py"),
    ),
    "capture": Room(
        ("pycompiler/capture/library", "pycompiler/capture/semantics/operators.py", "pycompiler/capture/opcodes"),
        ("tests/capture", "tests/fuzz/test_calls.py", "tests/autograd/test_branches_of_any_size.py", "tests/autograd/test_while_loops.py", "tests/autograd/test_linearize.py",
         "tests/operators/test_attention_of_jagged_tensors.py",
         "tests/capture/library/torch_functions/test_unrolled_loops.py", "tests/capture/library/gradients/test_gradients.py", "tests/capture/library/gradients/test_backward_hooks.py", "tests/capture/library/torch_functions/test_distributed.py"),
    ),
    "guards-rs": Room(("guards-rs/src/guard", "guards-rs/src/cache.rs", "guards-rs/src/compiled.rs"), ("tests/native",)),
    "plan-rs": Room(
        ("guards-rs/src/plan.rs", "guards-rs/src/plan"),
        ("tests/runtime/test_plan.py", "tests/runtime/test_pins.py", "tests/runtime/test_plan_operators.py", "tests/native/test_ownership.py",
         "tests/native/test_sizes.py", "tests/native/test_data.py", "tests/native/test_kernels.py", "tests/runtime/test_launch.py",
         "tests/runtime/test_launch_batch.py", "tests/runtime/test_cuda_graphs.py", "tests/symbolic/test_dynamic_programs.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    path: str
    line: int
    what: str
    text: str  # of the whole file
    lines: tuple[int, ...]  # of the changed statement, without the statements in it


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
)  # with swapped arguments these calls fail at once, or return the same
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
)  # no test has to check wording


def changes(node: ast.AST) -> Iterator[Change]:
    """The mutations of one node: a description, and the node that replaces it."""
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


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def places(tree: ast.AST, inside: bool = False, predicate: bool = False) -> Iterator[ast.AST]:
    """Nodes that function code runs: no annotations, defaults, raises, assertions, or messages.

    Equivalent changes are left out: `return None` for `return False` in a `predicate`, and `strict=False` of a zip.
    """
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if not any(word in tree.name for word in SILENT):
            for node in tree.body:
                yield from places(node, True, is_predicate(tree))
        return
    if isinstance(tree, (ast.Raise, ast.Assert, ast.JoinedStr)) or is_silent(tree):
        return
    if isinstance(tree, ast.keyword) and tree.arg == "strict" and is_constant(tree.value, True):
        return
    if inside and not (predicate and isinstance(tree, ast.Return) and is_constant(tree.value, False)):
        yield tree
    for name, inner in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in inner if isinstance(inner, list) else [inner]:
                if isinstance(child, ast.AST):
                    yield from places(child, inside, predicate)


def is_predicate(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function returns a bool, by its annotation: `bool` or `TypeGuard[...]`."""
    returns = function.returns.value if isinstance(function.returns, ast.Subscript) else function.returns
    return isinstance(returns, ast.Name) and returns.id in ("bool", "TypeGuard")


def is_silent(node: ast.AST) -> bool:
    """A call that only logs, a docstring, or `graph.lint()`: like an assertion, it only raises for a bug."""
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    called = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
    return called.endswith(".lint") or any(word in called for word in SILENT)


def python_mutants(path: str, text: str) -> list[tuple[int, str, Callable[[], str]]]:
    """(line, description, source of the file) of each change."""
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
    """The same for Rust: outside of tests, comments, strings, attributes and constants' names."""
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
    """`count` mutants; all places of the package are equally likely."""
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
            lines = lines_of_statement(before, line) if path.suffix == ".py" else (line,)
            result.append(Mutant(str(path.relative_to(ROOT)), line, what, after, lines))
    return result


def lines_of_statement(text: str, line: int) -> tuple[int, ...]:
    """The lines of the innermost statement around a line, without nested statements."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):  # outer statements first
        if isinstance(node, ast.stmt):
            bodies = [*getattr(node, "body", []), *(case.pattern for case in getattr(node, "cases", []))]
            last = min([node.end_lineno or node.lineno, *(child.lineno - 1 for child in bodies)])
            if node.lineno <= line <= max(last, node.lineno):
                found = range(node.lineno, max(last, node.lineno) + 1)
    return tuple(found)


class Tree:
    """A copy of the tree with a kernel cache of its own; it tries one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kernels, self.temporary = folder / "tree", folder / "kernels", folder / "tmp"
        self.rows = folder / "rows"  # of the latest test run

    def fill(self, root: Path, kernels: Path | None = None) -> int:
        """Copies sources and compiled Python, and links warm kernels, which no process writes in place."""
        for name in sources_of(root):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self.folder / name)
        for made in ("_native*.so", "**/__pycache__/*.pyc"):
            for path in (root / "pycompiler").glob(made):
                (self.folder / path.relative_to(root)).parent.mkdir(exist_ok=True)
                shutil.copy2(path, self.folder / path.relative_to(root))
        for folder in (self.kernels, self.temporary):
            folder.mkdir(mode=0o700, exist_ok=True)
        if kernels is not None:
            shutil.copytree(kernels, self.kernels, copy_function=os.link, dirs_exist_ok=True)
        return 0

    def environment(self) -> dict[str, str]:
        """The copy precedes other folders on PYTHONPATH, which may hold installed packages."""
        before = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != ROOT]
        return {
            **OF_ALL,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *before]),
            "PYCOMPILER_CACHE_DIR": str(self.kernels),
            "TMPDIR": str(self.temporary),
        }

    def run(self, file: str, only: Collection[str] | None, watched: Mapping[str, Collection[int]], clean: bool) -> int:
        """Runs the tests of one file in a child. The clean run writes bytecode, which the other copies then have."""
        sys.dont_write_bytecode = not clean
        tempfile.tempdir = None
        environment = self.environment() | ({} if clean else {"PYTHONDONTWRITEBYTECODE": "1"})
        return covering.run(self.folder, file, only, watched, self.rows, environment, not clean)

    def results(self) -> list[dict[str, Any]]:
        """Returns and removes the rows of the latest test run."""
        lines = self.rows.read_text().splitlines() if self.rows.exists() else []
        self.rows.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def builds(self) -> int:
        """0 if the extension builds; the tree then uses it. One build at a time: builds share cargo's folder."""
        target = ROOT / "target" / "mutants"
        target.mkdir(parents=True, exist_ok=True)
        with open(target / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "PYO3_PYTHON": sys.executable}
            command = ["cargo", "build", "--profile", "mutants", "--quiet", "--features", "extension-module"]
            if subprocess.run(command, cwd=self.folder, env=environment, capture_output=True).returncode:
                return 1
            name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
            (self.folder / "pycompiler" / name).unlink(missing_ok=True)  # a process may have it loaded
            shutil.copy2(target / "mutants" / "lib_native.so", self.folder / "pycompiler" / name)
        return 0

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Replace the file by the mutant's, with another modification time, so that Python does not use the original's
        bytecode."""
        path, aside = self.folder / mutant.path, self.folder / f"{mutant.path}.original"
        path.rename(aside)
        try:
            path.write_text(mutant.text)
            os.utime(path, ns=(0, aside.stat().st_mtime_ns + 1_000_000_000_000))
            yield
        finally:
            aside.replace(path)


def sources_of(root: Path) -> list[str]:
    """Files that git tracks or would add; without git, all files except hidden folders and build products."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    with contextlib.suppress(OSError):
        names = subprocess.run(command, cwd=root, capture_output=True)
        if names.returncode == 0 and names.stdout:
            return [name for name in filter(None, names.stdout.decode().split("\0")) if (root / name).is_file()]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in ("target", "__pycache__")]
        found += [str(Path(folder, file).relative_to(root)) for file in files if not file.endswith((".so", ".pyc"))]
    return found


# ---- the tests that detect a mutant --------------------------------------------------------------------------------
@dataclass
class Clean:
    """The tests that pass without a mutant, by file: seconds of each, and the watched lines that it executes."""

    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    seen: dict[str, set[tuple[str, int]]] = field(default_factory=dict)

    def add(self, file: str, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            if row["outcome"] == "passed":
                self.seconds.setdefault(file, {})[row["test"]] = row["seconds"]
                self.seen[row["test"]] = {(name, line) for name, line in row["seen"]}

    def covering(self, mutant: Mutant, files: Sequence[str]) -> list[tuple[str, set[str], float]]:
        """(file, its tests that execute the mutant's lines, their seconds), the quickest file first."""
        lines, found = {(mutant.path, line) for line in mutant.lines}, []
        known = mutant.path.endswith(".py") and covering.LINES_ARE_KNOWN
        for file in files:
            tests = {t: s for t, s in self.seconds.get(file, {}).items() if not known or lines & self.seen[t]}
            if tests:
                found.append((file, set(tests), sum(tests.values())))
        return sorted(found, key=lambda row: row[2])


def expanded(tests: Sequence[str]) -> list[str]:
    """Test files; a folder stands for all files in it."""
    if missing := [t for t in tests if not (ROOT / t).exists()]:
        raise SystemExit(f"no such tests: {', '.join(missing)}")
    paths = [p for t in tests for p in ([ROOT / t] if (ROOT / t).is_file() else sorted((ROOT / t).rglob("test_*.py")))]
    return list(dict.fromkeys(str(p.relative_to(ROOT)) for p in paths))


class Trial:
    """Mutants of several packages, judged side by side."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self.folder, self.asked, self.begin = folder, asked, time.monotonic()
        self.clean, self.free, self.trees = Clean(), list[Tree](), 0
        self.base = Tree(folder / "clean")
        self.judged: list[dict[str, Any]] = []

    def tell(self, row: dict[str, Any]) -> None:
        if self.asked.out:
            with open(self.asked.out, "a") as file:
                file.write(json.dumps(row) + "\n")

    def run_clean(self, files: Sequence[str], mutants: Sequence[Mutant], rust: bool) -> None:
        """Run all files without a mutant: tests that fail, or have not ended in time, are not used."""
        watched: dict[str, set[int]] = {}
        for mutant in mutants:
            watched.setdefault(mutant.path, set()).update(mutant.lines)

        def prepared() -> Work:
            yield lambda: self.base.fill(ROOT, self.asked.kernels), 600.0
            if rust:
                assert (yield self.base.builds, 3600.0) == 0, "the extension does not build"

        def work(number: int, file: str) -> Work:
            tree, begin = copy.copy(self.base), time.monotonic()
            tree.rows = self.folder / f"clean-{number}"
            status = yield lambda: tree.run(file, None, watched, True), self.asked.clean_seconds
            rows = tree.results()
            self.clean.add(file, rows)
            dropped = {row["test"]: row["why"] for row in rows if row["outcome"] == "failed"}
            taken = {"tests": len(rows), "seconds": round(time.monotonic() - begin, 1), "status": status}
            self.tell({"clean": file, **taken, "dropped": dropped})
            late = "" if status is not None else ", time was up: the tests that had not ended are left out"
            late += "" if status in (0, 1, 5, None) else f", pytest ended with {status}"
            print(f"clean: {file}: {len(rows)} tests in {taken['seconds']} s{late}", flush=True)
            for name, why in dropped.items():
                print(f"clean: left out, fails without a mutant: {name}: {why.splitlines()[:1]}", flush=True)

        side_by_side(iter([prepared()]), 1)
        side_by_side((work(number, file) for number, file in enumerate(files)), self.asked.jobs)

    def judge(self, room: str, mutant: Mutant, files: Sequence[str]) -> Work:
        """killed | killed by time | survived | unfinished (`--patience` ended before all tests had run) | does not
        build"""
        if self.free:
            tree = self.free.pop()
        else:
            tree, self.trees = Tree(self.folder / str(self.trees)), self.trees + 1
            yield lambda: tree.fill(self.base.folder, self.base.kernels), 600.0
        begin, verdict, by, why, ran, killer = time.monotonic(), "survived", "", "", 0, ""
        rows = self.in_tiers(self.clean.covering(mutant, files))
        with tree.changed(mutant):
            if mutant.path.endswith(".rs") and (yield tree.builds, 3600.0) != 0:
                verdict, rows = "does not build", []
            for tier, file, tests, seconds in rows:
                left = self.asked.patience - (time.monotonic() - begin)
                limit = 4 * seconds + STARTS_S
                status = yield functools.partial(tree.run, file, tests, {}, False), min(limit, left)
                results = tree.results()
                ran += len(results)
                if status in (0, pytest.ExitCode.NO_TESTS_COLLECTED):  # test cases may come from the product's tables
                    continue
                if status in (BROKE, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
                    log = tree.rows.with_suffix(".log").read_text()
                    if NOT_IMPORTED not in log:
                        raise SystemExit(f"{file}: no tests run: {log[-3000:]}")
                    verdict, killer, by, why = "killed", tier, file, log[-300:]
                    break
                failed = [row for row in results if row["outcome"] == "failed"]
                verdict = "killed" if status is not None else "killed by time" if limit <= left else "unfinished"
                killer = tier
                by, why = (failed[0]["test"], failed[0]["why"]) if failed else (file, f"pytest ended with {status}")
                break
        self.free.append(tree)
        total = sum(len(tests) for _, _, tests, _ in rows)
        self.note(room, mutant, {"verdict": verdict, "tier": killer, "by": by, "why": why, "ran": ran, "tests": total,
                                 "seconds": round(time.monotonic() - begin, 1)})  # fmt: skip

    def in_tiers(self, rows: Sequence[tuple[str, set[str], float]]) -> list[tuple[str, str, set[str], float]]:
        """The rows with the tests of the fast tier, then the rows with the others; each row begins with its tier."""
        turn, known = tiers.turn_of_commit() if self.asked.turn is None else self.asked.turn, tiers.read()
        found = []
        for tier in ("fast", "rest"):
            for file, tests, seconds in rows:
                names = list(self.clean.seconds[file])
                fast = set(names) if tiers.is_whole(ROOT / file) else tiers.select(names, turn, known)
                part = tests & fast if tier == "fast" else tests - fast
                if part:
                    found.append((tier, file, part, seconds * len(part) / len(tests)))
        return found

    def note(self, room: str, mutant: Mutant, found: dict[str, Any]) -> None:
        shown = difference(mutant)
        row = {
            "room": room,
            "path": mutant.path,
            "line": mutant.line,
            "what": mutant.what,
            **found,
            "difference": shown,
        }
        self.judged.append(row)
        self.tell(row)
        where = f"{mutant.path}:{mutant.line}: {mutant.what}"
        print(
            f"{room}: {found['verdict']} in {found['seconds']:.0f} s, {found['ran']} of {found['tests']} tests: {where}",
            flush=True,
        )
        if found["verdict"] in ("survived", "unfinished"):
            print(shown, flush=True)

    def in_time(self, works: Iterator[Work]) -> Iterator[Work]:
        for work in works:
            if time.monotonic() - self.begin > self.asked.seconds:
                return
            yield work


def difference(mutant: Mutant) -> str:
    before = (ROOT / mutant.path).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.text.splitlines(), n=0, lineterm="")
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--room", action="append", choices=ROOMS, help="one or several; default: all")
    parser.add_argument("--count", type=int, default=20, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged side by side")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no mutant starts after this time")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds for one mutant; a longer one is unfinished"
    )
    parser.add_argument(
        "--clean-seconds", type=float, default=600.0, help="time limit in seconds for a file's tests without a mutant"
    )
    parser.add_argument("--kernels", type=Path, help="initial contents of the kernel caches")
    parser.add_argument("--out", type=Path, help="a line of JSON for each file and mutant is added to it")
    parser.add_argument(
        "--again", type=Path, help="only the mutants that survived in this file of --out, or were unfinished"
    )
    parser.add_argument("--rest", type=Path, help="only the mutants that this file of --out has no verdict of")
    parser.add_argument("--least", type=float, default=0.9, help="the share that must be killed in each room")
    parser.add_argument("--turn", type=int, help="the turn of the fast tier; default: by the commit")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run no tests")
    return parser.parse_args()


def judged_in(path: Path, verdicts: Collection[str]) -> set[tuple[str, str]]:
    """File and change of the mutants with one of these verdicts."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["path"], row["difference"]) for row in rows if "room" in row and row["verdict"] in verdicts}


def main() -> int:
    asked = arguments()
    rooms = asked.room or list(ROOMS)
    mutants = [(name, mutant) for name in rooms for mutant in chosen(ROOMS[name], asked.count, asked.seed)]
    if asked.again:
        wanted = judged_in(asked.again, ("survived", "unfinished"))
        mutants = [(name, mutant) for name, mutant in mutants if (mutant.path, difference(mutant)) in wanted]
    if asked.rest:
        ended = judged_in(asked.rest, ("survived", "killed", "killed by time", "does not build"))
        mutants = [(name, mutant) for name, mutant in mutants if (mutant.path, difference(mutant)) not in ended]
    if asked.list:
        for name, mutant in mutants:
            print(f"{name}: {mutant.path}:{mutant.line}: {mutant.what}\n{difference(mutant)}")
        return 0
    random.Random(asked.seed).shuffle(mutants)  # if the time ends the trial early, all packages have their share
    os.environ.update(OF_ALL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="pycompiler-mutants-") as folder:
        trial = Trial(Path(folder), asked)
        files = {name: expanded(ROOMS[name].tests) for name in rooms}
        rust = any(mutant.path.endswith(".rs") for _, mutant in mutants)
        slowest_first = list(dict.fromkeys(f for name in rooms for f in files[name]))[::-1]
        trial.run_clean(slowest_first, [m for _, m in mutants], rust)
        works = (trial.judge(name, mutant, files[name]) for name, mutant in mutants)
        side_by_side(trial.in_time(works), asked.jobs)
    return report(rooms, trial.judged, asked.least)


def report(rooms: Sequence[str], judged: Sequence[dict[str, Any]], least: float) -> int:
    """Prints the table; 1 if a package is below the share."""
    print("| room | killed | by the fast tier | made | share | unfinished |\n| --- | --- | --- | --- | --- | --- |")
    below = 0
    for name in rooms:
        verdicts = [row["verdict"] for row in judged if row["room"] == name]
        killed = sum(verdict.startswith("killed") for verdict in verdicts)
        made = killed + verdicts.count("survived")
        fast = sum(
            row["tier"] == "fast" for row in judged if row["room"] == name and row["verdict"].startswith("killed")
        )
        below |= killed < least * made
        print(f"| {name} | {killed} | {fast} | {made} | {killed / max(1, made):.0%} | {verdicts.count('unfinished')} |")
    return below


if __name__ == "__main__":
    sys.exit(main())
