"""Counts of mechanisms that the project is to lose: each may only fall.

A change that lowers a count lowers its maximum here, in the same commit.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pycompiler"
TENSORS = "capture/values/tensor.py"
META_CALLS = frozenset({"get", "pop", "setdefault"})


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Modules by path below the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text()) for p in paths}


@functools.cache
def nodes_of(path: str) -> list[ast.AST]:
    return list(ast.walk(trees()[path]))


def nodes(folder: str = "", *, without: str = "") -> Iterator[ast.AST]:
    """The nodes of all modules in a folder, except for one."""
    for path in trees():
        if path.startswith(folder) and path != without:
            yield from nodes_of(path)


def calls_of(name: str, folder: str) -> int:
    """Calls of a function or method with this name."""
    called = (n.func for n in nodes(folder) if isinstance(n, ast.Call))
    return sum(name in (getattr(f, "id", None), getattr(f, "attr", None)) for f in called)


def fake_reads(folder: str) -> int:
    """Reads `x.fake.y`; the class of tensors has properties for them."""
    reads = (n.value for n in nodes(folder, without=TENSORS) if isinstance(n, ast.Attribute))
    return sum(isinstance(v, ast.Attribute) and v.attr == "fake" for v in reads)


def is_text(value: ast.expr) -> bool:
    """A text, or a constant of a module."""
    name = value.id if isinstance(value, ast.Name) else ""
    return isinstance(value, ast.Constant) and isinstance(value.value, str) or name.isupper()


def constants_by_hand() -> int:
    """Calls in capture that turn a symbolic number into a constant, with a reason of their own.

    `cx.evaluate(fn, *values)` and `@constant_arguments(why)` do so for real functions and for handlers.
    """
    places = {"settle": 0, "const": 0, "realize": 1, "snapshot": 1}  # of the reason, among the arguments
    calls = (n for n in nodes("capture") if isinstance(n, ast.Call))
    reasons = (n.args[at:] for n in calls if (at := places.get(getattr(n.func, "attr", ""))) is not None)
    return sum(bool(r) and (isinstance(r[0], ast.JoinedStr) or is_text(r[0])) for r in reasons)


def meta_keys() -> set[str]:
    """Keys of `node.meta`, where they are written out."""
    found = set()
    for node in nodes():
        of, key = None, None
        if isinstance(node, ast.Subscript):
            of, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in META_CALLS:
            of, key = node.func.value, node.args[0] if node.args else None
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            of, key = node.comparators[0], node.left
        if isinstance(of, ast.Attribute) and of.attr == "meta" and isinstance(key, ast.Constant):
            found.add(str(key.value))
    return found


def keepers_of_a_write() -> set[str]:
    """Objects that `GraphBuilder._note_writes` reports a write to, or asks about it."""
    functions = (n for n in nodes_of("capture/recording/graph.py") if isinstance(n, ast.FunctionDef))
    method = next(n for n in functions if n.name == "_note_writes")
    texts = [ast.unparse(n) for n in ast.walk(method) if isinstance(n, ast.Attribute)]
    states = [t for t in texts if t.startswith(("self.", "errors.done"))]
    return {m[0] for t in states if (m := re.match(r"self\.(cx\.[a-z]+(\.looks)?|[a-z_]+)|errors\.done", t))}


# Tables that say how an operator is computed, and no fact about it.
IMPLEMENTATIONS = re.compile(
    r"lowering/(activations|pointwise)\.py|autograd/decomp/|operators/(numpy_|composite_rules)"
)
TEXTS = re.compile(r"operators/|runtime/cuda_graphs")  # modules that name operators in text, too


def is_aten(value: ast.expr) -> bool:
    """`aten`, or `torch.ops.aten`."""
    return "aten" in (getattr(value, "id", None), getattr(value, "attr", None))


def names_in(path: str, value: ast.AST) -> set[str]:
    """Operators that an expression names: as `aten.name`, or as text in some modules."""
    found = {n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute) and is_aten(n.value)}
    if TEXTS.match(path):
        texts = (n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        words = {word.partition(".")[0] for text in texts for word in text.split()}
        found |= {word for word in words if hasattr(torch.ops.aten, word)}
    return found


@functools.cache
def operator_tables() -> dict[str, set[str]]:
    """Operators by table: an assignment of a module, or all rows of `operators/operator_table.py`.

    A dict from operators to functions says how they are computed, and is none.
    """
    found: dict[str, set[str]] = {}
    for path, tree in trees().items():
        for statement in tree.body if not IMPLEMENTATIONS.match(path) else ():
            value: ast.AST | None = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "row":
                found.setdefault("rows", set()).update(names_in(path, value.args[0]))
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and value is not None:
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                if len(names := names_in(path, value)) > 1 and not isinstance(value, ast.Dict):
                    found[f"{path}: {ast.unparse(target)}"] = names
    return found


def named_twice(*prefixes: str) -> set[str]:
    """Operators in more than one of the tables in these folders."""
    tables = [names for table, names in operator_tables().items() if table.startswith(("rows", *prefixes))]
    return {name for names in tables for name in names if sum(name in others for others in tables) > 1}


ONE_TABLE = "Add a row to `operators/operator_table.py`, and read `facts_of(op)`."
ONE_PLACE = "Read the property of the value: `tensor.dtype` (`capture/values/tensor.py`)."
RECIPE = "Add a field to a recipe of `ir/autograd_node.py`, which the engine runs."
QUERY = "Use a mechanism that exists, or lower the count elsewhere first."
# What is counted: count, most, advice.
COUNTS: dict[str, tuple[Callable[[], int], int, str]] = {
    "operators in several tables of operators/": (lambda: len(named_twice("operators/")), 0, ONE_TABLE),
    "operators in several tables": (lambda: len(named_twice("")), 0, ONE_TABLE),
    "reads of fakes in capture": (lambda: fake_reads("capture"), 0, ONE_PLACE),
    "calls of settle": (lambda: calls_of("settle", ""), 7, QUERY),
    "numbers made constants by hand": (constants_by_hand, 51, QUERY),
    "isinstance in capture": (lambda: calls_of("isinstance", "capture"), 1777, QUERY),
    "printed functions around calls": (lambda: calls_of("_build", "autograd"), 4, RECIPE),
    "keys of meta": (lambda: len(meta_keys()), 20, QUERY),
    "keepers of a write": (lambda: len(keepers_of_a_write()), 3, QUERY),
}


@pytest.mark.parametrize("what", COUNTS)
def test_counts_do_not_grow(what: str) -> None:
    count, most, advice = COUNTS[what]
    found = count()
    assert found <= most, f"{what}: {found}, at most {most}. {advice}"
    assert found > 0.97 * most - 3, f"{what}: {found}. Lower the maximum of {most} to it."
